//! Tests of the whole path from a producer to a provider and back, on the embedded queue and the
//! in-memory store.

mod dispatching;
mod handling;
mod support;
mod working;
