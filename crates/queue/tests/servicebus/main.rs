//! Tests of Azure Service Bus, on the double in `crates/testkit/servicebus`.

mod compatibility;
mod crash;
mod dead_letters;
mod double;
mod duplicates;
mod kills;
mod leases;
mod login;
mod start;
mod suite;
mod support;
mod transport;
