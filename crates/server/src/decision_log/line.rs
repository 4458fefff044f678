//! Contents of a log line that both formats share.

use std::borrow::Cow;
use std::fmt::{self, Display};

use sluicegate_core::limit::Unit;
use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::{Charge, Decision, Money, Timestamp};

use super::LogProcess;
use crate::answer::{Answer, Scope};
use crate::service::{DecisionEvent, Operation};
use sluicegate_config::SampleRate;

/// Data that the log adds to a decision.
pub(super) struct Context<'l> {
    /// The time of this node.
    pub(super) now: Timestamp,
    pub(super) secrets: &'l SecretDimensions,
    /// The logged share of decisions of this kind.
    pub(super) share: SampleRate,
    /// Number of lines lost before this one.
    pub(super) dropped: u64,
    /// The process that writes the line.
    pub(super) process: &'l LogProcess,
}

/// Returns the source of an admission, for the field `decided`.
pub(super) const fn decided_by(answer: &Answer<'_, '_>, replayed: bool) -> &'static str {
    match answer.outage() {
        _ if replayed => "replay",
        None => "store",
        Some(OutagePolicy::Unlimited) => "unlimited",
        Some(_) => "fallback",
    }
}

pub(super) const fn level(answer: &Answer<'_, '_>) -> &'static str {
    if answer.is_allowed() { "INFO" } else { "WARN" }
}

/// Formats an amount; money as decimal dollars.
pub(super) fn amount(number: u64, unit: Unit) -> impl Display {
    let money = Some(number).filter(|_| unit == Unit::Usd).and_then(Money::from_nanos);
    fmt::from_fn(move |f| match money {
        Some(money) => money.fmt(f),
        None => number.fmt(f),
    })
}

/// Returns the limit that `remaining` and `windowResetAt` refer to: the one that was hit, or else
/// the tightest.
pub(super) fn shown_limit<'a, 'p>(answer: &Answer<'a, 'p>) -> Option<Scope<'a, 'p>> {
    if answer.is_allowed() { answer.tightest() } else { answer.hit() }
}

/// Returns the charges of an admission with their positions. A booking charges no slots; its claim
/// does. A replay and a claim repeat the earlier charges, because the earlier answer may have been
/// lost.
pub(super) fn charged<'a, 'p>(
    event: &DecisionEvent<'a, '_, 'p>,
) -> impl Iterator<Item = (usize, &'a Charge<'p>)> {
    let booking = event.operation == Operation::Book;
    let charges = event.answer.plan().charges().iter().enumerate();
    charges.filter(move |(_, charge)| !charge.is_gate() && (!booking || charge.is_booked()))
}

/// Returns the names of the shadow rules that would have denied an admission.
pub(super) fn shadowed<'a>(answer: &Answer<'a, '_>) -> impl Iterator<Item = &'a str> {
    let indexes = match answer.decision() {
        Decision::Allow(allow) => allow.shadowed.as_slice(),
        Decision::Deny(_) | Decision::Never(_) | Decision::Closed(_) => &[],
    };
    let charges = answer.plan().charges();
    let rules = indexes.iter().map(|&index| charges[usize::from(index)].rule());
    rules.filter(|rule| rule.shadow).map(|rule| rule.name.as_str())
}

/// A dimension that is always secret.
pub(super) const API_KEY: &str = "apiKey";

/// The dimensions whose values are hashed in the log, and the key of the hash.
pub(crate) struct SecretDimensions {
    dimensions: Vec<String>,
    key: [u8; 32],
}

impl SecretDimensions {
    pub(crate) fn new(dimensions: Vec<String>, key: [u8; 32]) -> Self {
        Self { dimensions, key }
    }

    pub(super) fn has(&self, dimension: &str) -> bool {
        dimension == API_KEY || self.dimensions.iter().any(|secret| secret == dimension)
    }

    /// Returns the value as it may be shown: a secret one as its hash.
    pub(crate) fn shown<'v>(&self, dimension: &str, value: &'v str) -> Cow<'v, str> {
        if self.has(dimension) {
            return Cow::Owned(self.hash(value).to_string());
        }
        Cow::Borrowed(value)
    }

    /// Returns 32 hexadecimal digits that are equal for equal values, as in the keys of counters.
    pub(super) fn hash(&self, value: &str) -> impl Display {
        let hash = blake3::keyed_hash(&self.key, value.as_bytes()).to_hex();
        fmt::from_fn(move |f| f.write_str(&hash[..32]))
    }
}
