//! Stores on one cluster, and rules whose counters lie in different slots.

use std::time::Duration;

use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::store::{Error, Unanswered};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Limit, Money, Plan, Span, Store};
use sluicegate_store::MonotonicClock;
use sluicegate_store::redis::{Options, Patience, Redis, Server, Topology};
use sluicegate_testkit::redis::RedisCluster;

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Much more patient than production, on a machine that is shared.
pub(crate) const PATIENCE: Patience =
    Patience { timeout: ms(1_000), retries: 2, deadline: ms(3_000) };

/// One node.
pub(crate) struct Bench {
    pub(crate) store: Redis,
    pub(crate) rules: Ruleset,
    clock: MonotonicClock,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) id: RequestId,
    pub(crate) user: &'static str,
    pub(crate) hold: Option<Span>,
    /// What it may cost, in nano-dollars.
    pub(crate) nanos: u64,
}

pub(crate) fn ours(id: u128) -> Ask {
    Ask { id: RequestId::ours(Id::from_bits(id)), user: "ann", hold: None, nanos: 0 }
}

pub(crate) fn of_caller(id: u128) -> Ask {
    Ask { id: RequestId::of_caller(Id::from_bits(id), RequestId::KEEP), ..ours(id) }
}

impl Ask {
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

pub(crate) fn seeds(cluster: &RedisCluster) -> Topology {
    let all = cluster.primaries.iter().chain(&cluster.replicas);
    Topology::Cluster(all.map(|server| Server::at("127.0.0.1", server.port)).collect())
}

impl Bench {
    /// A node whose rules keep what belongs to a user together.
    pub(crate) async fn by_user(topology: Topology, rules: &[(&str, &[&str])]) -> Self {
        let rule = |(name, limits): &(&str, &[&str])| {
            let limits = limits.iter().map(|text| text.parse::<Limit>().expect("a limit"));
            Group::new(*name, [Rule::new(*name, limits).per(&["user"])])
        };
        let partition = Some("user".to_owned());
        let settings = Settings { partition, ..Settings::default() };
        let rules = Ruleset::new(rules.iter().map(rule).collect(), settings).expect("rules");
        Self::under(topology, rules).await
    }

    /// A node under rules for everybody (`ALL`) and for each user (`USER`), if they have limits.
    pub(crate) async fn new(topology: Topology, all: &[&str], user: &[&str]) -> Self {
        let limits = |texts: &[&str]| -> Vec<Limit> {
            texts.iter().map(|text| text.parse().expect("a limit")).collect()
        };
        let rules = [Rule::new("ALL", limits(all)), Rule::new("USER", limits(user)).per(&["user"])];
        let rules = rules.into_iter().filter(|rule| !rule.limits.is_empty());
        let groups = rules.map(|rule| Group::new(rule.name.clone(), [rule])).collect();
        let rules = Ruleset::new(groups, Settings::default()).expect("rules");
        Self::under(topology, rules).await
    }

    /// A limit that counts under a literal key.
    pub(crate) async fn literal(topology: Topology, key: &str, limit: &str) -> Self {
        let limit = limit.parse::<Limit>().expect(limit);
        let rule = Rule { key: Some(key.to_owned()), ..Rule::new("LITERAL", [limit]) };
        let groups = vec![Group::new("g", [rule])];
        Self::under(topology, Ruleset::new(groups, Settings::default()).expect("rules")).await
    }

    async fn under(topology: Topology, rules: Ruleset) -> Self {
        let options = Options { patience: PATIENCE, ..Options::on(topology) };
        let store = Redis::new(options);
        assert!(store.wait_until_up(ms(10_000)).await, "no connection: {:?}", store.state());
        Self { store, rules, clock: MonotonicClock::new() }
    }

    /// Does something with the plan of a request.
    pub(crate) async fn with<T>(&self, ask: Ask, job: impl AsyncFnOnce(&Plan<'_>) -> T) -> T {
        let query = ask.query();
        let plan = self.rules.plan(&query, self.clock.now()).expect("a plan");
        job(&plan).await
    }

    pub(crate) async fn acquire(&self, ask: Ask) -> Result<Decision, Error> {
        let acquire = async |plan: &Plan<'_>| {
            let answer = self.store.acquire(plan).await;
            // As a limiter does whose outage policy denies.
            if let Err(Error::Unavailable(Unanswered { attempt: Some(attempt), .. })) = &answer {
                self.store.give_up(plan, *attempt);
            }
            answer
        };
        self.with(ask, acquire).await
    }

    /// What every limit shows for a user.
    pub(crate) async fn used(&self, user: &'static str) -> Vec<u64> {
        let usage = self.with(ours(0).by(user), async |plan| self.store.usage(plan).await).await;
        usage.expect("usage").readings.iter().map(|reading| reading.used).collect()
    }

    /// Waits until the limits show that: what was taken back, was so in the background.
    pub(crate) async fn shows(&self, user: &'static str, expected: &[u64]) {
        let mut last = Vec::new();
        for _ in 0..500 {
            last = self.used(user).await;
            if last == expected {
                return;
            }
            tokio::time::sleep(ms(10)).await;
        }
        panic!("{user}: {last:?} and not {expected:?}");
    }
}

/// Waits for something that nobody tells of.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if tokio::task::block_in_place(&holds) {
            return;
        }
        tokio::time::sleep(ms(20)).await;
    }
    panic!("waited too long until {what}");
}
