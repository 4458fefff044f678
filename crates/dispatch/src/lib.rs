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
mod finished;
pub mod handler;
mod learn;
mod limit_switch;
mod limits;
mod metrics;
mod queue_state;
mod receive;
mod select;
mod settle;
mod stop;
mod tier;
mod trace;
mod tracker;
pub mod worker;

pub use dispatcher::{DELIVERED_AHEAD, Dispatcher};
pub use handler::{
    Handler, HandlerResult, Job, JobFailure, JobSuccess, PreparedCall, RateLimitInfo,
};
pub use metrics::{Metrics, WorkerCounter};
pub use select::{Choice, Selector};
// The options of this crate.
pub use limits::ProviderState;
pub use sluicegate_config::{DelayMode, Dispatch, LearnOptions, Provider, Strategy};
pub use stop::Stop;
pub use tier::{PROVIDER, TIER, Tier};
pub use tracker::{JobEvent, JobRecord, JobStatus, JobTracker, PastEvent};
pub use worker::Worker;
