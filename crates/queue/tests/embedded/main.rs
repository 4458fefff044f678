//! Tests of the embedded queue, with a manual clock.

mod crash;
mod leases;
mod processes;
mod subject;
