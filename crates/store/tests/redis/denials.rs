//! The denial cache under floods of denied requests, and the events that invalidate it.

use std::time::Duration;

use sluicegate_core::query::{Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Limit, Plan, Store};
use sluicegate_store::MonotonicClock;
use sluicegate_store::redis::{Options, Redis, RedisEndpoint, RetryPolicy};
use sluicegate_testkit::redis::{RedisServer, Version};

const RETRY_POLICY: RetryPolicy =
    RetryPolicy { timeout: Duration::from_secs(2), retries: 1, deadline: Duration::from_secs(5) };

/// One of the nodes that share a server.
struct Node {
    store: Redis,
    clock: MonotonicClock,
    next: std::cell::Cell<u128>,
}

impl Node {
    fn new(server: &RedisServer, number: u128) -> Self {
        let options = Options::new(RedisEndpoint::at("127.0.0.1", server.port));
        let store = Redis::new(Options { retry: RETRY_POLICY, ..options });
        Self { store, clock: MonotonicClock::new(), next: (number << 64).into() }
    }

    async fn with<T>(&self, limit: &str, run: impl AsyncFnOnce(&Redis, &Plan<'_>) -> T) -> T {
        let rule = Rule::new("LIMIT", [limit.parse::<Limit>().expect("a limit")]).per(&["user"]);
        let rules = vec![Group::new("g", [rule])];
        let rules = Ruleset::new(rules, Settings::default()).expect("rules");
        self.next.set(self.next.get() + 1);
        let id = RequestId::ours(Id::from_bits(self.next.get()));
        let query = Query::new(id).with("user", "ann").expect("a value");
        let plan = rules.plan(&query, self.clock.now()).expect("a plan");
        run(&self.store, &plan).await
    }

    async fn acquire(&self, limit: &str) -> Decision {
        self.with(limit, async |store, plan| store.acquire(plan).await).await.expect("a decision")
    }

    /// Uses a limit up, so that the node caches the denial.
    async fn fill(&self, limit: &str) {
        while self.acquire(limit).await.is_allowed() {}
    }

    /// Returns the number of acquire calls that Redis got.
    fn asked(&self) -> u64 {
        let counted = self.store.operation_stats();
        let acquire = counted.iter().find(|counted| counted.operation == "acquire");
        acquire.map_or(0, |acquire| acquire.took.iter().map(|(_, took)| took).sum())
    }
}

#[tokio::test]
async fn a_flood_of_denials_causes_few_redis_calls() {
    let server = RedisServer::start(Version::System, &[]);
    let node = Node::new(&server, 1);
    let began = node.clock.now();
    node.fill("5/min").await;
    let Decision::Deny(first) = node.acquire("5/min").await else { panic!("it is full") };
    for _ in 0..5_000 {
        let Decision::Deny(deny) = node.acquire("5/min").await else { panic!("it is full") };
        assert_eq!(
            (deny.start, deny.hit, deny.readings.as_slice()),
            (first.start, first.hit, first.readings.as_slice())
        );
        assert!(deny.at >= first.at && deny.at < deny.start);
    }
    // Six calls that filled it, and one more for every second that this takes.
    let seconds = node.clock.now().since(began).as_micros() / 1_000_000;
    assert!(node.asked() <= 7 + seconds, "{} questions in {seconds} s", node.asked());
    assert!(node.store.denials_from_cache() >= 4_990);
}

#[tokio::test]
async fn a_retry_at_the_announced_time_is_admitted() {
    let server = RedisServer::start(Version::System, &[]);
    let node = Node::new(&server, 1);
    for limit in ["4/s burst 1", "1/250ms"] {
        node.fill(limit).await;
        let Decision::Deny(deny) = node.acquire(limit).await else { continue };
        tokio::time::sleep(deny.start.since(deny.at).into()).await;
        assert!(node.acquire(limit).await.is_allowed(), "{limit}");
    }
}

#[tokio::test]
async fn a_reset_a_refund_and_another_limit_are_seen_at_once() {
    let server = RedisServer::start(Version::System, &[]);
    let node = Node::new(&server, 1);
    for limit in ["5/min", "5/min windowed", "5/h burst 5"] {
        node.fill(limit).await;
        node.with(limit, async |store, plan| store.reset(plan).await).await.expect("a reset");
        assert!(node.acquire(limit).await.is_allowed(), "{limit}");
        node.fill(limit).await;
        node.with(limit, async |store, plan| store.refund(plan).await).await.expect("a refund");
        assert!(node.acquire(limit).await.is_allowed(), "{limit}");
        assert!(!node.acquire(limit).await.is_allowed(), "{limit}");
    }
    // As after a reload, or with an override.
    assert!(node.acquire("6/min").await.is_allowed());
    assert!(node.acquire("6/min windowed").await.is_allowed());
}

#[tokio::test]
async fn usage_that_another_node_returns_is_seen_within_a_second() {
    let server = RedisServer::start(Version::System, &[]);
    let (node, other) = (Node::new(&server, 1), Node::new(&server, 2));
    node.fill("5/h").await;
    other.with("5/h", async |store, plan| store.reset(plan).await).await.expect("a reset");
    let began = node.clock.now();
    while !node.acquire("5/h").await.is_allowed() {
        assert!(node.clock.now().since(began).as_micros() < 3_000_000, "it is still denied");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
