//! The fourth step: to the upstream and back.

pub(crate) mod failed;
pub(crate) mod headers;
pub(crate) mod parked;
pub(crate) mod streamed;
pub(crate) mod target;
pub(crate) mod tunnel;

pub(crate) use failed::Failed;
pub(crate) use parked::{Budget, Parked};
