//! Tests of the embedded queue, with a manual clock.

mod crash;
mod jobs;
mod leases;
mod processes;
mod subject;
