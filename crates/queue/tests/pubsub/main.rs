//! Tests of Pub/Sub, on Google's fake.

mod compatibility;
mod crash;
mod delays;
mod leases;
mod login;
mod ordering;
mod start;
mod suite;
mod support;
