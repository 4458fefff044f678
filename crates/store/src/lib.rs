//! Where usage is kept: implementations of [`sluicegate_core::Store`].

pub mod clock;
mod file;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
pub mod shelf;
mod sync;

pub use clock::MonotonicClock;
pub use memory::Memory;
#[cfg(feature = "redis")]
pub use redis::Redis;
pub use shelf::LocalShelf;
