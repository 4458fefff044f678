//! [`Callers`]: the most frequent and most denied callers, and the keys closest to their limits.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt::Write as _;

use sluicegate_core::limit::Unit;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Decision, Limit};
use sluicegate_service::series::{ClosestKeys, HeavyHitters, HitterWeight, KeyOrder, KeyUsage};

use crate::decision_log::SecretDimensions;
use crate::service::{DecisionEvent, Operation};

/// Counters per dimension.
const COUNTERS: usize = 1_000;
/// Maximum number of keys that are compared by their used share.
const KEYS_MAX: usize = 1_000;
/// Number of keys of each dimension that are shown in any case.
const OF_EACH: usize = 15;
/// Length of a period. The dashboard shows the callers of the current period and of the one before.
const PERIOD: Span = Span::from_secs(300);

/// A dimension whose callers are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerDimension {
    /// Users.
    User,
    /// Tenants.
    Tenant,
    /// Models.
    Model,
    /// API keys, shown as hashes.
    Key,
}

impl CallerDimension {
    /// All dimensions.
    pub const ALL: [Self; 4] = [Self::User, Self::Tenant, Self::Model, Self::Key];

    /// Returns the name of the dimension in a query.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "userId",
            Self::Tenant => "tenantId",
            Self::Model => "modelId",
            Self::Key => "apiKey",
        }
    }
}

/// The ranked callers of a process.
#[derive(Debug)]
pub(super) struct Callers {
    since: Timestamp,
    before_since: Timestamp,
    current: [RankedDimension; CallerDimension::ALL.len()],
    before: [RankedDimension; CallerDimension::ALL.len()],
    closest: ClosestKeys,
    /// Budgets, apart from the other limits, so that they are shown also while little is spent.
    budgets: ClosestKeys,
    /// Budgets by the money that was spent of them, so that large ones are shown that are hardly used.
    spent: ClosestKeys,
    key: String,
}

#[derive(Clone, Debug)]
struct RankedDimension {
    requested: HeavyHitters,
    denied: HeavyHitters,
}

impl RankedDimension {
    fn new() -> Self {
        Self { requested: HeavyHitters::new(COUNTERS), denied: HeavyHitters::new(COUNTERS) }
    }
}

/// The top of all rankings at a time.
#[derive(Clone, Debug)]
pub struct TopCallers {
    /// Start of the interval that the counts are from.
    pub since: Timestamp,
    /// Rankings by dimension.
    pub dimensions: Vec<RankedCallers>,
    /// The keys with the largest used shares, the largest first.
    pub closest: Vec<KeyUsage>,
    /// The limits on money: those with the largest spend, and those with the largest used share. The
    /// largest spend is first.
    pub budgets: Vec<KeyUsage>,
}

/// The most frequent and most denied callers of a dimension.
#[derive(Clone, Debug)]
pub struct RankedCallers {
    /// The dimension.
    pub dimension: CallerDimension,
    /// Callers by requests: value, requests, denials, maximum error.
    pub requested: Vec<RankedCaller>,
    /// Callers by denials.
    pub denied: Vec<RankedCaller>,
}

/// A caller in a ranking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankedCaller {
    /// The value of the dimension; a hash if it is secret.
    pub value: String,
    /// Number that the ranking is sorted by: requests or denials.
    pub count: u64,
    /// Denials.
    pub denied: u64,
    /// Maximum error of the count.
    pub error: u64,
}

impl Callers {
    pub(super) fn new(now: Timestamp) -> Self {
        let dimensions = || CallerDimension::ALL.map(|_| RankedDimension::new());
        Self {
            since: now,
            before_since: now,
            current: dimensions(),
            before: dimensions(),
            closest: ClosestKeys::new(KEYS_MAX, KeyOrder::Share),
            budgets: ClosestKeys::new(KEYS_MAX, KeyOrder::Share),
            spent: ClosestKeys::new(KEYS_MAX, KeyOrder::Amount),
            key: String::new(),
        }
    }

    /// Starts a new period, if the current one is over.
    pub(super) fn rotate(&mut self, now: Timestamp) {
        if now.since(self.since) >= PERIOD {
            let next = CallerDimension::ALL.map(|_| RankedDimension::new());
            self.before = std::mem::replace(&mut self.current, next);
            self.before_since = std::mem::replace(&mut self.since, now);
        }
    }

    /// Records a decision that stands for `weight` decisions.
    pub(super) fn record(
        &mut self,
        event: &DecisionEvent<'_, '_, '_>,
        weight: u64,
        now: Timestamp,
        secrets: &SecretDimensions,
    ) {
        let denied = if event.answer.is_allowed() { 0 } else { weight };
        for (dimension, ranked) in CallerDimension::ALL.iter().zip(&mut self.current) {
            let Some(value) = event.query.get(dimension.name()) else { continue };
            let value = secrets.shown(dimension.name(), value);
            ranked.requested.add(&value, HitterWeight { total: weight, denied });
            if denied > 0 {
                ranked.denied.add(&value, HitterWeight { total: denied, denied });
            }
        }
        // Time until the start of a booking, because its window begins only then.
        let ahead = match event.answer.decision() {
            Decision::Allow(allow) => allow.start.since(allow.at),
            _ => Span::ZERO,
        };
        for scope in event.answer.scopes() {
            let (charged, amount) = (scope.reading.used, scope.amount());
            if charged == 0 || matches!(scope.limit, Limit::Banned { .. }) {
                continue;
            }
            self.key.clear();
            let _ = write!(self.key, "{} {}", scope.charge.key, scope.text);
            if scope.charge.shadow() || scope.charge.rule().spreads {
                // It denies nobody.
                continue;
            }
            let is_budget = scope.limit.unit() == Unit::Usd;
            let tables: &mut [&mut ClosestKeys] = if is_budget {
                &mut [&mut self.budgets, &mut self.spent]
            } else {
                &mut [&mut self.closest]
            };
            if !tables.iter().any(|keys| keys.takes(&self.key, charged, amount)) {
                continue;
            }
            let rule = scope.charge.rule();
            let dimensions = rule.per.iter().filter_map(|name| {
                let value = secrets.shown(name, event.query.get(name)?);
                Some((name.clone(), value.into_owned()))
            });
            let lasts = match scope.limit {
                Limit::Concurrent(_) => rule.lease,
                _ => scope.limit.window(),
            };
            let usage = KeyUsage {
                rule: rule.name.clone(),
                limit_text: scope.text.to_owned(),
                dimensions: dimensions.collect(),
                charged,
                has_bookings: event.operation == Operation::Book,
                limit: amount,
                unit: scope.limit.unit().name(),
                at: now,
                first: (now, charged),
                reset: scope.reading.reset,
                ends: now + ahead + lasts,
            };
            for keys in tables {
                keys.record(&self.key, usage.clone());
            }
        }
    }

    /// Returns the top of all rankings.
    pub(super) fn top(&self, now: Timestamp, count: usize) -> TopCallers {
        let dimensions = CallerDimension::ALL.iter().zip(self.before.iter().zip(&self.current));
        let dimensions = dimensions.map(|(&dimension, (before, current))| RankedCallers {
            dimension,
            requested: top_of(&before.requested, &current.requested, count),
            denied: top_of(&before.denied, &current.denied, count),
        });
        TopCallers {
            since: self.before_since,
            dimensions: dimensions.collect(),
            closest: first_of_each(self.closest.top(now, usize::MAX), count)
                .into_iter()
                .cloned()
                .collect(),
            budgets: self.top_budgets(now, count),
        }
    }

    /// Returns the budgets with the largest spend and those with the largest used share, up to `count`
    /// of each, the largest spend first.
    fn top_budgets(&self, now: Timestamp, count: usize) -> Vec<KeyUsage> {
        let mut budgets = first_of_each(self.spent.top(now, usize::MAX), count);
        let by_spend: HashSet<_> = budgets.iter().map(|usage| usage.identity()).collect();
        let by_share = self.budgets.top(now, count).into_iter();
        budgets.extend(by_share.filter(|usage| !by_spend.contains(&usage.identity())));
        budgets.sort_by_key(|usage| Reverse(usage.used()));
        budgets.into_iter().cloned().collect()
    }
}

/// Returns the first `count` usages, and further ones that are among the first of a dimension: many users
/// that are close to their limits hide no tenant.
fn first_of_each(usages: Vec<&KeyUsage>, count: usize) -> Vec<&KeyUsage> {
    let mut found = [0; CallerDimension::ALL.len()];
    let mut place = 0;
    let is_first = |usage: &&KeyUsage| {
        place += 1;
        let mut is_first = place <= count;
        for (dimension, found) in CallerDimension::ALL.iter().zip(&mut found) {
            if usage.dimensions.iter().any(|(name, _)| name == dimension.name()) {
                *found += 1;
                is_first |= *found <= count.min(OF_EACH);
            }
        }
        is_first
    };
    usages.into_iter().filter(is_first).collect()
}

/// Returns the most frequent values of two periods. It merges only the top values of each period,
/// because decisions are blocked while the sketches are read.
fn top_of(before: &HeavyHitters, current: &HeavyHitters, count: usize) -> Vec<RankedCaller> {
    let mut values: Vec<_> =
        before.top(2 * count).chain(current.top(2 * count)).map(|hit| hit.value).collect();
    values.sort_unstable();
    values.dedup();
    let mut ranked: Vec<_> = values
        .into_iter()
        .map(|value| {
            let mut sum = RankedCaller { value: value.to_owned(), count: 0, denied: 0, error: 0 };
            for hit in [before.get(value), current.get(value)].into_iter().flatten() {
                sum.count += hit.weight.total;
                sum.denied += hit.weight.denied;
                sum.error += hit.error;
            }
            sum
        })
        .collect();
    ranked.sort_by(|one, other| {
        other.count.cmp(&one.count).then_with(|| one.value.cmp(&other.value))
    });
    ranked.truncate(count);
    ranked
}
