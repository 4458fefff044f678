//! Tests of SQS, on moto and fauxqs.

mod compatibility;
mod crash;
mod leases;
mod start;
mod suite;
mod support;
