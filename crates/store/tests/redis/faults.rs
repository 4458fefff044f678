//! Failures of Redis and of the network to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_core::query::{Cost, Pacing, Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::store::{Claim, Error, StoreFailure};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Limit, Store};
use sluicegate_store::MonotonicClock;
use sluicegate_store::redis::{ConnectionState, Options, Redis, RedisEndpoint, RetryPolicy};
use sluicegate_testkit::delay_proxy::DelayProxy;
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::wait::{TIMEOUT, eventually_async, eventually_is_async};
use tokio::time::{sleep, timeout};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Ten times the default timeouts, because the machine is shared.
const RETRY_POLICY: RetryPolicy = RetryPolicy { timeout: ms(200), retries: 1, deadline: ms(450) };
/// For tests that are not about time: a retry succeeds however busy the machine is.
const PATIENT: RetryPolicy = RetryPolicy { timeout: ms(1_000), retries: 3, deadline: ms(20_000) };
/// Longer than any reply may take.
const LATE: Duration = ms(2_000);

struct Fixture {
    store: Redis,
    rules: Ruleset,
    clock: MonotonicClock,
    /// Time by which every call has its answer.
    late: Duration,
}

impl Fixture {
    fn new(port: u16, limits: &[&str]) -> Self {
        Self::with_retry(port, limits, RETRY_POLICY)
    }

    fn with_retry(port: u16, limits: &[&str], retry: RetryPolicy) -> Self {
        let limits = limits.iter().map(|text| text.parse::<Limit>().expect(text));
        let group = Group::new("g", [Rule::new("LIMIT", limits).per(&["user"])]);
        let options = Options { retry, ..Options::new(RedisEndpoint::at("127.0.0.1", port)) };
        Self {
            store: Redis::new(options),
            rules: Ruleset::new(vec![group], Settings::default()).expect("rules"),
            clock: MonotonicClock::new(),
            late: LATE.max(2 * retry.deadline),
        }
    }

    fn query(id: RequestId) -> Query<'static> {
        let mut query = Query::new(id).with("user", "ann").expect("a value");
        query.cost = Cost { input_tokens: Some(1), ..Cost::default() };
        query
    }

    async fn acquire(&self, id: RequestId) -> Result<Decision, Error> {
        let query = Self::query(id);
        let plan = self.rules.plan(&query, self.clock.now()).expect("a plan");
        timeout(self.late, self.store.acquire(&plan)).await.expect("an answer inside the deadline")
    }

    async fn used(&self) -> Vec<u64> {
        let query = Self::query(ours(0));
        let plan = self.rules.plan(&query, self.clock.now()).expect("a plan");
        let usage = self.store.usage(&plan).await.expect("usage");
        usage.readings.iter().map(|reading| reading.used).collect()
    }

    async fn up(&self) {
        assert!(self.store.wait_until_up(TIMEOUT).await, "Redis is back, and we are not");
    }
}

fn ours(id: u128) -> RequestId {
    RequestId::ours(Id::from_bits(id))
}

fn of_caller(id: u128) -> RequestId {
    RequestId::of_caller(Id::from_bits(id), RequestId::KEEP)
}

/// Drops every third reply after its commit. All requests are admitted, and each is counted once.
async fn lost_replies_are_counted_once(limits: &[&str], id: impl Fn(u128) -> RequestId) {
    let server = RedisServer::start(Version::System, &[]);
    let proxy = FaultProxy::start(server.port);
    let fixture = Fixture::with_retry(proxy.port, limits, PATIENT);
    fixture.up().await;
    for n in 1..=60 {
        match n % 30 {
            0 => proxy.swallow_next_reply(),
            n if n % 3 == 0 => proxy.cut_next_reply(),
            _ => {}
        }
        let decision = fixture.acquire(id(n)).await.unwrap_or_else(|error| panic!("{n}: {error}"));
        assert!(decision.is_allowed(), "{n}: {decision:?}");
    }
    assert_eq!(proxy.lost(), 20);
    // The ping of an idle connection may lose its reply too.
    assert!(fixture.store.traffic().retries >= 15);
    let used = fixture.used().await;
    assert_eq!(used, vec![60; limits.len()], "{limits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_counts_a_lost_reply_once() {
    lost_replies_are_counted_once(&["60/h", "60/day"], ours).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_and_buckets_count_a_lost_reply_once() {
    let limits = ["60 tokens/h", "60/calendar month", "60/day burst 60"];
    lost_replies_are_counted_once(&limits, ours).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_a_caller_counts_a_lost_reply_once() {
    lost_replies_are_counted_once(&["60/h", "60 tokens/h"], of_caller).await;
}

/// The store's clock moves on between an attempt and its retry. `at` is the time of the answer, and
/// `start` the time that the counter contains.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_does_not_move_the_time_of_its_charge() {
    // The first limits are decided by the fast script, the others by the full one.
    for limits in [&["60/h", "60/day"][..], &["60/h", "60 tokens/h"]] {
        let server = RedisServer::start(Version::System, &[]);
        let proxy = FaultProxy::start(server.port);
        let fixture = Fixture::with_retry(proxy.port, limits, PATIENT);
        fixture.up().await;
        let mut starts = Vec::new();
        for n in 1..=6 {
            if n % 2 == 0 {
                proxy.cut_next_reply();
            }
            let retries = fixture.store.traffic().retries;
            let decision = fixture.acquire(ours(n)).await.expect("a decision");
            let Decision::Allow(allow) = decision else { panic!("{limits:?}: {decision:?}") };
            // The proxy may have cut off a ping instead.
            if fixture.store.traffic().retries == retries {
                assert_eq!(allow.start, allow.at, "{limits:?}");
            }
            assert!(!allow.replayed && allow.start <= allow.at, "{limits:?}: {allow:?}");
            starts.push((allow.start.as_micros(), allow.at.as_micros()));
        }
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port));
        let mut connection = client.expect("an address").get_connection().expect("a connection");
        let mut range = redis::cmd("ZRANGE");
        range.arg("sg:{LIMIT:ann#requests}").arg(0).arg(-1).arg("WITHSCORES");
        let entries: Vec<(Vec<u8>, u64)> = range.query(&mut connection).expect("entries");
        let entries: Vec<_> = entries.into_iter().map(|(_, score)| score).collect();
        let charged: Vec<_> = starts.iter().map(|(start, _)| *start).collect();
        assert_eq!(charged, entries, "{limits:?}");
        assert!(starts.iter().any(|(start, at)| start < at), "{limits:?}: no retry: {starts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_whose_reply_is_lost_is_given_back_once() {
    let server = RedisServer::start(Version::System, &[]);
    let proxy = FaultProxy::start(server.port);
    let limits = ["60/h", "60 tokens/h", "60 tokens/day burst 60"];
    let fixture = Fixture::with_retry(proxy.port, &limits, PATIENT);
    fixture.up().await;
    for n in 1..=60 {
        assert!(fixture.acquire(ours(n)).await.expect("a decision").is_allowed(), "{n}");
    }
    for n in 61..=90 {
        if n % 3 == 0 {
            proxy.cut_next_reply();
        }
        let query = Fixture::query(ours(n));
        let plan = fixture.rules.plan(&query, fixture.clock.now()).expect("a plan");
        fixture.store.refund(&plan).await.expect("a refund");
    }
    assert_eq!(proxy.lost(), 10);
    assert_eq!(fixture.used().await, [30, 30, 30]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_answered_in_time_and_then_at_once() {
    let server = RedisServer::start(Version::System, &[]);
    let proxy = FaultProxy::start(server.port);
    let fixture = Fixture::new(proxy.port, &["1000/h"]);
    fixture.up().await;
    assert!(fixture.acquire(ours(1)).await.expect("a decision").is_allowed());
    proxy.set(NetworkState::BlackHole);
    for id in 2..6 {
        assert!(matches!(fixture.acquire(ours(id)).await, Err(Error::Unavailable(_))));
    }
    // Once Redis is known to be down, calls fail without waiting for a timeout.
    eventually_is_async(|| fixture.store.state(), ConnectionState::Down).await;
    let before = fixture.store.traffic().calls;
    let thousand = async {
        for id in 100..1_100 {
            assert!(matches!(fixture.acquire(ours(id)).await, Err(Error::Unavailable(_))));
        }
    };
    timeout(LATE, thousand).await.expect("a thousand answers at once");
    assert_eq!(fixture.store.traffic().calls, before, "nothing was sent");
    proxy.set(NetworkState::Healthy);
    fixture.up().await;
    assert!(fixture.acquire(ours(7)).await.expect("a decision").is_allowed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_is_waited_for_and_counts_once() {
    let server = RedisServer::start(Version::System, &[]);
    let proxy = FaultProxy::start(server.port);
    let fixture = Fixture::new(proxy.port, &["1000/h"]);
    fixture.up().await;
    proxy.delay(ms(30));
    for id in 1..=10 {
        assert!(fixture.acquire(ours(id)).await.expect("a decision").is_allowed());
    }
    assert_eq!(fixture.used().await, [10]);
}

/// Redis is farther away than the timeout of a decision, and near enough for paced work.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_that_time_out_do_not_disturb_paced_work() {
    let server = RedisServer::start(Version::System, &[]);
    let distant = DelayProxy::start(server.port, ms(40));
    let counting = FaultProxy::start(distant.port);
    let retry = RetryPolicy::default();
    let fixture = Arc::new(Fixture::with_retry(counting.port, &["100000/h"], retry));
    fixture.up().await;
    let connections = counting.connections();
    let done = Arc::new(AtomicBool::new(false));
    let deciding = {
        let (fixture, done) = (fixture.clone(), done.clone());
        tokio::spawn(async move {
            let mut late = 0_u64;
            while !done.load(Ordering::SeqCst) {
                let query = Fixture::query(ours(u128::from(late) << 64));
                let plan = fixture.rules.plan(&query, fixture.clock.now()).expect("a plan");
                match fixture.store.acquire(&plan).await {
                    Err(Error::Unavailable(StoreFailure { attempt, .. })) => {
                        if let Some(attempt) = attempt {
                            fixture.store.give_up(&plan, attempt);
                        }
                        late += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            late
        })
    };
    let pacing = Pacing { lead: ms(50).into(), slack: ms(50).into(), owner: None };
    for id in 1..=100 {
        let mut query = Fixture::query(ours(id));
        query.pacing = Some(pacing);
        let plan = fixture.rules.plan(&query, fixture.clock.now()).expect("a plan");
        let booked = fixture.store.book(&plan).await;
        assert!(booked.as_ref().is_ok_and(Decision::is_allowed), "{id}: {booked:?}");
        let claimed = fixture.store.claim(&plan, Id::from_bits(id)).await;
        let is_claimed = matches!(claimed, Ok(Claim::Go { .. } | Claim::Rebooked { .. }));
        assert!(is_claimed, "{id}: {claimed:?}");
    }
    done.store(true, Ordering::SeqCst);
    let late = deciding.await.expect("no panic");
    assert!(late > 20, "only {late} decisions timed out");
    assert_eq!(counting.connections(), connections, "the connection was closed");
    // The late charges are taken back, on the same connection.
    eventually_is_async(|| fixture.store.pending_rollbacks(), 0).await;
    let mut query = Fixture::query(ours(0));
    query.patient = true;
    let plan = fixture.rules.plan(&query, fixture.clock.now()).expect("a plan");
    let usage = fixture.store.usage(&plan).await.expect("usage");
    assert_eq!(usage.readings[0].used, 100);
}

/// A connection that has died is noticed while paced work uses it, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_closed_although_paced_work_uses_it() {
    let server = RedisServer::start(Version::System, &[]);
    let proxy = FaultProxy::start(server.port);
    let fixture = Fixture::with_retry(proxy.port, &["1000/h"], RetryPolicy::default());
    fixture.up().await;
    let mut query = Fixture::query(ours(1));
    query.patient = true;
    let plan = fixture.rules.plan(&query, fixture.clock.now()).expect("a plan");
    eventually_async(async || fixture.store.acquire(&plan).await.is_ok()).await;
    proxy.set(NetworkState::BlackHole);
    let silent = fixture.acquire(ours(2)).await;
    assert!(matches!(silent, Err(Error::Unavailable(_))), "{silent:?}");
    eventually_is_async(|| fixture.store.state(), ConnectionState::Down).await;
    proxy.set(NetworkState::Healthy);
    fixture.up().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_is_repaired_within_one_call() {
    let server = RedisServer::start(Version::System, &[]);
    let proxy = FaultProxy::start(server.port);
    let fixture = Fixture::with_retry(proxy.port, &["1000/h"], PATIENT);
    fixture.up().await;
    for id in 1..=10 {
        proxy.set(NetworkState::Cut);
        proxy.set(NetworkState::Healthy);
        assert!(fixture.acquire(ours(id)).await.expect("a decision").is_allowed());
    }
    assert_eq!(fixture.used().await, [10]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_under_load_is_found_again() {
    let mut server = RedisServer::start(Version::System, &[]);
    let fixture = Arc::new(Fixture::new(server.port, &["1000000/h"]));
    fixture.up().await;
    let (done, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load: Vec<_> = (0..16_u128)
        .map(|task| {
            let (fixture, done, admitted) = (fixture.clone(), done.clone(), admitted.clone());
            tokio::spawn(async move {
                let mut id = task << 64;
                while !done.load(Ordering::SeqCst) {
                    id += 1;
                    match fixture.acquire(ours(id)).await {
                        Ok(_) => admitted.fetch_add(1, Ordering::SeqCst),
                        Err(Error::Unavailable(_)) => {
                            sleep(ms(1)).await;
                            0
                        }
                        Err(other) => panic!("{other}"),
                    };
                }
            })
        })
        .collect();
    let progress = async || {
        let before = admitted.load(Ordering::SeqCst);
        eventually_async(async || admitted.load(Ordering::SeqCst) >= before + 100).await;
    };
    progress().await;
    for _ in 0..3 {
        tokio::task::block_in_place(|| server.kill_and_restart());
        progress().await;
    }
    done.store(true, Ordering::SeqCst);
    for task in load {
        task.await.expect("no task panics");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_the_server_has_forgotten_are_sent_again() {
    let server = RedisServer::start(Version::System, &[]);
    let fixture = Fixture::new(server.port, &["1000/h"]);
    fixture.up().await;
    for id in 1..=3 {
        server.command(&["SCRIPT", "FLUSH"]);
        assert!(fixture.acquire(ours(id)).await.expect("a decision").is_allowed());
    }
    assert_eq!((fixture.used().await, fixture.store.traffic().retries), (vec![3], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_one_plan_does_not_affect_the_others() {
    let server = RedisServer::start(Version::System, &[]);
    let fixture = Arc::new(Fixture::new(server.port, &["1000/h"]));
    fixture.up().await;
    server.command(&["SET", "sg:{LIMIT:bob#requests}", "not a log"]);
    let ask = |id: u128, user: &'static str| {
        let fixture = fixture.clone();
        tokio::spawn(async move {
            let query = Query::new(ours(id)).with("user", user).expect("a value");
            let plan = fixture.rules.plan(&query, fixture.clock.now()).expect("a plan");
            fixture.store.acquire(&plan).await
        })
    };
    let asked: Vec<_> =
        (0..200).map(|id| ask(id, if id % 10 == 3 { "bob" } else { "ann" })).collect();
    for (id, asked) in asked.into_iter().enumerate() {
        match asked.await.expect("no task panics") {
            Ok(decision) => assert!(decision.is_allowed() && id % 10 != 3),
            Err(Error::Unavailable(why)) => {
                assert!(why.reason.contains("WRONGTYPE") && id % 10 == 3);
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(fixture.used().await, [180]);
}
