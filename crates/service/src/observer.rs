//! [`Observer`]: receives every decision and its outcome, for metrics, logs and traces.

use sluicegate_core::Id;
use sluicegate_core::plan::Plan;
use sluicegate_core::query::{Cost, Query};
use sluicegate_core::time::{Span, Timestamp};

use crate::answer::Answer;

/// Is told of everything that happens; metrics and the decision log are some.
pub trait Observer: Send + Sync {
    /// A decision was made.
    fn decided(&self, decided: &Decided<'_, '_, '_>);

    /// Something became of what was decided before.
    fn followed(&self, followed: &Followed<'_, '_>);

    /// The store gave no answer, and no policy decided in its place.
    fn failed(&self, _failed: &Failed<'_, '_, '_>) {}

    /// The store was asked to change something, and it is not known whether it did: it did not
    /// answer, or the caller stopped waiting.
    fn unanswered(&self, _unanswered: &Unanswered) {}
}

/// A decision with all that led to it.
pub struct Decided<'a, 'q, 'p> {
    /// Who asked; of a batch, the first.
    pub query: &'a Query<'q>,
    /// What was decided, beside what had to be charged.
    pub answer: Answer<'a, 'p>,
    /// How.
    pub operation: Operation,
    /// Who claimed it, if it was booked before.
    pub claimant: Option<Id>,
    /// How long it took.
    pub latency: Span,
}

/// A question without an answer.
pub struct Failed<'a, 'q, 'p> {
    /// Who asked; of a batch, the first.
    pub query: &'a Query<'q>,
    /// What would have been charged.
    pub plan: &'a Plan<'p>,
    /// How.
    pub operation: Operation,
    /// How long it took.
    pub latency: Span,
}

/// A call to the store whose answer nobody has seen.
#[derive(Clone, Copy, Debug)]
pub struct Unanswered {
    /// The name of the work.
    pub id: Id,
    /// What was asked.
    pub operation: Operation,
    /// How long the answer was waited for.
    pub latency: Span,
}

/// What became of an admission or of counters.
pub struct Followed<'a, 'p> {
    /// The name of the work.
    pub id: Id,
    /// By what.
    pub operation: Operation,
    /// When, by the clock of the store; not known of a claim that is spent.
    pub at: Option<Timestamp>,
    /// What became of it.
    pub effect: Effect<'a, 'p>,
    /// How long it took.
    pub latency: Span,
}

/// What became of something.
#[derive(Clone, Copy)]
pub enum Effect<'a, 'p> {
    /// It was settled, released or cancelled.
    Ended {
        /// It had been before; nothing changed.
        replayed: bool,
        /// Whose handle it was, if it was booked before.
        claimant: Option<Id>,
        /// What it cost, if it was settled.
        cost: Option<&'a Cost>,
    },
    /// It lasts longer.
    Renewed {
        /// Until when.
        until: Timestamp,
    },
    /// A booking has not started yet.
    Early {
        /// When it does.
        start: Timestamp,
    },
    /// A booking that could not be used was made anew.
    Rebooked {
        /// When it starts.
        start: Timestamp,
        /// What is charged then.
        plan: &'a Plan<'p>,
    },
    /// The claimant was told to go before, and its time is over.
    Spent,
    /// What the plan would take was given back, of whatever was there.
    Refunded {
        /// With the counters and amounts.
        plan: &'a Plan<'p>,
    },
    /// All usage of the plan's counters was forgotten.
    Reset {
        /// With the counters.
        plan: &'a Plan<'p>,
    },
}

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Charge now, or not at all.
    Acquire,
    /// Charge nothing.
    Peek,
    /// Charge for the first instant that fits.
    Book,
    /// Use a booking.
    Claim,
    /// Replace the estimate by the actual cost.
    Settle,
    /// Give leases back.
    Release,
    /// Make leases and hold last longer.
    Renew,
    /// Take back work that never left.
    Cancel,
    /// Give back without saying of which work.
    Refund,
    /// Forget usage.
    Reset,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 10] = [
        Self::Acquire,
        Self::Peek,
        Self::Book,
        Self::Claim,
        Self::Settle,
        Self::Release,
        Self::Renew,
        Self::Cancel,
        Self::Refund,
        Self::Reset,
    ];

    /// Its name in metrics and in the decision log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Peek => "peek",
            Self::Book => "book",
            Self::Claim => "claim",
            Self::Settle => "settle",
            Self::Release => "release",
            Self::Renew => "renew",
            Self::Cancel => "cancel",
            Self::Refund => "refund",
            Self::Reset => "reset",
        }
    }
}
