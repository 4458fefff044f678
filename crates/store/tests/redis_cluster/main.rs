//! The Redis store on several servers: a cluster, and a master monitored by sentinels.

mod bench;
mod faults;
mod ledger;
mod loss;
mod network;
mod plans;
mod sentinel;
mod suite;
