//! Tests of a gateway on a real socket with real upstreams: forwarding, limits and faults.

mod connections;
mod faults;
mod forwarding;
mod framing;
mod limits;
mod support;
mod versions;
