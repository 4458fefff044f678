//! Dispatchers and workers as their users run them: processes of the binary between a broker and a
//! provider that writes down what it sees, on the queue and the store that need no server, and
//! on RabbitMQ and Redis.

#[path = "../common/mod.rs"]
mod common;

mod crawling;
mod faults;
mod scenarios;
mod support;
