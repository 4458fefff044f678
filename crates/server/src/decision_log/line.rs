//! What a line says, in whatever format.

use std::fmt::{self, Display};

use sluicegate_core::limit::Unit;
use sluicegate_core::{Charge, Decision, Money, Timestamp};

use super::sample::Share;
use crate::answer::{Answer, Scope};
use crate::service::{Decided, Operation};

/// What the log adds to a decision.
pub(super) struct Context<'l> {
    /// The time of this node.
    pub(super) now: Timestamp,
    pub(super) secrets: &'l Secrets,
    /// How many decisions of its kind are logged.
    pub(super) share: Share,
    /// How many lines before this one were lost.
    pub(super) dropped: u64,
}

pub(super) const fn level(answer: &Answer<'_, '_>) -> &'static str {
    if answer.is_allowed() { "INFO" } else { "WARN" }
}

/// A number; of money, dollars as a decimal.
pub(super) fn amount(number: u64, unit: Unit) -> impl Display {
    let money = Some(number).filter(|_| unit == Unit::Usd).and_then(Money::from_nanos);
    fmt::from_fn(move |f| match money {
        Some(money) => money.fmt(f),
        None => number.fmt(f),
    })
}

/// The limit that `remaining` and `windowResetAt` speak of: the one that hit, or else the tightest.
pub(super) fn foremost<'a, 'p>(answer: &Answer<'a, 'p>) -> Option<Scope<'a, 'p>> {
    if answer.is_allowed() { answer.tightest() } else { answer.hit() }
}

/// What was written by this decision: nothing by a peek or a replay, and no lease by a booking,
/// which takes it when it is claimed.
pub(super) fn written<'a, 'p>(
    decided: &Decided<'a, '_, 'p>,
) -> impl Iterator<Item = &'a Charge<'p>> {
    let answer = decided.answer;
    // What a node admits on its own is not charged on the counters that all share.
    let shared = answer.outage().is_none();
    let first_time =
        shared && matches!(answer.decision(), Decision::Allow(allow) if !allow.replayed);
    let operation = decided.operation;
    answer.plan().charges().iter().filter(move |charge| {
        first_time
            && !charge.is_gate()
            && match operation {
                Operation::Acquire => true,
                Operation::Book => charge.is_booked(),
                Operation::Claim => !charge.meter.bookable(),
                _ => false,
            }
    })
}

/// The names of the shadow rules that would have denied an admission.
pub(super) fn shadowed<'a>(answer: &Answer<'a, '_>) -> impl Iterator<Item = &'a str> {
    let indexes = match answer.decision() {
        Decision::Allow(allow) => allow.shadowed.as_slice(),
        Decision::Deny(_) | Decision::Never(_) | Decision::Closed(_) => &[],
    };
    let charges = answer.plan().charges();
    let rules = indexes.iter().map(|&index| charges[usize::from(index)].rule());
    rules.filter(|rule| rule.shadow).map(|rule| rule.name.as_str())
}

/// The dimension that is secret whatever the configuration says.
pub(super) const API_KEY: &str = "apiKey";

/// Which values are not to be seen, and what is seen instead.
pub(super) struct Secrets {
    dimensions: Vec<String>,
    key: [u8; 32],
}

impl Secrets {
    pub(super) fn new(dimensions: Vec<String>, key: [u8; 32]) -> Self {
        Self { dimensions, key }
    }

    pub(super) fn has(&self, dimension: &str) -> bool {
        dimension == API_KEY || self.dimensions.iter().any(|secret| secret == dimension)
    }

    /// 32 hexadecimal digits by which equal values can be recognised, as in the keys of counters.
    pub(super) fn hash(&self, value: &str) -> impl Display {
        let hash = blake3::keyed_hash(&self.key, value.as_bytes()).to_hex();
        fmt::from_fn(move |f| f.write_str(&hash[..32]))
    }
}
