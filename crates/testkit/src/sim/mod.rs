//! sim
pub mod cross_slot;
pub mod explore;

mod counter;
mod network;
mod process;
mod rng;
mod scheduler;
