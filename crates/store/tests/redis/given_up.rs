//! Requests that were denied because Redis did not answer: none stays charged, however late its
//! call arrives.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::limiter::Verdict;
use sluicegate_core::outage::{OutagePolicies, OutagePolicy};
use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::store::Attempt;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Limit, Limiter, Span, Store};
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_store::redis::{Options, Redis, RedisEndpoint, RetryPolicy};
use sluicegate_store::{AnyStore, MonotonicClock};
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::wait::TIMEOUT;
use tokio::time::{sleep, timeout};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The production defaults.
const RETRY_POLICY: RetryPolicy = RetryPolicy { timeout: ms(20), retries: 1, deadline: ms(45) };

/// Number of replies that a test loses.
const CUT: u64 = 5;

/// Kind of request, which decides how it is charged.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Fast script: a log, and an id that the node made.
    Fast,
    /// Full script without a record: several algorithms.
    Once,
    /// With a record, because the caller chose the id.
    Named,
    /// With a record, because it has a hold; also a lease.
    Held,
    /// Full script with a token bucket, which gets charges back exactly only in the order in which
    /// they were made: it counts a charge that came later as if it had come earlier.
    Bucket,
}

impl Kind {
    /// The kinds whose charges can be returned in any order.
    const ANY_ORDER: [Self; 4] = [Self::Fast, Self::Once, Self::Named, Self::Held];
    const ALL: [Self; 5] = [Self::Fast, Self::Once, Self::Named, Self::Held, Self::Bucket];

    const fn limits(self) -> &'static [&'static str] {
        match self {
            Self::Fast => &["1000/h", "1000/day"],
            Self::Once | Self::Named => &["1000/h", "1000 tokens/h", "1000/calendar day"],
            Self::Bucket => &["1000/h", "1000/day burst 1000"],
            Self::Held => &["1000/h", "1000 tokens/h", "100 concurrent"],
        }
    }

    fn query(self, id: u128) -> Query<'static> {
        let id = Id::from_bits(id);
        let id = match self {
            Self::Named => RequestId::of_caller(id, RequestId::KEEP),
            _ => RequestId::ours(id),
        };
        let mut query = Query::new(id).with("user", "ann").expect("a value");
        query.cost = Cost { input_tokens: Some(1), ..Cost::default() };
        query.hold = matches!(self, Self::Held).then_some(Span::from_secs(60));
        query
    }
}

/// A node behind a network that fails on demand.
struct Node {
    server: RedisServer,
    proxy: FaultProxy,
    limiter: Limiter<AnyStore>,
    /// Looks into Redis without the network.
    witness: Redis,
    clock: MonotonicClock,
    kind: Kind,
}

impl Node {
    async fn new(kind: Kind, policy: OutagePolicy, retry: RetryPolicy) -> Self {
        let server = RedisServer::start(Version::System, &[]);
        let proxy = FaultProxy::start(server.port);
        let limits = kind.limits().iter().map(|text| text.parse::<Limit>().expect(text));
        let group = Group::new("g", [Rule::new("LIMIT", limits).per(&["user"])]);
        let outage = OutagePolicies { default: policy, ..OutagePolicies::default() };
        let rules = Ruleset::new(vec![group], Settings { outage, ..Settings::default() });
        let options = Options { retry, ..Options::new(RedisEndpoint::at("127.0.0.1", proxy.port)) };
        let patient = RetryPolicy { timeout: ms(5_000), retries: 1, deadline: ms(10_000) };
        let direct = Options::new(RedisEndpoint::at("127.0.0.1", server.port));
        let limiter = Limiter::new(rules.expect("rules"), Arc::new(Redis::new(options)).into())
            .with_fallback(Memory::new(Capacity::default()).into(), MonotonicClock::new());
        let witness = Redis::new(Options { retry: patient, ..direct });
        let node = Self { server, proxy, limiter, witness, clock: MonotonicClock::new(), kind };
        node.up().await;
        assert!(node.witness.wait_until_up(TIMEOUT).await, "no witness");
        node
    }

    fn redis(&self) -> &Redis {
        self.limiter.store().redis().expect("it is Redis")
    }

    async fn up(&self) {
        assert!(self.redis().wait_until_up(TIMEOUT).await, "no connection");
    }

    async fn ask(&self, id: u128) -> Verdict {
        let query = self.kind.query(id);
        let rules = self.limiter.rules();
        let plan = rules.plan(&query, self.clock.now()).expect("a plan");
        self.limiter.acquire(&plan).await.expect("a verdict")
    }

    async fn acquire(&self, id: u128) -> Decision {
        self.ask(id).await.decision
    }

    /// Acquires while the next reply of Redis is lost together with its connection. On a busy
    /// machine that may be the reply to a ping, and then the call succeeds.
    async fn cut_reply_of(&self, number: u64) -> Verdict {
        assert!(number < 1_000, "{:?}: no reply was lost", self.kind);
        self.up().await;
        self.proxy.cut_next_reply();
        self.ask(u128::from(number) + 1).await
    }

    /// Returns the used amount of every limit, as stored in Redis.
    async fn used(&self) -> Vec<u64> {
        let query = self.kind.query(0);
        let rules = self.limiter.rules();
        let plan = rules.plan(&query, self.clock.now()).expect("a plan");
        let usage = self.witness.usage(&plan).await.expect("usage");
        usage.readings.iter().map(|reading| reading.used).collect()
    }

    /// Waits until every limit shows this amount. Returns how long it took.
    async fn shows(&self, used: u64) -> Duration {
        let (began, expected) = (self.clock.now(), vec![used; self.kind.limits().len()]);
        let shows = async {
            while self.used().await != expected || self.redis().pending_rollbacks() > 0 {
                sleep(ms(1)).await;
            }
        };
        if timeout(TIMEOUT, shows).await.is_err() {
            panic!("{:?}: {:?} instead of {expected:?}", self.kind, self.used().await);
        }
        self.clock.now().since(began).into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_denied_while_replies_were_slow_is_not_charged() {
    for kind in Kind::ANY_ORDER {
        let node = Node::new(kind, OutagePolicy::Closed, RETRY_POLICY).await;
        node.proxy.delay(ms(60));
        for id in 1..=20 {
            let decision = node.acquire(id).await;
            assert!(matches!(decision, Decision::Closed(_)), "{kind:?} {id}: {decision:?}");
        }
        node.proxy.delay(Duration::ZERO);
        node.up().await;
        let took = node.shows(0).await;
        assert!(took < ms(1_000), "{kind:?} {took:?} after Redis answered again");
        assert_eq!(node.redis().skipped_rollbacks(), 0);
    }
}

/// Timeouts longer than a loaded machine needs, without retries.
const ONCE: RetryPolicy = RetryPolicy { timeout: ms(2_000), retries: 0, deadline: ms(5_000) };

#[tokio::test(flavor = "multi_thread")]
async fn a_request_denied_because_a_connection_was_killed_is_not_charged() {
    for kind in Kind::ANY_ORDER {
        let node = Node::new(kind, OutagePolicy::Closed, ONCE).await;
        let (mut allowed, mut denied) = (0, 0);
        while denied < CUT {
            let is_allowed = node.cut_reply_of(allowed + denied).await.decision.is_allowed();
            *if is_allowed { &mut allowed } else { &mut denied } += 1;
        }
        node.shows(allowed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_request_is_not_charged_when_the_next_one_is_decided() {
    for kind in Kind::ALL {
        let node = Node::new(kind, OutagePolicy::Closed, ONCE).await;
        let (mut allowed, mut denied) = (0, 0);
        while denied < CUT {
            let is_allowed = node.cut_reply_of(allowed + denied).await.decision.is_allowed();
            *if is_allowed { &mut allowed } else { &mut denied } += 1;
            node.shows(allowed).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_denied_while_redis_was_stopped_is_not_charged() {
    for kind in Kind::ANY_ORDER {
        let node = Node::new(kind, OutagePolicy::Closed, RETRY_POLICY).await;
        let stopped = node.server.stop();
        for id in 1..=20 {
            let decision = node.acquire(id).await;
            assert!(matches!(decision, Decision::Closed(_)), "{kind:?} {id}: {decision:?}");
        }
        drop(stopped);
        node.up().await;
        let took = node.shows(0).await;
        assert!(took < ms(1_000), "{kind:?} {took:?} after Redis answered again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_arrives_after_its_rollback_is_refused() {
    let once = RetryPolicy { retries: 0, ..RETRY_POLICY };
    for kind in Kind::ALL {
        let node = Node::new(kind, OutagePolicy::Closed, once).await;
        // Only calls that were rolled back are rejected by the fence.
        let is_refused =
            || node.server.command(&["INFO", "errorstats"]).contains("errorstat_FENCED");
        // On a busy machine, the time may be up before a call is sent, and then none comes late.
        for id in 1.. {
            assert!(id < 100, "{kind:?}: nothing came late");
            node.up().await;
            node.proxy.hold_requests();
            let decision = node.acquire(id).await;
            assert!(matches!(decision, Decision::Closed(_)), "{kind:?}: {decision:?}");
            node.up().await;
            node.shows(0).await;
            node.proxy.release_requests();
            let refused = async {
                while !is_refused() {
                    sleep(ms(1)).await;
                }
            };
            if timeout(ms(500), refused).await.is_ok() {
                break;
            }
        }
        node.shows(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_under_the_same_id_keeps_its_charge_and_the_id_stays_usable() {
    let node = Node::new(Kind::Named, OutagePolicy::Closed, ONCE).await;
    for id in 1..=20 {
        node.up().await;
        node.proxy.cut_next_reply();
        let first = node.acquire(id).await;
        // The rollback is running meanwhile, or is done.
        let retried = async {
            while !node.acquire(id).await.is_allowed() {
                sleep(ms(1)).await;
            }
        };
        timeout(TIMEOUT, retried).await.unwrap_or_else(|_| panic!("{id}: {first:?}"));
        assert!(node.acquire(id).await.is_allowed(), "{id} can be used again");
    }
    node.shows(20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_rollback_changes_nothing() {
    for kind in Kind::ALL {
        let node = Node::new(kind, OutagePolicy::Closed, ONCE).await;
        assert!(node.acquire(1).await.is_allowed() && node.acquire(2).await.is_allowed());
        let query = kind.query(3);
        let rules = node.limiter.rules();
        let plan = rules.plan(&query, node.clock.now()).expect("a plan");
        for _ in 0..3 {
            // An attempt that never arrived.
            node.redis().give_up(&plan, Attempt::Acquire(plan.id.id));
        }
        node.shows(2).await;
        assert!(node.acquire(3).await.is_allowed(), "{kind:?}");
        node.shows(3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admission_by_an_outage_policy_is_not_rolled_back() {
    for kind in Kind::ALL {
        let node = Node::new(kind, OutagePolicy::Unlimited, ONCE).await;
        let (mut by_store, mut by_policy) = (0, 0);
        // What was cut before Redis saw it is not charged; what Redis has done stays.
        while node.used().await.iter().any(|&used| used < by_store + CUT) {
            let verdict = node.cut_reply_of(by_store + by_policy).await;
            assert!(verdict.decision.is_allowed(), "{kind:?}");
            *if verdict.outage.is_none() { &mut by_store } else { &mut by_policy } += 1;
            assert_eq!(node.redis().pending_rollbacks(), 0);
        }
        let used = node.used().await;
        assert!(used.iter().all(|&used| used <= by_store + by_policy), "{kind:?} {used:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_request_is_rolled_back() {
    for kind in Kind::ALL {
        let node = Node::new(kind, OutagePolicy::Unlimited, ONCE).await;
        node.proxy.delay(ms(200));
        for id in 1..=5 {
            let gone = timeout(ms(20), node.acquire(id)).await;
            assert!(gone.is_err(), "{kind:?}: no answer can be there yet");
        }
        node.proxy.delay(Duration::ZERO);
        node.shows(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_booking_is_rolled_back() {
    let node = Node::new(Kind::Fast, OutagePolicy::Closed, ONCE).await;
    let (mut booked, mut failed, rules) = (0, 0, node.limiter.rules());
    while failed < CUT {
        assert!(booked < 1_000, "no reply was lost");
        let query = node.kind.query(u128::from(booked + failed));
        let plan = rules.plan(&query, node.clock.now()).expect("a plan");
        node.up().await;
        node.proxy.cut_next_reply();
        let is_booked = node.limiter.book(&plan).await.is_ok();
        *if is_booked { &mut booked } else { &mut failed } += 1;
    }
    node.shows(booked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rollbacks_are_bounded_and_skipped_ones_are_counted() {
    let node = Node::new(Kind::Fast, OutagePolicy::Closed, RETRY_POLICY).await;
    node.proxy.set(NetworkState::BlackHole);
    let (query, rules) = (node.kind.query(1), node.limiter.rules());
    let plan = rules.plan(&query, node.clock.now()).expect("a plan");
    for _ in 0..10_003 {
        node.redis().give_up(&plan, Attempt::Acquire(plan.id.id));
    }
    assert_eq!(node.redis().pending_rollbacks(), 10_000);
    assert_eq!(node.redis().skipped_rollbacks(), 3);
}
