//! What a line says, in whatever format.

use std::fmt::{self, Display};

use sluicegate_core::algorithm::Reading;
use sluicegate_core::limit::Unit;
use sluicegate_core::{Charge, Decision, Limit, Money, Timestamp};

use super::sample::Share;
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

pub(super) const fn level(decision: &Decision) -> &'static str {
    if decision.is_allowed() { "INFO" } else { "WARN" }
}

/// When the store decided.
pub(super) const fn at(decision: &Decision) -> Timestamp {
    match decision {
        Decision::Allow(allow) => allow.at,
        Decision::Deny(deny) => deny.at,
        Decision::Never(never) => never.at,
    }
}

/// Why not, in one word, as the front doors say it.
pub(super) fn reason(decision: &Decision, rule: &str) -> impl Display {
    let verb = if matches!(decision, Decision::Never(_)) { "EXCEEDS" } else { "HIT" };
    fmt::from_fn(move |f| write!(f, "{verb}_{rule}_LIMIT"))
}

/// One limit, and what it showed.
#[derive(Clone, Copy)]
pub(super) struct Scope<'l> {
    pub(super) rule: &'l str,
    pub(super) shadow: bool,
    pub(super) limit: &'l Limit,
    pub(super) reading: Reading,
}

impl Scope<'_> {
    pub(super) fn limit_amount(&self) -> impl Display {
        amount(self.limit.amount().get(), self.limit.unit())
    }

    pub(super) fn used(&self) -> impl Display {
        amount(self.reading.used, self.limit.unit())
    }

    pub(super) fn remaining(&self) -> impl Display {
        amount(self.left(), self.limit.unit())
    }

    const fn left(&self) -> u64 {
        self.limit.amount().get().saturating_sub(self.reading.used)
    }
}

/// A number; of money, dollars as a decimal.
fn amount(number: u64, unit: Unit) -> impl Display {
    let money = Some(number).filter(|_| unit == Unit::Usd).and_then(Money::from_nanos);
    fmt::from_fn(move |f| match money {
        Some(money) => money.fmt(f),
        None => number.fmt(f),
    })
}

/// Every limit that was checked.
pub(super) fn scopes<'l>(decided: &'l Decided<'_, '_, '_>) -> impl Iterator<Item = Scope<'l>> {
    let readings = decided.decision.readings();
    decided.plan.scopes().zip(readings).map(|((charge, limit), &reading)| Scope {
        rule: &charge.rule().name,
        shadow: charge.shadow(),
        limit,
        reading,
    })
}

/// The limit that `remaining` and `windowResetAt` speak of: the one that hit, or else the one that
/// leaves least, of those that count requests if there are any.
pub(super) fn foremost<'l>(decided: &'l Decided<'_, '_, '_>) -> Option<Scope<'l>> {
    let hit = match decided.decision {
        Decision::Allow(_) => {
            let binding = scopes(decided).filter(|scope| !scope.shadow);
            return binding.min_by_key(|scope| {
                let unit = scope.limit.unit();
                (unit != Unit::Requests, unit, scope.left())
            });
        }
        Decision::Deny(deny) => deny.hit,
        Decision::Never(never) => never.hit,
    };
    let before = &decided.plan.charges()[..hit.charge];
    let before: usize = before.iter().map(|charge| charge.limits().len()).sum();
    scopes(decided).nth(before + hit.limit)
}

/// What was written by this decision: nothing by a peek or a replay, and no lease by a booking,
/// which takes it when it is claimed.
pub(super) fn written<'l, 'p>(
    decided: &'l Decided<'_, '_, 'p>,
) -> impl Iterator<Item = &'l Charge<'p>> {
    let first_time = matches!(decided.decision, Decision::Allow(allow) if !allow.replayed);
    decided.plan.charges().iter().filter(move |charge| {
        first_time
            && match decided.operation {
                Operation::Acquire => true,
                Operation::Book => charge.meter.bookable(),
                Operation::Peek => false,
            }
    })
}

/// The names of the shadow rules that would have denied an admission.
pub(super) fn shadowed<'l>(decided: &'l Decided<'_, '_, '_>) -> impl Iterator<Item = &'l str> {
    let indexes = match decided.decision {
        Decision::Allow(allow) => allow.shadowed.as_slice(),
        Decision::Deny(_) | Decision::Never(_) => &[],
    };
    let charges = decided.plan.charges();
    indexes.iter().map(|&index| charges[usize::from(index)].rule().name.as_str())
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
