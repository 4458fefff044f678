//! The Redis store on several servers: a cluster, and a master monitored by sentinels.

mod faults;
mod fixture;
mod ledger;
mod loss;
mod network;
mod plans;
mod sentinel;
mod suite;
