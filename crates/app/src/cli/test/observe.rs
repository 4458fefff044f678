//! What a step brought about, in the words of the service.

use std::fmt;

use sluicegate_core::algorithm::Reading;
use sluicegate_core::limit::Unit;
use sluicegate_core::store::Error;
use sluicegate_core::{Decision, Limit, Money, Plan, Span, Timestamp};
use sluicegate_service::Failure;
use sluicegate_service::answer::Answer;

/// The outcome of a step in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It may go.
    Allow,
    /// Not now.
    Deny,
    /// Not ever.
    Never,
    /// A reservation was settled, released, renewed or cancelled.
    Done,
    /// It had been before; nothing changed.
    Replayed,
    /// The question can't be answered: a required dimension is missing, or a value is no good.
    Invalid,
    /// The id stands for something else.
    Conflict,
    /// Nothing is held under the id.
    Unknown,
    /// The id was cancelled.
    Gone,
    /// The lease has expired.
    Lost,
    /// The store keeps as much as it may.
    Unavailable,
}

impl Word {
    /// What a question can come to.
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
    /// What can be counted of several questions.
    pub(super) const COUNTED: [Self; 4] = [Self::Allow, Self::Deny, Self::Never, Self::Invalid];
    /// What the end of a reservation can come to.
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

    /// Itself, with its name.
    pub(super) const fn named(self) -> (&'static str, Self) {
        (self.name(), self)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Everything that can be expected of a step.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) word: Word,
    /// The rule that stands in the way.
    pub(super) rule: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) retry_after: Option<Span>,
    /// Of the limit that hit, or of the tightest.
    pub(super) remaining: Option<Quantity>,
    pub(super) effective_limit: Option<Quantity>,
    pub(super) replayed: bool,
    /// The shadow rules that would have denied it.
    pub(super) shadowed: Vec<String>,
    pub(super) scopes: Vec<Scope>,
    /// What an error says.
    pub(super) error: Option<String>,
}

/// One limit, and how far it is used.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) rule: String,
    pub(super) limit: Limit,
    pub(super) used: Quantity,
    pub(super) left: Quantity,
    /// How long until the oldest use leaves.
    pub(super) reset: Span,
    pub(super) shadow: bool,
}

/// A number in its unit: money in dollars.
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

impl Observed {
    /// Just a word.
    pub(super) fn word(word: Word) -> Self {
        Self {
            word,
            rule: None,
            reason: None,
            retry_after: None,
            remaining: None,
            effective_limit: None,
            replayed: word == Word::Replayed,
            shadowed: Vec::new(),
            scopes: Vec::new(),
            error: None,
        }
    }

    /// A decision, told as the front doors tell it.
    pub(super) fn decision(answer: &Answer<'_, '_>) -> Self {
        let (plan, decision) = (answer.plan(), answer.decision());
        let hit = answer.hit();
        let told = if decision.is_allowed() { answer.tightest() } else { hit };
        let quantity = |limit: &Limit, number| Quantity { number, unit: limit.unit() };
        let (word, replayed, shadowed) = match decision {
            Decision::Allow(allow) => (Word::Allow, allow.replayed, allow.shadowed.as_slice()),
            Decision::Deny(_) => (Word::Deny, false, [].as_slice()),
            Decision::Never(_) => (Word::Never, false, [].as_slice()),
            Decision::Closed(_) => (Word::Unavailable, false, [].as_slice()),
        };
        let name = |&index: &u16| plan.charges()[usize::from(index)].rule().name.clone();
        Self {
            rule: hit.map(|hit| hit.name().to_owned()),
            reason: answer.reason().map(|reason| reason.to_string()),
            retry_after: answer.retry_after(),
            remaining: told.map(|scope| quantity(scope.limit, scope.remaining())),
            effective_limit: answer.effective().map(|scope| quantity(scope.limit, scope.amount())),
            replayed,
            shadowed: shadowed.iter().map(name).collect(),
            scopes: scopes(answer.at(), plan, decision.readings()),
            ..Self::word(word)
        }
    }

    /// What the limits show.
    pub(super) fn usage(at: Timestamp, plan: &Plan<'_>, readings: &[Reading]) -> Self {
        Self { scopes: scopes(at, plan, readings), ..Self::word(Word::Done) }
    }

    pub(super) fn invalid(error: &impl fmt::Display) -> Self {
        Self { error: Some(error.to_string()), ..Self::word(Word::Invalid) }
    }

    pub(super) fn failed(error: &Error) -> Self {
        let word = match error {
            Error::TooMany | Error::Spread => Word::Invalid,
            Error::Conflict | Error::Differs | Error::NotClaimed => Word::Conflict,
            Error::Unknown => Word::Unknown,
            Error::Gone => Word::Gone,
            Error::Lost => Word::Lost,
            Error::Unavailable(_) | Error::ClockSkew | Error::Full => Word::Unavailable,
        };
        Self { error: Some(error.to_string()), ..Self::word(word) }
    }

    /// The rules that applied, in the order of their groups.
    pub(super) fn rules(&self) -> Vec<&str> {
        let mut rules: Vec<_> = self.scopes.iter().map(|scope| scope.rule.as_str()).collect();
        rules.dedup();
        rules
    }
}

impl From<Failure> for Observed {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Plan(error) => Self::invalid(&error),
            Failure::Store(error) => Self::failed(&error),
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
