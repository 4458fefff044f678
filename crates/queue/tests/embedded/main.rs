//! The embedded queue, with a clock that is advanced by hand.

mod crash;
mod processes;
mod subject;
