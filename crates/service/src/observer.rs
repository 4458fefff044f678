//! [`Observer`]: receives every decision and its outcome, for metrics, logs and traces.

use sluicegate_core::Id;
use sluicegate_core::plan::Plan;
use sluicegate_core::query::{Cost, Query};
use sluicegate_core::time::{Span, Timestamp};

use crate::answer::Answer;
use crate::trace::{EventTrace, TraceId};

/// A receiver of all decisions and their outcomes, such as the metrics and the decision log.
pub trait Observer: Send + Sync {
    /// Receives a decision.
    fn on_decision(&self, event: &DecisionEvent<'_, '_, '_>);

    /// Receives a change of an earlier admission, booking or counter.
    fn on_change(&self, event: &ChangeEvent<'_, '_>);

    /// Receives a request without a decision: the store failed, and no outage policy decided
    /// instead.
    fn on_failure(&self, _event: &FailureEvent<'_, '_, '_>) {}

    /// Receives a store call with an unknown outcome: the store did not answer, or the caller
    /// stopped waiting. The change may or may not have happened.
    fn on_unanswered(&self, _event: &UnansweredEvent<'_, '_>) {}

    /// Receives a store call that is part of a recorded trace.
    fn on_store_call(&self, _event: &StoreCallEvent<'_>) {}
}

/// A decision with the query and the answer.
pub struct DecisionEvent<'a, 'q, 'p> {
    /// The query; of a batch, the first.
    pub query: &'a Query<'q>,
    /// The decision with its plan.
    pub answer: Answer<'a, 'p>,
    /// The operation that made the decision.
    pub operation: Operation,
    /// The claimant, if the work was booked before.
    pub claimant: Option<Id>,
    /// Time at which the request came, by the clock of this node.
    pub started: Timestamp,
    /// Time that the decision took.
    pub latency: Span,
    /// Span of the decision, if it belongs to a trace.
    pub trace: Option<&'a EventTrace>,
}

/// A request that got no decision because the store failed.
pub struct FailureEvent<'a, 'q, 'p> {
    /// The query; of a batch, the first.
    pub query: &'a Query<'q>,
    /// The plan that was not charged.
    pub plan: &'a Plan<'p>,
    /// The operation that failed.
    pub operation: Operation,
    /// Time at which the request came, by the clock of this node.
    pub started: Timestamp,
    /// Time until the failure.
    pub latency: Span,
    /// Span of the request, if it belongs to a trace.
    pub trace: Option<&'a EventTrace>,
}

/// A store call whose outcome is unknown.
#[derive(Clone, Copy, Debug)]
pub struct UnansweredEvent<'a, 'p> {
    /// Id of the request.
    pub id: Id,
    /// The operation of the call.
    pub operation: Operation,
    /// The charges that the store may have made.
    pub charges: UnconfirmedCharges<'a, 'p>,
    /// Time spent waiting for the answer.
    pub latency: Span,
    /// Trace that the call belongs to.
    pub trace: Option<TraceId>,
}

/// The charges that a store call may have made although its outcome is unknown.
#[derive(Clone, Copy, Debug)]
pub enum UnconfirmedCharges<'a, 'p> {
    /// None: the call can only give back.
    None,
    /// The charges of a plan.
    Plan(&'a Plan<'p>),
    /// A debt on the counters of an admission: at most its actual cost.
    Debt(&'a Cost),
}

/// A store call that is part of a recorded trace.
#[derive(Clone, Copy, Debug)]
pub struct StoreCallEvent<'a> {
    /// The operation of the call.
    pub operation: Operation,
    /// Start of the call, by the clock of this node.
    pub started: Timestamp,
    /// Time that the call took.
    pub latency: Span,
    /// False if the store did not answer, or the caller stopped waiting.
    pub is_answered: bool,
    /// False if there was no answer, or an error.
    pub is_ok: bool,
    /// Span of the operation that the call is a part of.
    pub trace: &'a EventTrace,
}

/// A change of an earlier admission, booking or counter.
pub struct ChangeEvent<'a, 'p> {
    /// Id of the request.
    pub id: Id,
    /// The operation that made the change.
    pub operation: Operation,
    /// Time of the change by the clock of the store; unknown for a spent claim.
    pub at: Option<Timestamp>,
    /// The change.
    pub effect: Effect<'a, 'p>,
    /// Time at which the request came, by the clock of this node.
    pub started: Timestamp,
    /// Time that the operation took.
    pub latency: Span,
    /// Span of the operation, if it belongs to a trace.
    pub trace: Option<&'a EventTrace>,
}

/// The change that an operation made.
#[derive(Clone, Copy)]
pub enum Effect<'a, 'p> {
    /// The admission was settled, released or cancelled.
    Ended {
        /// True if it had ended before and nothing changed.
        replayed: bool,
        /// The claimant of the handle, if the work was booked before.
        claimant: Option<Id>,
        /// The actual cost, if the admission was settled.
        cost: Option<&'a Cost>,
    },
    /// The leases and the hold of the admission were extended.
    Renewed {
        /// The new end.
        until: Timestamp,
    },
    /// A booking has not started yet.
    Early {
        /// Start of the booking.
        start: Timestamp,
    },
    /// A booking that could not be used was replaced by a new one.
    Rebooked {
        /// Start of the new booking.
        start: Timestamp,
        /// The charges of the new booking.
        plan: &'a Plan<'p>,
    },
    /// The claimant had claimed the booking before, and its time is over.
    Spent,
    /// Usage was given back, as far as the counters had any.
    Refunded {
        /// The counters and amounts.
        plan: &'a Plan<'p>,
    },
    /// The usage of the plan's counters was deleted.
    Reset {
        /// The counters.
        plan: &'a Plan<'p>,
    },
}

/// An operation of the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Charges now or denies.
    Acquire,
    /// Reads without charging.
    Peek,
    /// Charges at the first instant that fits.
    Book,
    /// Uses a booking.
    Claim,
    /// Replaces the estimate with the actual cost.
    Settle,
    /// Frees concurrency slots.
    Release,
    /// Extends leases and the hold.
    Renew,
    /// Gives back all charges of work that did not run.
    Cancel,
    /// Gives back usage without naming an admission.
    Refund,
    /// Deletes usage.
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

    /// Returns the name used in metrics and in the decision log.
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
