//! The embedded queue, with a clock that is advanced by hand.

mod crash;
mod leases;
mod processes;
mod subject;
