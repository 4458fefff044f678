//! Tests of a gateway on a real socket with real upstreams: forwarding, limits and faults.

mod connections;
mod faults;
mod forwarding;
mod framing;
mod grpc;
mod intermediary;
mod late;
mod limits;
mod shutdown;
mod support;
mod versions;
