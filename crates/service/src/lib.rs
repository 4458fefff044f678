//! The limiter as a service: [`Service`] plans and decides, [`Observer`]s receive every decision,
//! and [`answer::Answer`] prepares it for the encoders of every protocol. `metrics` declares the
//! metrics of all crates above this one, [`series`] keeps recent data for the dashboard, and
//! [`trace`] creates the spans of traces.

pub mod answer;
mod audit;
pub mod cost;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod headers;
#[cfg(feature = "metrics")]
pub mod metrics;
mod observer;
pub mod series;
mod service;
pub mod trace;

pub use audit::{AuditEntry, AuditLog};
pub use observer::{
    ChangeEvent, DecisionEvent, Effect, FailureEvent, Observer, Operation, StoreCallEvent,
    UnansweredEvent, UnconfirmedCharges,
};
pub use service::{DecisionMode, Service, ServiceError};
