//! End-to-end tests of gateways: replicas of the binary in front of a fake vendor that records
//! arrival times, with a Redis that can be killed.

mod blame;
mod contract;
mod customers;
mod distant;
mod failures;
mod fleet;
#[path = "../common/measured.rs"]
mod measured;
#[path = "../common/proof.rs"]
mod proof;
mod replica;
mod shutdown;
mod vendor;
