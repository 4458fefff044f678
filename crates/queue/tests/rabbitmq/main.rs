//! Tests of RabbitMQ, on private nodes.

mod compatibility;
mod crash;
mod delays;
mod kills;
mod start;
mod suite;
mod support;
mod tls;
