//! The embedded queue, with a clock that is advanced by hand.

mod processes;
mod subject;
