//! Gateways as their users run them: replicas of the binary before a vendor that remembers when
//! each request came, with a Redis between them that can be killed.

mod contract;
mod failures;
#[path = "../common/proof.rs"]
mod proof;
mod replica;
mod vendor;
