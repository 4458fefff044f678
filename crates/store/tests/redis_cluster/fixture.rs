//! Test nodes on one cluster, under rules whose counters lie in different slots.

use std::time::Duration;

use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::store::{Error, StoreFailure};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Limit, Money, Plan, Span, Store};
use sluicegate_store::MonotonicClock;
use sluicegate_store::redis::{Options, Redis, RedisEndpoint, RedisTopology, RetryPolicy};
use sluicegate_testkit::redis::RedisCluster;
use sluicegate_testkit::wait::{TIMEOUT, eventually_ok};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Much longer timeouts than the defaults, because the machine is shared.
pub(crate) const RETRY_POLICY: RetryPolicy =
    RetryPolicy { timeout: ms(1_000), retries: 2, deadline: ms(3_000) };

/// One node.
pub(crate) struct Fixture {
    pub(crate) store: Redis,
    pub(crate) rules: Ruleset,
    clock: MonotonicClock,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestRequest {
    pub(crate) id: RequestId,
    pub(crate) user: &'static str,
    pub(crate) hold: Option<Span>,
    /// Maximum cost in nano-dollars.
    pub(crate) nanos: u64,
}

pub(crate) fn ours(id: u128) -> TestRequest {
    TestRequest { id: RequestId::ours(Id::from_bits(id)), user: "ann", hold: None, nanos: 0 }
}

pub(crate) fn of_caller(id: u128) -> TestRequest {
    TestRequest { id: RequestId::of_caller(Id::from_bits(id), RequestId::KEEP), ..ours(id) }
}

impl TestRequest {
    pub(crate) fn by(self, user: &'static str) -> Self {
        Self { user, ..self }
    }

    pub(crate) fn hold(self, seconds: u64) -> Self {
        Self { hold: Some(Span::from_secs(seconds)), ..self }
    }

    pub(crate) fn money(self, nanos: u64) -> Self {
        Self { nanos, ..self }
    }

    fn query(self) -> Query<'static> {
        let mut query = Query::new(self.id).with("user", self.user).expect("a value");
        let money = Money::from_nanos(self.nanos);
        query.cost = Cost { input_tokens: Some(1), money, ..Cost::default() };
        query.hold = self.hold;
        query
    }
}

pub(crate) fn seeds(cluster: &RedisCluster) -> RedisTopology {
    let all = cluster.primaries.iter().chain(&cluster.replicas);
    RedisTopology::Cluster(all.map(|server| RedisEndpoint::at("127.0.0.1", server.port)).collect())
}

impl Fixture {
    /// Returns a node whose rules keep all counters of a user in one slot.
    pub(crate) async fn by_user(topology: RedisTopology, rules: &[(&str, &[&str])]) -> Self {
        let rule = |(name, limits): &(&str, &[&str])| {
            let limits = limits.iter().map(|text| text.parse::<Limit>().expect("a limit"));
            Group::new(*name, [Rule::new(*name, limits).per(&["user"])])
        };
        let partition = Some("user".to_owned());
        let settings = Settings { partition, ..Settings::default() };
        let rules = Ruleset::new(rules.iter().map(rule).collect(), settings).expect("rules");
        Self::under(topology, rules).await
    }

    /// Returns a node with limits for all users together (`ALL`) and for each user (`USER`).
    pub(crate) async fn new(topology: RedisTopology, all: &[&str], user: &[&str]) -> Self {
        let limits = |texts: &[&str]| -> Vec<Limit> {
            texts.iter().map(|text| text.parse().expect("a limit")).collect()
        };
        let rules = [Rule::new("ALL", limits(all)), Rule::new("USER", limits(user)).per(&["user"])];
        let rules = rules.into_iter().filter(|rule| !rule.limits.is_empty());
        let groups = rules.map(|rule| Group::new(rule.name.clone(), [rule])).collect();
        let rules = Ruleset::new(groups, Settings::default()).expect("rules");
        Self::under(topology, rules).await
    }

    /// Returns a node with a limit under a literal key.
    pub(crate) async fn literal(topology: RedisTopology, key: &str, limit: &str) -> Self {
        let limit = limit.parse::<Limit>().expect(limit);
        let rule = Rule { key: Some(key.to_owned()), ..Rule::new("LITERAL", [limit]) };
        let groups = vec![Group::new("g", [rule])];
        Self::under(topology, Ruleset::new(groups, Settings::default()).expect("rules")).await
    }

    async fn under(topology: RedisTopology, rules: Ruleset) -> Self {
        // Without the cache of denials, so that every decision comes from the cluster.
        let deny_cache = Duration::ZERO;
        let options = Options { retry: RETRY_POLICY, deny_cache, ..Options::on(topology) };
        let store = Redis::new(options);
        assert!(store.wait_until_up(TIMEOUT).await, "no connection: {:?}", store.state());
        Self { store, rules, clock: MonotonicClock::new() }
    }

    /// Runs an operation on the plan of a request.
    pub(crate) async fn with<T>(
        &self,
        ask: TestRequest,
        job: impl AsyncFnOnce(&Plan<'_>) -> T,
    ) -> T {
        let query = ask.query();
        let plan = self.rules.plan(&query, self.clock.now()).expect("a plan");
        job(&plan).await
    }

    pub(crate) async fn acquire(&self, ask: TestRequest) -> Result<Decision, Error> {
        let acquire = async |plan: &Plan<'_>| {
            let answer = self.store.acquire(plan).await;
            // A limiter whose outage policy denies does the same.
            if let Err(Error::Unavailable(StoreFailure { attempt: Some(attempt), .. })) = &answer {
                self.store.give_up(plan, *attempt);
            }
            answer
        };
        self.with(ask, acquire).await
    }

    /// Returns the used amount of every limit for a user.
    pub(crate) async fn used(&self, user: &'static str) -> Vec<u64> {
        let usage = self.with(ours(0).by(user), async |plan| self.store.usage(plan).await).await;
        usage.expect("usage").readings.iter().map(|reading| reading.used).collect()
    }

    /// Waits until the limits show these amounts, because rollbacks run in the background.
    pub(crate) async fn shows(&self, user: &'static str, expected: &[u64]) {
        eventually_ok(async || match self.used(user).await {
            used if used == expected => Ok(()),
            used => Err(format!("{user}: {used:?} and not {expected:?}")),
        })
        .await;
    }
}

/// Polls a condition that has no event to wait for.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    eventually_ok(async || if holds() { Ok(()) } else { Err(format!("not yet: {what}")) }).await;
}
