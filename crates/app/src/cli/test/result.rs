//! The result of a test step: the outcome and the state of the limits, as the service reports it.

use std::fmt;

use sluicegate_core::algorithm::Reading;
use sluicegate_core::limit::Unit;
use sluicegate_core::store::Error;
use sluicegate_core::{Decision, Limit, Money, Plan, Span, Timestamp};
use sluicegate_service::ServiceError;
use sluicegate_service::answer::Answer;

/// Outcome of a step, as written in `expect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// The request is allowed.
    Allow,
    /// The request is denied for now.
    Deny,
    /// The request can never be allowed.
    Never,
    /// A reservation was settled, released, renewed or cancelled.
    Done,
    /// The call was a repetition; nothing changed.
    Replayed,
    /// The request is invalid: a required dimension is missing, or a value is not valid.
    Invalid,
    /// The id is in use for a different request.
    Conflict,
    /// No reservation has this id.
    Unknown,
    /// The reservation was cancelled.
    Gone,
    /// The lease has expired.
    Lost,
    /// The store is full or down.
    Unavailable,
}

impl StepOutcome {
    /// Outcomes of a request.
    pub(super) const ANSWERS: [Self; 8] = [
        Self::Allow,
        Self::Deny,
        Self::Never,
        Self::Invalid,
        Self::Conflict,
        Self::Gone,
        Self::Lost,
        Self::Unavailable,
    ];
    /// Outcomes that can be counted over several calls.
    pub(super) const COUNTED: [Self; 4] = [Self::Allow, Self::Deny, Self::Never, Self::Invalid];
    /// Outcomes of settle, release, renew and cancel.
    pub(super) const ENDS: [Self; 6] =
        [Self::Done, Self::Replayed, Self::Conflict, Self::Unknown, Self::Gone, Self::Lost];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Never => "never",
            Self::Done => "done",
            Self::Replayed => "replayed",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Unknown => "unknown",
            Self::Gone => "gone",
            Self::Lost => "lost",
            Self::Unavailable => "unavailable",
        }
    }

    /// Returns the outcome with its name.
    pub(super) const fn named(self) -> (&'static str, Self) {
        (self.name(), self)
    }
}

impl fmt::Display for StepOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The result of a step: everything that `expect` can compare.
#[derive(Debug)]
pub(super) struct StepResult {
    pub(super) outcome: StepOutcome,
    /// Rule that denied the request.
    pub(super) rule: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) retry_after: Option<Span>,
    /// Remaining amount of the limit that denied the request, or else of the tightest limit.
    pub(super) remaining: Option<Quantity>,
    pub(super) effective_limit: Option<Quantity>,
    pub(super) replayed: bool,
    /// Shadow rules that would have denied the request.
    pub(super) shadowed: Vec<String>,
    pub(super) scopes: Vec<Scope>,
    /// Error message.
    pub(super) error: Option<String>,
}

/// Usage of one limit.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) rule: String,
    pub(super) limit: Limit,
    pub(super) used: Quantity,
    pub(super) left: Quantity,
    /// Time until the oldest usage expires.
    pub(super) reset: Span,
    pub(super) shadow: bool,
}

/// A number with its unit; money is displayed in dollars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quantity {
    pub(super) number: u64,
    pub(super) unit: Unit,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Money::from_nanos(self.number) {
            Some(money) if self.unit == Unit::Usd => money.fmt(f),
            _ => self.number.fmt(f),
        }
    }
}

impl StepResult {
    /// Creates a result that has only an outcome.
    pub(super) fn outcome(outcome: StepOutcome) -> Self {
        Self {
            outcome,
            rule: None,
            reason: None,
            retry_after: None,
            remaining: None,
            effective_limit: None,
            replayed: outcome == StepOutcome::Replayed,
            shadowed: Vec::new(),
            scopes: Vec::new(),
            error: None,
        }
    }

    /// Creates the result of a decision, with the same values as the REST and gRPC responses.
    pub(super) fn decision(answer: &Answer<'_, '_>) -> Self {
        let (plan, decision) = (answer.plan(), answer.decision());
        let hit = answer.hit();
        let scope_shown = if decision.is_allowed() { answer.tightest() } else { hit };
        let quantity = |limit: &Limit, number| Quantity { number, unit: limit.unit() };
        let (outcome, replayed, shadowed) = match decision {
            Decision::Allow(allow) => {
                (StepOutcome::Allow, allow.replayed, allow.shadowed.as_slice())
            }
            Decision::Deny(_) => (StepOutcome::Deny, false, [].as_slice()),
            Decision::Never(_) => (StepOutcome::Never, false, [].as_slice()),
            Decision::Closed(_) => (StepOutcome::Unavailable, false, [].as_slice()),
        };
        let name = |&index: &u16| plan.charges()[usize::from(index)].rule().name.clone();
        Self {
            rule: hit.map(|hit| hit.name().to_owned()),
            reason: answer.reason().map(|reason| reason.to_string()),
            retry_after: answer.retry_after(),
            remaining: scope_shown.map(|scope| quantity(scope.limit, scope.remaining())),
            effective_limit: answer.effective().map(|scope| quantity(scope.limit, scope.amount())),
            replayed,
            shadowed: shadowed.iter().map(name).collect(),
            scopes: scopes(answer.at(), plan, decision.readings()),
            ..Self::outcome(outcome)
        }
    }

    /// Creates the result of a usage query.
    pub(super) fn usage(at: Timestamp, plan: &Plan<'_>, readings: &[Reading]) -> Self {
        Self { scopes: scopes(at, plan, readings), ..Self::outcome(StepOutcome::Done) }
    }

    pub(super) fn invalid(error: &impl fmt::Display) -> Self {
        Self { error: Some(error.to_string()), ..Self::outcome(StepOutcome::Invalid) }
    }

    pub(super) fn failed(error: &Error) -> Self {
        let outcome = match error {
            Error::TooMany | Error::CrossSlot => StepOutcome::Invalid,
            Error::Conflict | Error::Differs | Error::NotClaimed => StepOutcome::Conflict,
            Error::Unknown => StepOutcome::Unknown,
            Error::Gone => StepOutcome::Gone,
            Error::Lost => StepOutcome::Lost,
            Error::Unavailable(_) | Error::ClockSkew | Error::Full => StepOutcome::Unavailable,
        };
        Self { error: Some(error.to_string()), ..Self::outcome(outcome) }
    }

    /// Returns the rules that applied, in order of their groups.
    pub(super) fn rules(&self) -> Vec<&str> {
        let mut rules: Vec<_> = self.scopes.iter().map(|scope| scope.rule.as_str()).collect();
        rules.dedup();
        rules
    }
}

impl From<ServiceError> for StepResult {
    fn from(failure: ServiceError) -> Self {
        match failure {
            ServiceError::Plan(error) => Self::invalid(&error),
            ServiceError::Store(error) => Self::failed(&error),
        }
    }
}

fn scopes(at: Timestamp, plan: &Plan<'_>, readings: &[Reading]) -> Vec<Scope> {
    let scope = |((charge, limit), reading): ((&sluicegate_core::Charge<'_>, &Limit), &Reading)| {
        let quantity = |number| Quantity { number, unit: limit.unit() };
        Scope {
            rule: charge.rule().name.clone(),
            limit: limit.clone(),
            used: quantity(reading.used),
            left: quantity(limit.amount().get().saturating_sub(reading.used)),
            reset: reading.reset.since(at),
            shadow: charge.shadow(),
        }
    };
    plan.scopes().zip(readings).map(scope).collect()
}
