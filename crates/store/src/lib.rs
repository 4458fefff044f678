//! The stores: implementations of [`sluicegate_core::Store`] in memory ([`Memory`]) and on Redis
//! (`Redis`), and of the store for overrides.

pub mod any;
pub mod clock;
mod file;
pub mod memory;
pub mod override_store;
#[cfg(feature = "redis")]
pub mod redis;
mod redis_servers;
mod sync;

pub use any::AnyStore;
pub use clock::{MonotonicClock, SharedClock};
pub use memory::Memory;
pub use override_store::FileOverrideStore;
#[cfg(feature = "redis")]
pub use redis::Redis;
pub use redis_servers::{RedisEndpoint, RedisTopology, Sentinels};
