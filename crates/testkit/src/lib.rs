//! Shared test code of Sluicegate: a manual clock, private servers, the test suites that every
//! store and every queue has to pass, and a simulation of the distributed protocols.

pub mod clock;
pub mod delay_proxy;
pub mod distant_store;
mod guard;
pub mod limit_check;
pub mod model;
pub mod ports;
pub mod proxy;
pub mod pubsub;
pub mod queue;
pub mod rabbitmq;
pub mod redis;
pub mod servicebus;
pub mod sim;
pub mod sqs;
pub mod suite;
pub mod switchable_store;
pub mod wait;

pub use clock::ManualClock;
pub use distant_store::{DistantStore, Network, SimulatedProcess};
pub use queue::QueueSubject;
pub use suite::StoreSubject;
pub use switchable_store::SwitchableStore;
pub use wait::{
    eventually, eventually_async, eventually_get, eventually_is, eventually_is_async, eventually_ok,
};

/// Returns true if the long form of a test is requested.
pub fn long() -> bool {
    std::env::var_os("SLUICEGATE_LONG").is_some_and(|value| value != "0")
}
