//! Processes jobs from queues at the rate that their providers allow.
//!
//! ```text
//! raw queue ─Dispatcher→ queue of a provider ─Worker→ Handler → results, follow-up messages
//!             tier 1: chooses a provider,       tier 2: has its own counter,
//!             delays messages over its limit    checks the limit before each call
//! ```
//!
//! No message is lost: the next message is confirmed before the previous one is acknowledged.
//! Waiting for a limit is a deferral and never counts as an attempt.

mod attempt;
pub mod dispatcher;
pub mod handler;
mod intake;
mod learn;
mod metrics;
mod pace;
mod retry;
mod select;
mod stop;
mod switch;
mod tier;
mod tracker;
pub mod worker;

pub use dispatcher::Dispatcher;
pub use handler::{Done, Failure, Handled, Handler, Heard, Job};
pub use metrics::{Count, Metrics};
pub use retry::Backoff;
pub use select::{Choice, Selector};
// The options of this crate.
pub use sluicegate_config::{DelayMode, Dispatch, LearnOptions, Provider, Strategy};
pub use stop::Stop;
pub use tier::{PROVIDER, TIER, Tier};
pub use tracker::{Event, Sighting, Tracker};
pub use worker::Worker;
