//! Tests of the limiter in this process with its usage in Redis: shared, distant, killed and
//! restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sluicegate::{Cost, DecisionSource, Limiter, ManualClock, Request, Rule};
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::delay_proxy::DelayProxy;
use sluicegate_testkit::eventually_async;
use sluicegate_testkit::proxy::FaultProxy;
use sluicegate_testkit::redis::{RedisServer, Version};

/// Returns a limiter with longer timeouts than in production: tests share the machine.
fn limiter(port: u16, limits: &str) -> Limiter {
    let store = format!(
        "store: {{kind: redis, url: 'redis://127.0.0.1:{port}', timeout: 2s, deadline: 5s}}\n"
    );
    Limiter::from_yaml(&(store + limits)).expect("valid limits")
}

const USER: &str = "limits: [{name: user, rules: [{name: USER, per: [userId], limit: 50/h}]}]\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn processes_that_share_a_redis_admit_exactly_the_limit() {
    let redis = RedisServer::start(Version::System, &[]);
    let distant = DelayProxy::start(redis.port, Duration::from_millis(10));
    let limiters = [limiter(redis.port, USER), limiter(distant.port, USER)];
    let calls: Vec<_> = (0..120)
        .map(|n| {
            let limiter = limiters[n % 2].clone();
            tokio::spawn(async move { limiter.acquire([("userId", "u1")]).await.expect("decided") })
        })
        .collect();
    let mut admitted = 0;
    for call in calls {
        let decision = call.await.expect("no panic");
        assert_eq!(decision.source(), DecisionSource::Store);
        admitted += u32::from(decision.is_allowed());
    }
    assert_eq!(admitted, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_and_reservations_are_shared_and_given_back() {
    let redis = RedisServer::start(Version::System, &[]);
    let limits = "
limits:
  - {name: slots, rules: [{name: SLOTS, per: [], limit: 1 concurrent}]}
  - {name: money, rules: [{name: BUDGET, per: [userId], limit: 5.00 USD/day}]}
";
    let [first, second] = [limiter(redis.port, limits), limiter(redis.port, limits)];
    let request = || {
        let estimate = Cost::new().money("0.01".parse().expect("an amount"));
        Request::from([("userId", "u1")]).reserve(estimate)
    };
    let admission = first.acquire(request()).await.expect("decided").admit().expect("allowed");
    assert!(!second.acquire(request()).await.expect("decided").is_allowed());
    drop(admission);
    // The slot is freed in the background.
    eventually_async(async || second.check(request()).await.expect("decided").is_allowed()).await;
    let admission = second.acquire(request()).await.expect("decided").admit().expect("allowed");
    let actual = Cost::new().money("0.001".parse().expect("an amount"));
    admission.settle(actual).await.expect("settled");
    // The first estimate stays charged, because it was released and not settled.
    let usage = first.usage(request()).await.expect("usage");
    let used: Vec<_> = usage.iter().map(|scope| scope.used).collect();
    assert_eq!(used, [0, 11_000_000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_before_its_decision_arrives_leaves_nothing_behind() {
    let redis = RedisServer::start(Version::System, &[]);
    let limits = "limits: [{name: slots, rules: [{name: SLOTS, per: [userId], limit: 1 concurrent, lease: 1h}]}]\n";
    let near = limiter(redis.port, limits);
    let distant = FaultProxy::start(redis.port);
    let far = limiter(distant.port, limits);
    let used = async |user: &str| near.usage([("userId", user)]).await.expect("usage")[0].used;
    eventually_async(async || {
        let decision = far.acquire([("userId", "first")]).await.expect("decided");
        decision.source() == DecisionSource::Store
    })
    .await;
    for waits in [false, true] {
        let user = if waits { "waits" } else { "asks" };
        // Long enough for the other limiter to see the slot.
        distant.delay(Duration::from_secs(1));
        let limiter = far.clone();
        let call = tokio::spawn(async move {
            let request = [("userId", user)];
            let decided = if waits {
                limiter.until_ready(request).await
            } else {
                limiter.acquire(request).await
            };
            // On a slow machine the answer may have arrived: then it is dropped with the task.
            let _decision = decided;
            std::future::pending::<()>().await;
        });
        eventually_async(async || used(user).await == 1).await;
        call.abort();
        assert!(call.await.expect_err("it never ends").is_cancelled());
        distant.delay(Duration::ZERO);
        eventually_async(async || used(user).await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn work_of_distant_processes_takes_turns() {
    let redis = RedisServer::start(Version::System, &[]);
    let limits = "limits: [{name: v, rules: [{name: VENDOR, per: [provider], limit: 10/s}]}]\n";
    let distant = DelayProxy::start(redis.port, Duration::from_millis(20));
    let limiters = [limiter(redis.port, limits), limiter(distant.port, limits)];
    let clock = MonotonicClock::new();
    let began = clock.now();
    let work: Vec<_> = (0..24)
        .map(|n| {
            let limiter = limiters[n % 2].clone();
            tokio::spawn(async move {
                let turn = limiter.until_ready([("provider", "acme")]).await.expect("decided");
                drop(turn.admit().expect("a turn"));
            })
        })
        .collect();
    for work in work {
        work.await.expect("no panic");
    }
    let took = clock.now().since(began);
    assert!(took >= Span::from_secs(2), "24 starts of 10/s within {took}");
    assert_eq!(limiters.iter().map(|limiter| limiter.stats().allowed).sum::<u64>(), 24);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_redis_is_answered_for_and_found_again() {
    let mut redis = RedisServer::start(Version::System, &[]);
    let outage = "outage: {by_client_type: {INTERNAL: unlimited}}\n";
    let limits = "limits: [{name: all, rules: [{name: ALL, per: [], limit: 100000/h}]}]\n";
    let limiter = limiter(redis.port, &format!("{outage}{limits}"));
    let (stop, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load: Vec<_> = (0..4)
        .map(|n| {
            let (limiter, stop, failed) = (limiter.clone(), stop.clone(), failed.clone());
            let kind = if n % 2 == 0 { "EXTERNAL" } else { "INTERNAL" };
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match limiter.acquire([("clientType", kind)]).await {
                        Ok(decision) => {
                            // With a limit that nobody reaches, only an outage denies.
                            let closed = kind == "EXTERNAL"
                                && decision.source() == DecisionSource::OutagePolicy;
                            assert_eq!(decision.is_allowed(), !closed, "{decision:?}");
                        }
                        Err(_) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for _ in 0..2 {
        let before = limiter.stats();
        eventually_async(async || limiter.stats().allowed > before.allowed + 100).await;
        redis.kill();
        let before = limiter.stats();
        eventually_async(async || {
            let stats = limiter.stats();
            stats.failed_closed > before.failed_closed && stats.failed_open > before.failed_open
        })
        .await;
        redis.restart();
        eventually_async(async || {
            let decision = limiter.acquire([("clientType", "EXTERNAL")]).await.expect("decided");
            decision.is_allowed()
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    for load in load {
        load.await.expect("every decision was as it should be");
    }
    assert_eq!(failed.load(Ordering::Relaxed), 0, "an outage is decided by its policy");
}

#[tokio::test]
async fn a_denial_during_an_outage_has_status_503() {
    let limiter = limiter(1, USER);
    eventually_async(async || {
        let decision = limiter.acquire([("userId", "u1")]).await.expect("decided");
        let denial = decision.admit().expect_err("closed");
        assert_eq!((denial.status(), denial.reason()), (503, "STORE_UNAVAILABLE"));
        assert_eq!(denial.headers(), [("retry-after", "1".to_owned())]);
        let waited = limiter.until_ready([("userId", "u1")]).await.expect("decided");
        waited.admit().expect_err("closed").reason() == "STORE_UNAVAILABLE"
    })
    .await;
}

#[test]
fn redis_needs_a_runtime_and_has_a_clock_of_its_own() {
    let rule = || Rule::new("USER").per(["userId"]).limit("1/s");
    let builder = || Limiter::builder().rule(rule()).redis("redis://127.0.0.1:1");
    let error = builder().build().expect_err("no runtime").to_string();
    assert!(error.starts_with("store: Redis needs a Tokio runtime"), "{error}");
    let error = builder().clock(&ManualClock::new()).build().expect_err("a clock").to_string();
    assert!(error.starts_with("clock: Redis has a clock of its own"), "{error}");
    let error = builder().keys_max(5).build().expect_err("both").to_string();
    assert!(error.starts_with("keys_max: applies to the memory store only"), "{error}");
    let wrong = Limiter::builder().rule(rule()).redis("http://x").build().expect_err("no address");
    assert!(wrong.to_string().contains("url"), "{wrong}");
}
