//! A gateway on a real socket, before real upstreams: what passes, what does not, and what is left
//! when one side misbehaves.

mod faults;
mod forwarding;
mod framing;
mod limits;
mod support;
mod versions;
