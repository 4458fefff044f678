//! The protocol servers of Sluicegate: REST, gRPC and Envoy, with authentication, overrides,
//! metrics and the decision log.

pub mod admin;
pub mod auth;
mod cost;
pub mod decision_log;
pub mod envoy;
mod former_limits;
pub mod grpc;
pub mod headers;
mod json;
pub mod metrics;
pub mod overrides;
pub mod refusal;
mod request;
pub mod rest;
mod settlement;
mod ticket;
mod window;

pub(crate) use sluicegate_http::probe;
pub(crate) use sluicegate_service::{self as service, answer};
