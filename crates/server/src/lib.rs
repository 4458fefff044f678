//! The protocol servers of Sluicegate: REST, gRPC and Envoy, with authentication, overrides,
//! metrics, the decision log and the dashboard.

pub mod admin;
pub mod auth;
mod cost;
pub mod dashboard;
pub mod decision_log;
pub mod envoy;
mod former_limits;
pub mod grpc;
pub mod headers;
mod json;
pub mod metrics;
pub mod overrides;
pub mod recorder;
pub mod refusal;
mod request;
pub mod reservations;
pub mod rest;
mod settlement;
mod ticket;
pub mod traced;
mod window;

pub(crate) use sluicegate_http::probe;
pub(crate) use sluicegate_service::{self as service, answer};
