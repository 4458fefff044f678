//! Tests of the Rust library as a client of a real `sluicegate serve`, in memory and on Redis.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http;
use axum::routing::get;
use common::RunningService;
use serde_json::Value;
use sluicegate::tower::{Header, RateLimitLayer};
use sluicegate::{Cost, DecisionSource, ErrorKind, Limiter, Request, UnavailablePolicy, Unit};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Span, Timestamp};
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::delay_proxy::DelayProxy;
use sluicegate_testkit::eventually_async;
use sluicegate_testkit::limit_check::assert_limit;
use sluicegate_testkit::ports::free_port;
use sluicegate_testkit::redis::{RedisServer, Version};

const LIMITS: &str = "
dimensions: {provider: optional}
limits:
  - {name: user, rules: [{name: USER, per: [userId], limit: 10/min}]}
  - {name: slots, rules: [{name: SLOTS, per: [userId], limit: 2 concurrent}]}
  - {name: money, rules: [{name: BUDGET, per: [userId], limit: 5.00 USD/day}]}
  - {name: vendor, rules: [{name: VENDOR, per: [provider], limit: 5/s}]}
prices: {default: {input: 0.20 USD/1M, output: 0.60 USD/1M}}
";

/// Returns a client with a longer deadline than in production: tests share the machine.
fn client(url: &str) -> Limiter {
    Limiter::remote(url).deadline(Duration::from_secs(20)).build().expect("a valid address")
}

/// Every operation, with the same results as in the process.
async fn everything_works(limiter: &Limiter, user: &str) {
    let request = || Request::from([("userId", user), ("modelId", "gpt4")]);
    let estimate = Cost::new().input_tokens(868).output_tokens_max(500);
    let admission =
        limiter.acquire(request().reserve(estimate)).await.expect("decided").admit().expect("one");
    let names: Vec<_> = admission.headers().iter().map(|(name, _)| *name).collect();
    assert!(names.contains(&"x-ratelimit-remaining") && names.contains(&"ratelimit-policy"));
    let scopes = admission.scopes();
    let of = |rule: &str| {
        let scope = scopes.iter().find(|scope| scope.rule == rule).expect("a limit");
        (scope.unit, scope.max, scope.used, scope.remaining)
    };
    assert_eq!(of("USER"), (Unit::Requests, 10, 1, 9));
    assert_eq!(of("SLOTS"), (Unit::Slots, 2, 1, 1));
    assert_eq!(of("BUDGET"), (Unit::Usd, 5_000_000_000, 473_600, 4_999_526_400));
    let actual = Cost::new().query_tokens(12).context_tokens(856).output_tokens(145);
    let settled = admission.settle(actual).await.expect("settled");
    assert!(settled.recorded && settled.duration.is_some());
    assert_eq!(settled.cost.map(|cost| cost.as_nanos()), Some(260_600));
    let tokens = (settled.query_tokens, settled.context_tokens, settled.output_tokens);
    assert_eq!(tokens, (Some(12), Some(856), Some(145)));
    let usage = limiter.usage(request()).await.expect("usage");
    let used: Vec<_> = usage.iter().map(|scope| scope.used).collect();
    assert_eq!(used, [1, 0, 260_600]);

    let held = limiter.acquire(request()).await.expect("decided").admit().expect("the first slot");
    let second = limiter.acquire(request()).await.expect("decided").admit().expect("the second");
    let denial = limiter.acquire(request()).await.expect("decided").admit().expect_err("no third");
    assert_eq!((denial.status(), denial.rule()), (429, Some("SLOTS")));
    drop(held);
    eventually_async(async || limiter.check(request()).await.expect("decided").is_allowed()).await;
    second.cancel().await.expect("cancelled");
    let replayed = request().id("again");
    drop(limiter.acquire(replayed.clone()).await.expect("decided"));

    for _ in 0..7 {
        let admission = limiter.acquire(request()).await.expect("decided").admit().expect("one");
        admission.release().await.expect("released");
    }
    let denial = limiter.acquire(request()).await.expect("decided").admit().expect_err("all used");
    assert_eq!(denial.detail(), "Rate limit exceeded: 10 requests per minute");
    assert_eq!((denial.status(), denial.reason()), (429, "HIT_USER_LIMIT"));
    assert!(denial.retry_after().is_some_and(|wait| wait <= Duration::from_secs(60)));
    assert!(denial.body().contains("\"detail\":\"Rate limit exceeded: 10 requests per minute\""));

    let explained = limiter.explain(request()).await.expect("explained");
    let group = |name: &str| {
        explained.groups.iter().find(|group| group.group == name).expect("a group").clone()
    };
    assert_eq!(group("user").matched[0].limits, ["10/min"]);
    assert_eq!(group("vendor").skipped[0].because, "provider is missing");
    let missing = limiter.acquire([("modelId", "gpt4")]).await.expect_err("no user");
    assert_eq!(missing.kind(), ErrorKind::InvalidRequest);
    assert!(missing.to_string().contains("userId: is required"), "{missing}");
    assert_eq!(limiter.stats().unsettled, 0);
}

/// Twelve calls of `5/s`, each with its turn.
async fn turns_are_taken(limiter: &Limiter) {
    let turns: Vec<_> = (0..12)
        .map(|number| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let user = format!("waits-{number}");
                let request = Request::from([("userId", user.as_str()), ("provider", "acme")]);
                let turn = limiter.until_ready(request).await.expect("decided");
                turn.admit().expect("a turn").release().await.expect("released");
            })
        })
        .collect();
    for turn in turns {
        turn.await.expect("no panic");
    }
    let request = || Request::from([("userId", "late")]);
    let batch = request().cost(Cost::new().requests(10));
    drop(limiter.until_ready(batch).await.expect("decided").admit().expect("a turn"));
    let hurried = request().wait_max(Duration::from_millis(1));
    let denial = limiter.until_ready(hurried).await.expect("decided").admit().expect_err("later");
    assert_eq!(denial.reason(), "WAIT_TOO_LONG");
}

/// Checks that the work of [`turns_are_taken`] started at 5/s by the clock of the store, as the
/// decision log of the service says.
fn turns_were_spaced(log: &str) {
    let mut starts = BTreeMap::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let id = line["requestId"].as_str().unwrap_or_default().to_owned();
        match line["operation"].as_str() {
            Some("claim")
                if line["dimensions"]["provider"] == "acme" && line["allowed"] == true =>
            {
                let start = line["start"].as_str().expect("a start");
                starts.insert(id, start.parse::<Timestamp>().expect("a time"));
            }
            // Its answer came too late: it was given back and booked again.
            Some("cancel") => drop(starts.remove(&id)),
            _ => {}
        }
    }
    let mut starts: Vec<_> = starts.into_values().collect();
    starts.sort_unstable();
    assert!(starts.len() >= 12, "{starts:?}");
    assert_limit("5/s", &starts);
    let took = starts[starts.len() - 1].since(starts[0]);
    assert!(took >= Span::from_secs(2), "12 starts of 5/s within {took}");
}

/// Checks that concurrent calls share one connection, which HTTP/1.1 could not do.
async fn calls_share_a_connection(limiter: &Limiter, service: &RunningService) {
    let calls: Vec<_> = (0..32)
        .map(|number| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let user = format!("shares-{number}");
                limiter.acquire([("userId", user.as_str())]).await.map(drop)
            })
        })
        .collect();
    for call in calls {
        call.await.expect("no panic").expect("decided");
    }
    assert_eq!(service.metric("sluicegate_connections{listener=\"http\"}"), 1);
}

/// The layer decides by a service: header fields, a denial, and a slot that is kept until the end of
/// the response body.
#[tokio::test(flavor = "multi_thread")]
async fn the_tower_layer_works_with_a_service() {
    let limits = "
limits:
  - {name: user, rules: [{name: USER, per: [userId], limit: 3/min}]}
  - {name: slots, rules: [{name: SLOTS, per: [userId], limit: 1 concurrent}]}
";
    let service = RunningService::start(limits);
    let layer = RateLimitLayer::new(client(&service.http)).key("userId", Header::new("x-user-id"));
    let app = Router::new().route("/", get(|| std::future::ready("hello"))).layer(layer);
    let ask = async || {
        let request = http::Request::get("/").header("x-user-id", "ann").body(Body::empty());
        let service = tower::ServiceExt::oneshot(app.clone(), request.expect("a request"));
        service.await.expect("a response")
    };
    let first = ask().await;
    assert_eq!(first.status(), 200);
    assert_eq!(first.headers()["x-ratelimit-limit"], "3");
    assert_eq!(first.headers()["x-ratelimit-remaining"], "2");
    // The body of the first response is not read, so its slot is taken.
    let second = ask().await;
    assert_eq!(second.status(), 429);
    drop(first);
    eventually_async(async || ask().await.status() == 200).await;
    eventually_async(async || ask().await.status() == 200).await;
    let denied = ask().await;
    assert_eq!(denied.status(), 429);
    assert!(denied.headers().contains_key("retry-after"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_works_over_http() {
    let service = RunningService::start(LIMITS);
    let limiter = client(&service.http);
    everything_works(&limiter, "ann").await;
    turns_are_taken(&limiter).await;
    calls_share_a_connection(&limiter, &service).await;
    turns_were_spaced(&service.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_works_on_redis_and_from_afar() {
    let redis = RedisServer::start(Version::System, &[]);
    let store = format!(
        "store: {{kind: redis, url: 'redis://127.0.0.1:{}', timeout: 2s, deadline: 5s}}",
        redis.port
    );
    let service = RunningService::start(&format!("{store}{LIMITS}"));
    let proxy = DelayProxy::start(port_of(&service), Duration::from_millis(30));
    let limiter = client(&format!("http://127.0.0.1:{}/", proxy.port));
    everything_works(&limiter, "ann").await;
    turns_are_taken(&limiter).await;
    calls_share_a_connection(&limiter, &service).await;
    let hurried = Limiter::remote(format!("http://127.0.0.1:{}", proxy.port))
        .deadline(Duration::from_millis(10))
        .on_unavailable(UnavailablePolicy::Error)
        .build()
        .expect("valid");
    let error = hurried.acquire([("userId", "bob")]).await.expect_err("too far away");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no answer within 10 ms"), "{error}");
    turns_were_spaced(&service.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_before_its_decision_arrives_leaves_nothing_behind() {
    let limits = "
dimensions: {userId: optional, vendor: optional}
limits:
  - {name: slots, rules: [{name: SLOTS, per: [userId], limit: 1 concurrent, lease: 1h}]}
  - {name: vendor, rules: [{name: VENDOR, per: [vendor], limit: 1/h}]}
";
    let service = RunningService::start(limits);
    // The answer takes long enough for the other client to see the slot.
    let proxy = DelayProxy::start(port_of(&service), Duration::from_secs(1));
    let (near, far) = (client(&service.http), client(&format!("http://127.0.0.1:{}", proxy.port)));
    let used = async |name: &str| near.usage([(name, "ann")]).await.expect("usage")[0].used;
    // The first call connects.
    drop(far.check([("userId", "first")]).await);
    for name in ["userId", "vendor"] {
        let limiter = far.clone();
        let call = tokio::spawn(async move {
            let request = [(name, "ann")];
            let decided = match name {
                "vendor" => limiter.until_ready(request).await,
                _ => limiter.acquire(request).await,
            };
            // On a slow machine the answer may have arrived: then it is dropped with the task.
            let _decision = decided;
            std::future::pending::<()>().await;
        });
        eventually_async(async || used(name).await == 1).await;
        call.abort();
        assert!(call.await.expect_err("it never ends").is_cancelled());
        eventually_async(async || used(name).await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_admission_is_sent_again_after_an_outage() {
    let redis = RedisServer::start(Version::System, &[]);
    let limits = "
limits:
  - {name: slots, rules: [{name: SLOTS, per: [userId], limit: 1 concurrent, lease: 1h}]}
  - {name: money, rules: [{name: BUDGET, per: [userId], limit: 5.00 USD/day}]}
";
    let (_folder, path, port) = fixed_service(&redis, limits);
    let service = RunningService::with_file(&path);
    let limiter = client(&format!("http://127.0.0.1:{port}"));
    let request = |user| {
        let estimate = Cost::new().money("1.00".parse().expect("an amount"));
        Request::from([("userId", user)]).reserve(estimate)
    };
    let admit = async |user| limiter.acquire(request(user)).await.expect("decided").admit();
    let [dropped, settled, cancelled] =
        [admit("ann").await, admit("bob").await, admit("cid").await].map(|one| one.expect("one"));
    service.kill();
    // The client pauses after five failures.
    for _ in 0..6 {
        assert!(admit("dan").await.is_err());
    }
    drop(dropped);
    let actual = Cost::new().money("0.25".parse().expect("an amount"));
    assert!(!settled.settle(actual).await.expect("no error").recorded);
    cancelled.cancel().await.expect("no error");
    let _service = RunningService::with_file(&path);
    for (user, expected) in [("ann", 1_000_000_000), ("bob", 250_000_000), ("cid", 0)] {
        eventually_async(async || {
            let Ok(usage) = limiter.usage([("userId", user)]).await else { return false };
            let used: Vec<_> = usage.iter().map(|scope| scope.used).collect();
            used == [0, expected]
        })
        .await;
    }
    assert_eq!(limiter.stats().unsettled, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_limit_on_redis_holds_when_a_distant_service_is_killed_and_restarted_under_load() {
    const LIMIT: u64 = 100;
    const CALLERS: u64 = 4;
    let redis = RedisServer::start(Version::System, &[]);
    // Per hour: no request leaves the window during the test, however slow the machine is.
    let limits =
        format!("limits: [{{name: all, rules: [{{name: ALL, per: [], limit: {LIMIT}/h}}]}}]");
    let (_folder, path, port) = fixed_service(&redis, &limits);
    let service = RunningService::with_file(&path);
    // Slow answers: the service is killed long before the limit is used up.
    let proxy = DelayProxy::start(port, Duration::from_millis(30));
    let limiter = client(&format!("http://127.0.0.1:{}", proxy.port));
    let no_dimensions: [(&str, &str); 0] = [];
    let load: Vec<_> = (0..CALLERS)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                loop {
                    match limiter.acquire(no_dimensions).await.expect("decided").admit() {
                        Err(denial) if denial.source() == DecisionSource::Store => return,
                        // While the service is down, the policy decides at once.
                        _ => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                }
            })
        })
        .collect();
    eventually_async(async || limiter.stats().allowed > 0).await;
    service.kill();
    eventually_async(async || limiter.stats().failed_closed > 0).await;
    let _service = RunningService::with_file(&path);
    for load in load {
        load.await.expect("no panic");
    }
    let stats = limiter.stats();
    assert_eq!(stats.failed_open, 0);
    // Redis has kept the admissions from before the kill. Each caller had at most one call in progress
    // at that time: it may be counted although its answer was lost.
    let admitted = stats.allowed;
    assert!((LIMIT - CALLERS..=LIMIT).contains(&admitted), "{admitted} of {LIMIT} were admitted");
}

/// Writes the configuration of a service with its counters in Redis, on a port that stays the same
/// when it is started again.
fn fixed_service(redis: &RedisServer, limits: &str) -> (tempfile::TempDir, PathBuf, u16) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluicegate.yaml");
    let port = free_port();
    let listen = format!("{{http: '127.0.0.1:{port}', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}}");
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let store = format!("store: {{kind: redis, url: '{url}', timeout: 2s, deadline: 5s}}");
    std::fs::write(&path, format!("listen: {listen}\n{store}\n{limits}\n")).expect("a file");
    (folder, path, port)
}

fn port_of(service: &RunningService) -> u16 {
    service.http.rsplit(':').next().expect("a port").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn denials_are_cached_for_their_time() {
    let limits = "limits: [{name: user, rules: [{name: USER, per: [userId], limit: 1/h}]}]\n";
    let service = RunningService::start(limits);
    let denied =
        || service.metric("sluicegate_decisions_total{operation=\"acquire\",result=\"denied\"}");
    let caching = client(&service.http);
    let asks = Limiter::remote(&service.http)
        .deadline(Duration::from_secs(20))
        .deny_cache(Duration::ZERO)
        .build()
        .expect("valid");
    drop(asks.acquire([("userId", "ann")]).await.expect("decided"));
    for _ in 0..20 {
        assert!(!asks.acquire([("userId", "ann")]).await.expect("decided").is_allowed());
    }
    assert_eq!(denied(), 20);
    let clock = MonotonicClock::new();
    let began = clock.now();
    for _ in 0..2_000 {
        let denial = caching.acquire([("userId", "ann")]).await.expect("decided");
        let denial = denial.admit().expect_err("denied");
        assert_eq!(denial.detail(), "Rate limit exceeded: 1 request per hour");
        assert!(denial.retry_after().is_some_and(|wait| wait > Duration::from_secs(3_000)));
    }
    // One call a second, because a denial is repeated for at most that long.
    let seconds = clock.now().since(began).as_micros() / 1_000_000;
    assert!(denied() - 20 <= 1 + seconds, "{} calls within {seconds} s", denied() - 20);
    assert_eq!(caching.stats().denied, 2_000);
    let other = caching.acquire([("userId", "bob")]).await.expect("decided");
    assert!(other.is_allowed(), "another request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_service_that_is_killed_and_restarted_is_found_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("sluicegate.yaml");
    let port = free_port();
    let listen = format!("{{http: '127.0.0.1:{port}', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}}");
    let limits =
        "limits: [{name: all, rules: [{name: ALL, per: [], limit: [9 concurrent, 1000000/h]}]}]";
    std::fs::write(&path, format!("listen: {listen}\n{limits}\n")).expect("a file");
    let mut service = RunningService::with_file(&path);
    let with = |policy| {
        Limiter::remote(format!("http://127.0.0.1:{port}"))
            .deadline(Duration::from_secs(20))
            .on_unavailable(policy)
            .build()
            .expect("valid")
    };
    let limiters = [UnavailablePolicy::Open, UnavailablePolicy::Closed].map(with);
    let stop = Arc::new(AtomicBool::new(false));
    let no_dimensions: [(&str, &str); 0] = [];
    let load: Vec<_> = limiters
        .iter()
        .map(|limiter| {
            let (limiter, stop) = (limiter.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let decision = limiter.acquire(no_dimensions).await.expect("decided");
                    if let Ok(admission) = decision.admit() {
                        admission.release().await.expect("policies admit no error");
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for _ in 0..2 {
        let before = limiters.each_ref().map(Limiter::stats);
        eventually_async(async || {
            let now = limiters.each_ref().map(Limiter::stats);
            (0..2).all(|n| now[n].allowed > before[n].allowed + 50)
        })
        .await;
        service.kill();
        let before = limiters.each_ref().map(Limiter::stats);
        eventually_async(async || {
            limiters[0].stats().failed_open > before[0].failed_open + 20
                && limiters[1].stats().failed_closed > before[1].failed_closed + 20
        })
        .await;
        service = RunningService::with_file(&path);
        eventually_async(async || {
            let decision = limiters[1].acquire(no_dimensions).await.expect("decided");
            decision.is_allowed() && decision.source() == DecisionSource::Store
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    for load in load {
        load.await.expect("no panic");
    }
    assert_eq!(limiters[0].stats().failed_closed, 0);
    assert_eq!(limiters[1].stats().failed_open, 0);
    drop(service);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_addresses_and_tokens_are_errors() {
    for url in ["", "127.0.0.1:8080", "ftp://x", "http://", "http://x/?y"] {
        let error = Limiter::remote(url).build().expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Configuration, "{url}");
        assert!(error.to_string().starts_with("url "), "{error}");
    }
    let zero = Limiter::remote("http://x").deadline(Duration::ZERO).build().expect_err("zero");
    assert!(zero.to_string().starts_with("deadline: "), "{zero}");
    let long = Limiter::remote("http://x").deny_cache(Duration::from_secs(2)).build();
    assert!(long.expect_err("too long").to_string().starts_with("deny_cache: "));

    let auth = "auth: {tokens: {app: {token: secret-token-of-the-app, scopes: [decide]}}}\n";
    let service = RunningService::start(&format!("{auth}{LIMITS}"));
    let ask = async |token: Option<&str>| {
        let mut builder = Limiter::remote(&service.http).deadline(Duration::from_secs(20));
        if let Some(token) = token {
            builder = builder.token(token);
        }
        builder.build().expect("valid").acquire([("userId", "ann")]).await
    };
    for token in [None, Some("wrong")] {
        let error = ask(token).await.expect_err("no access");
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("(401)"), "{error}");
    }
    assert!(ask(Some("secret-token-of-the-app")).await.expect("decided").is_allowed());
    let limiter = client(&service.http);
    assert!(limiter.reload_yaml("").is_err(), "the service reloads its own file");
}
