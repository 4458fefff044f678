//! Where usage is kept: implementations of [`sluicegate_core::Store`].

pub mod clock;
pub mod memory;
mod sync;

pub use clock::MonotonicClock;
pub use memory::Memory;
