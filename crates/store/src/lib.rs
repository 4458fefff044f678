//! The stores: implementations of [`sluicegate_core::Store`] in memory ([`Memory`]) and on Redis
//! (`Redis`), and of the stores for overrides and for open reservations.

pub mod any;
pub mod clock;
mod file;
pub mod memory;
pub mod override_store;
#[cfg(feature = "redis")]
pub mod redis;
mod redis_servers;
pub mod reservation_store;
mod sync;

pub use any::AnyStore;
pub use clock::{MonotonicClock, SharedClock};
pub use memory::Memory;
pub use override_store::FileOverrideStore;
#[cfg(feature = "redis")]
pub use redis::Redis;
pub use redis_servers::{RedisEndpoint, RedisTopology, Sentinels};
pub use reservation_store::MemoryReservationStore;
