//! The limiter as a service: [`Service`] plans and decides, [`Observer`]s receive every decision,
//! and [`answer::Answer`] prepares it for the encoders of every protocol. [`metrics`] declares the
//! metrics of all crates above this one.

pub mod answer;
pub mod metrics;
mod observer;
mod service;

pub use observer::{
    ChangeEvent, DecisionEvent, Effect, FailureEvent, Observer, Operation, UnansweredEvent,
};
pub use service::{DecisionMode, Service, ServiceError};
