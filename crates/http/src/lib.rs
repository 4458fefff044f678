//! HTTP of both sides. Server side: sockets with their bounds, TLS, tokens and probes. Client side:
//! pooled connections to upstreams with credentials.

pub mod listener;
pub mod probe;
pub mod tls;
pub mod tokens;
pub mod upstream;
