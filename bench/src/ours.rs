//! Sluicegate as a benchmarked limiter: values → Query → Plan → Decision.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sluicegate_core::query::RequestId;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::store::Store;
use sluicegate_core::{Decision, Group, Id, Limit, Plan, Query, Rule, Ruleset};
use sluicegate_store::memory::Capacity;
use sluicegate_store::{Memory, MonotonicClock};

use crate::limiter::Limiter;
use crate::scope::{Mode, Quota, SCOPES};
use crate::traffic::User;

/// Algorithm of the limits of a scenario.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// An exact log, the default of a rule.
    Exact,
    /// A token bucket, as governor and throttlecrab use.
    Bucket,
}

/// A memory store with one group per scope. Each group has one rule.
pub(crate) struct Sluicegate {
    ruleset: Ruleset,
    clock: MonotonicClock,
    store: Memory,
    /// True if a scope counts per tenant: every scenario with more than one scope.
    tenants: bool,
}

impl Sluicegate {
    pub(crate) fn new(scopes: usize, mode: Mode, shape: Shape) -> Self {
        let group = |scope: crate::scope::Scope| {
            let quota = scope.quota(mode);
            let limit = match shape {
                Shape::Exact => Quota::exact(quota),
                Shape::Bucket => Quota::bucket(quota),
            };
            Group::new(scope.name(), [rule(scope.name(), scope.per(), &limit)])
        };
        let clock = MonotonicClock::new();
        Self {
            ruleset: ruleset(SCOPES.into_iter().take(scopes).map(group).collect()),
            clock,
            store: Memory::with_clock(Capacity::default(), clock),
            tenants: scopes > 1,
        }
    }
}

impl Limiter for Sluicegate {
    fn asker(&self, _threads: usize) -> impl FnMut(&User) -> bool {
        let mut ids = Ids::new();
        move |user| {
            let mut query = Query::new(ids.next());
            let mut insert = |name, value| {
                let inserted = query.insert(name, value);
                inserted.expect("the values of the users are valid");
            };
            insert("userId", user.user);
            insert("modelId", user.model);
            if self.tenants {
                insert("tenantId", user.tenant);
            }
            let plan = self.ruleset.plan(&query, self.clock);
            let plan = plan.expect("every rule takes one request");
            acquire(&self.store, &plan).is_allowed()
        }
    }
}

/// Generates unique request ids in negligible time.
pub(crate) struct Ids(u128);

impl Ids {
    pub(crate) fn new() -> Self {
        Self(fastrand::u128(..))
    }

    pub(crate) fn next(&mut self) -> RequestId {
        self.0 = self.0.wrapping_add(1);
        RequestId::ours(Id::from_bits(self.0))
    }
}

/// Creates a rule with one limit.
pub(crate) fn rule(name: &str, per: &[&str], limit: &str) -> Rule {
    Rule::new(name, [limit.parse::<Limit>().expect(limit)]).per(per)
}

/// Compiles a ruleset with the default settings.
pub(crate) fn ruleset(groups: Vec<Group>) -> Ruleset {
    Ruleset::new(groups, Settings::default()).expect("the rules of the benchmark compile")
}

/// Calls `acquire` on a memory store, whose future is ready at the first poll.
pub(crate) fn acquire(store: &impl Store, plan: &Plan<'_>) -> Decision {
    let mut answer = pin!(store.acquire(plan));
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision.expect("a store in memory always answers"),
        Poll::Pending => unreachable!("a store in memory never waits"),
    }
}
