//! The protocols that several processes speak, explored before they are written for Redis.
//!
//! A run is a world in virtual time: stores that handle one message after the other, as a Redis
//! script does, and processes that are stopped and killed between any two steps, over a network
//! that delays, loses, repeats and reorders. All of it follows from one seed, so that a run can
//! be repeated, and thousands of them take seconds. What is decided inside a store is decided by
//! [`sluicegate_core::algorithm`]; what is around it (records, tombstones, ids, retries) is
//! written here, small enough to be read as the specification of the scripts.
//!
//! | module | protocol |
//! |---|---|
//! | [`cross_slot`] | one plan over counters in several slots: reserve, and take back |
//! | [`booking`] | a start that is booked, and claimed when the work goes |
//! | [`given_up`] | an attempt that was not answered: denied by a policy, and taken back |
//! | [`lease`] | a slot that is taken, renewed and released, or expires |
//! | [`explore`] | seeds, replay and the trace of a run |
//!
//! Each protocol has a list of **mistakes**. A run with one of them behaves as an implementation
//! would that got this wrong; the tests prove that some seed finds it, and so that the invariants
//! are worth something.
//!
//! Left out is what only bounds can be given for: a fail-over that loses writes, and clocks that
//! jump or run at different speeds. The clocks of the world differ, but go on evenly.

pub mod booking;
pub mod cross_slot;
pub mod explore;
pub mod given_up;
pub mod lease;

mod counter;
mod network;
mod process;
mod rng;
mod scheduler;
