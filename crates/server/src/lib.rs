//! The front doors of Sluicegate: what listens, who may come in, and what each protocol says.

pub mod admin;
pub mod answer;
pub mod auth;
mod cost;
pub mod decision_log;
pub mod envoy;
pub mod grpc;
pub mod headers;
pub mod listener;
pub mod metrics;
pub mod probe;
pub mod refusal;
mod request;
pub mod rest;
pub mod service;
mod settled;
mod ticket;
pub mod tls;
mod window;
