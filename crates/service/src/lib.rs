//! The limiter as a service: [`Service`] plans and decides, [`Observer`]s see every decision, and
//! [`answer::Answer`] words it the same way for every protocol.

pub mod answer;
mod observer;
mod service;

pub use observer::{Decided, Effect, Failed, Followed, Observer, Operation, Unanswered};
pub use service::{Failure, Question, Service};
