//! The fourth step, forward: sends a request to the upstream and streams the response back.

pub(crate) mod failed;
pub(crate) mod headers;
pub(crate) mod parked;
pub(crate) mod streamed;
pub(crate) mod target;
pub(crate) mod tunnel;

pub(crate) use failed::Failed;
pub(crate) use parked::{Budget, Parked};
