//! What is sent to whom, and who works on it.

use sluicegate_core::query::Cost;
use sluicegate_core::{Limit, Span};

use super::{Handler, Learn};

/// A dispatcher: from one queue to those of providers.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// What it is called in the log and in dead letters. Default: dispatcher-001.
    pub id: String,
    /// Whether limits are asked; if not, everything goes straight to its provider's queue, at once.
    /// Only the word `false` turns it off. Default: true.
    pub enabled: bool,
    /// The queue that it takes messages from.
    pub source: String,
    /// Where its dead letters go. Default: the queue part says.
    pub dead_letter: Option<String>,
    /// How a provider is chosen. Default: FIXED.
    pub strategy: Strategy,
    /// The provider that FIXED takes, and MESSAGE_BASED where a message names none. Default: the
    /// first.
    pub fixed: Option<String>,
    /// Providers, most wanted first, for PRIORITY_ORDER and COST_OPTIMIZED. Default: none.
    pub priority: Vec<String>,
    /// How messages over the limit wait. Default: 30s.
    pub delay: Delay,
    /// The most messages in hand at the same time. Default: 100: a broker's confirmations are worth
    /// waiting for together.
    pub prefetch: u16,
    /// In the order of `available`, or else in that of the file.
    pub providers: Vec<Provider>,
}

/// How a provider is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Always the same.
    Fixed,
    /// One after the other.
    RoundRobin,
    /// By weight.
    Weighted,
    /// By the order of `priority`, or else the cheapest.
    CostOptimized,
    /// The best.
    QualityFirst,
    /// By the order of `priority`.
    PriorityOrder,
    /// By a member of the message.
    MessageBased {
        /// Which one. Default: provider.
        field: String,
    },
    /// By what is left of its limits.
    Headroom,
}

/// How messages over the limit wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// So long, all alike.
    Fixed(Span),
    /// Until a moment that is booked.
    Booked,
}

/// Somebody to whom work is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    /// Its name.
    pub name: String,
    /// The queue of its work. Default: its name and `-queue`.
    pub queue: String,
    /// Its limits. Default: 1000/min.
    pub limits: Vec<Limit>,
    /// What a message is taken for, where more than messages is limited. Default: nothing.
    pub estimate: Cost,
    /// What a call costs, in any unit. Default: 1.
    pub cost: f64,
    /// How good its answers are, in any unit. Default: 1.
    pub quality: f64,
    /// How often it is taken under WEIGHTED. Default: 1.
    pub weight: u32,
}

/// Somebody who works on the messages of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Whom the work is for; its limits and metrics go by this name.
    pub provider: String,
    /// The queue. Default: that of the provider in `dispatch`.
    pub queue: String,
    /// Where its dead letters go. Default: the queue part says.
    pub dead_letter: Option<String>,
    /// Where results go. Default: nowhere.
    pub results: Option<String>,
    /// Whether limits are asked. Default: as `dispatch` says.
    pub enabled: bool,
    /// Its own limits, the last word before the work goes. Default: none.
    pub limits: Vec<Limit>,
    /// What a message is taken for. Default: as the provider in `dispatch` says.
    pub estimate: Cost,
    /// How many jobs are in work at the same time. Default: 5.
    pub concurrency: u16,
    /// How many messages are taken beyond these. Default: 1: what is in hand is not available to
    /// others.
    pub prefetch: u16,
    /// How often a job may fail. Default: 3.
    pub attempts: u32,
    /// The longest wait before the second attempt, which doubles with each. Default: 1s.
    pub backoff_from: Span,
    /// The longest wait before any. Default: 60s.
    pub backoff_to: Span,
    /// How long one attempt may take. Default: 60s.
    pub timeout: Span,
    /// What is learned from the answers of the provider. Default: what it refuses closes it for
    /// everybody, at most for an hour.
    pub learn: Option<Learn>,
    /// What is done with a message.
    pub handler: Handler,
}
