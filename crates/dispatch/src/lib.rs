//! Jobs through queues at the pace that providers allow.
//!
//! ```text
//! raw queue ─Dispatcher→ queue of a provider ─Worker→ Handler → results, further messages
//!             tier 1: chooses a provider,       tier 2: its own counter,
//!             delays what is over its limit     the last word before the work goes
//! ```
//!
//! Nothing is lost: the next message is confirmed before the previous one is acknowledged. Waiting
//! for a limit is a deferral and never an attempt.

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
