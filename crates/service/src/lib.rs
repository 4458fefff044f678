//! The limiter as a service: [`Service`] plans and decides, [`Observer`]s receive every decision,
//! and [`answer::Answer`] prepares it for the encoders of every protocol.

pub mod answer;
mod observer;
mod service;

pub use observer::{Decided, Effect, Failed, Followed, Observer, Operation, Unanswered};
pub use service::{Failure, Question, Service};
