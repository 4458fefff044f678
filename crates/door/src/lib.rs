//! What every front door stands on: sockets and TLS, tokens and probes, the limiter with those who
//! watch it decide, and the way out to upstreams. What is said at a door, and how, is up to the
//! crates above.

pub mod answer;
pub mod listener;
pub mod probe;
pub mod service;
pub mod tls;
pub mod tokens;
pub mod upstream;
