//! HTTP for both directions. Server side: listeners with limits on every client, TLS, tokens and
//! probes. Client side: pooled connections to upstreams, with credentials.

pub mod listener;
pub mod probe;
pub mod tls;
pub mod tokens;
pub mod upstream;
