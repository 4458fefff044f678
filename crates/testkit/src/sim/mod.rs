//! Simulations of the distributed protocols, to explore them before they are written for Redis.
//!
//! A run simulates stores and processes in virtual time. A store handles one message after the
//! other, as a Redis script does. Processes are suspended and killed between any two steps, and the
//! network delays, loses, repeats and reorders messages. Everything follows from one seed, so that
//! a run can be repeated, and thousands of runs take seconds. [`sluicegate_core::algorithm`] makes
//! the decisions inside a store. The code around them (records, tombstones, ids, retries) is
//! written here, small enough to read as the specification of the scripts.
//!
//! | module | protocol |
//! |---|---|
//! | [`cross_slot`] | one plan over counters in several slots: reserve and roll back |
//! | [`booking`] | a start time that is booked, and claimed when the work starts |
//! | [`timed_out`] | a call that timed out: decided by the outage policy and rolled back |
//! | [`lease`] | a concurrency slot that is acquired, renewed and released, or expires |
//! | [`explore`] | seeds, replay and the trace of a run |
//!
//! Each protocol has a list of **mistakes**. A run with one of them behaves like an implementation
//! with that bug. The tests prove that some seed finds each mistake, and so that the invariants
//! detect bugs.
//!
//! Not simulated, because no exact invariants hold: a failover that loses writes, and clocks that
//! jump. The simulated clocks differ by a constant; in [`booking`] that of the store also runs up to
//! 0.1 % faster or slower.

pub mod booking;
pub mod cross_slot;
pub mod explore;
pub mod lease;
pub mod timed_out;

mod counter;
mod network;
mod process;
mod rng;
mod scheduler;

pub use rng::Rng;
