//! [`Dispatch`] and [`WorkerOptions`]: options of the dispatcher, which distributes messages over
//! the queues of providers, and of the workers that process them.

use sluicegate_core::query::Cost;
use sluicegate_core::{Limit, Span};

use super::{HandlerOptions, LearnOptions};

/// Options of the dispatcher, which moves messages from one source queue to the queues of
/// providers.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// Name of the dispatcher in the log and in dead letters. Default: dispatcher-001.
    pub id: String,
    /// True if the dispatcher asks the limiter; if false, every message goes to its provider's
    /// queue at once. Only the word `false` turns it off. Default: true.
    pub enabled: bool,
    /// Queue that messages come from.
    pub source: String,
    /// Dead-letter queue. Default: as `queue.dead_letter` says.
    pub dead_letter: Option<String>,
    /// Strategy that chooses a provider. Default: FIXED.
    pub strategy: Strategy,
    /// Provider for FIXED, and for MESSAGE_BASED where a message names none. Default: the first.
    pub fixed: Option<String>,
    /// Providers in order of preference, for PRIORITY_ORDER and COST_OPTIMIZED. Default: none.
    pub priority: Vec<String>,
    /// Delay of messages that are over the limit. Default: 30s.
    pub delay: DelayMode,
    /// Maximum number of messages in flight. Default: 100, so that the waits for the broker's
    /// confirmations overlap.
    pub prefetch: u16,
    /// Providers in the order of `available`, or else of the file.
    pub providers: Vec<Provider>,
}

/// A strategy that chooses a provider for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Always the same provider.
    Fixed,
    /// One provider after the other.
    RoundRobin,
    /// In proportion to `weight`, evenly mixed.
    Weighted,
    /// The first of `priority`, or else the cheapest.
    CostOptimized,
    /// The provider of the highest `quality`.
    QualityFirst,
    /// The first of `priority`.
    PriorityOrder,
    /// The provider that a field of the message names.
    MessageBased {
        /// Name of the field. Default: provider.
        field: String,
    },
    /// The provider with the most remaining quota.
    Headroom,
}

/// Delay of messages that are over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayMode {
    /// The same delay for every message.
    Fixed(Span),
    /// Until the start time of a booking.
    Booked,
}

impl DelayMode {
    /// The fixed delay of a dispatcher whose configuration names none.
    pub const FIXED: Span = Span::from_secs(30);
}

/// A provider that messages are sent to.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    /// Name of the provider.
    pub name: String,
    /// Queue of its messages. Default: its name and `-queue`.
    pub queue: String,
    /// Limits of the provider. Default: 1000/min.
    pub limits: Vec<Limit>,
    /// Estimated cost of a message, for limits on tokens or money. Default: nothing.
    pub estimate: Cost,
    /// Price of a call, in any unit. Default: 1.
    pub cost: f64,
    /// Quality of its results, in any unit. Default: 1.
    pub quality: f64,
    /// Weight under WEIGHTED. Default: 1.
    pub weight: u32,
}

/// Options of a worker, which processes the messages of one queue.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerOptions {
    /// Provider that the work is for; limits and metrics use this name.
    pub provider: String,
    /// Queue of its messages. Default: the queue of the provider in `dispatch`.
    pub queue: String,
    /// Dead-letter queue. Default: as `queue.dead_letter` says.
    pub dead_letter: Option<String>,
    /// Queue that results are sent to. Default: none.
    pub results: Option<String>,
    /// True if the worker asks the limiter. Default: as in `dispatch`.
    pub enabled: bool,
    /// Limits that the worker checks right before it calls the provider. Default: none.
    pub limits: Vec<Limit>,
    /// Estimated cost of a message. Default: that of the provider in `dispatch`.
    pub estimate: Cost,
    /// Maximum number of jobs in progress. Default: 5.
    pub concurrency: u16,
    /// Number of messages fetched beyond those in progress. Default: 1, because other workers can't
    /// get a fetched message; with booked delays more, for messages that are held until they are due.
    pub prefetch: Option<u16>,
    /// Maximum number of attempts for a job. Default: 3.
    pub attempts: u32,
    /// Maximum backoff before the second attempt; it doubles with every further attempt. Default:
    /// 1s.
    pub backoff_from: Span,
    /// Maximum backoff before any attempt. Default: 60s.
    pub backoff_to: Span,
    /// Timeout of one attempt. Default: 60s.
    pub timeout: Span,
    /// Reaction to rate-limit information in the provider's responses. Default: a refusal pauses
    /// the provider for all workers, at most for an hour.
    pub learn: Option<LearnOptions>,
    /// Handler that processes a message.
    pub handler: HandlerOptions,
}
