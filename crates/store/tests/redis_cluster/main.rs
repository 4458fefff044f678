//! The Redis store on several servers: a cluster, and a master that sentinels watch.

mod bench;
mod faults;
mod ledger;
mod network;
mod plans;
mod sentinel;
mod suite;
