//! Where usage is kept: implementations of [`sluicegate_core::Store`].

pub mod any;
pub mod clock;
mod file;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
pub mod shelf;
mod sync;

pub use any::AnyStore;
pub use clock::{MonotonicClock, SharedClock};
pub use memory::Memory;
#[cfg(feature = "redis")]
pub use redis::Redis;
pub use shelf::LocalShelf;
