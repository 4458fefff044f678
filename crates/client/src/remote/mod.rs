//! The client of a `sluicegate serve`: HTTP/2 on pooled connections, with a deadline for each call,
//! a policy for the time in which the service does not answer, and a cache of denials.

mod breaker;
mod builder;
mod client;
mod denial_cache;
mod transport;
mod wire;

pub use builder::{RemoteBuilder, UnavailablePolicy};
