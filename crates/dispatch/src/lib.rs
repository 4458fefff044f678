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

pub mod handler;

pub use handler::{Done, Failure, Handled, Handler, Heard, Job};
