//! End-to-end tests with a real Envoy in front of a small upstream, with the configurations of
//! `deploy/envoy`. `cargo xtask test envoy` installs Envoy and runs them. Tests with a Python client
//! are here, too, because the same command installs it.

#[path = "../common/mod.rs"]
mod common;
mod foreign;
mod gateway;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use gateway::Gateway;
use sluicegate_testkit::eventually;
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::redis::{RedisServer, Version};

/// Sends `count` requests from several clients at once; returns the number of 200 and 429 responses.
fn flood(gateway: &Gateway, count: usize, headers: &[(&str, &str)]) -> (usize, usize) {
    let (left, passed, limited) =
        (AtomicUsize::new(count), AtomicUsize::new(0), AtomicUsize::new(0));
    let take =
        || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let client = gateway.client();
                while take() {
                    match client.get("/", headers).status {
                        200 => passed.fetch_add(1, Ordering::SeqCst),
                        429 => limited.fetch_add(1, Ordering::SeqCst),
                        other => panic!("{other}"),
                    };
                }
            });
        }
    });
    (passed.into_inner(), limited.into_inner())
}

#[test]
fn exactly_as_many_as_the_limit_go_through_under_load() {
    let gateway = Gateway::start("sidecar.yaml");
    assert_eq!(flood(&gateway, 200, &[("x-user", "ann")]), (50, 150));
    assert_eq!(flood(&gateway, 60, &[("x-user", "bob")]), (50, 10), "bob has a limit of his own");
    assert_eq!(gateway.upstream.requests(), 100, "nothing else has reached the upstream");
}

#[test]
fn clients_get_rate_limit_headers() {
    let gateway = Gateway::start("sidecar.yaml");
    let client = gateway.client();
    let first = client.get("/", &[("x-user", "ann")]);
    assert_eq!((first.status, first.header("x-ratelimit-limit")), (200, "50"));
    assert_eq!(first.header("x-ratelimit-remaining"), "49");
    assert!(first.header("ratelimit-policy").contains("q=50;w=3600"), "{first:?}");
    flood(&gateway, 49, &[("x-user", "ann")]);
    let denied = client.get("/", &[("x-user", "ann")]);
    assert_eq!((denied.status, denied.header("x-ratelimit-remaining")), (429, "0"));
    let wait: u64 = denied.header("retry-after").parse().expect("seconds");
    assert!((3_500..=3_636).contains(&wait), "{wait}");
    assert_eq!(client.get("/", &[]).status, 200, "who is not known is not limited by user");
}

#[test]
fn descriptors_come_from_paths_and_addresses() {
    let client = Gateway::start("sidecar.yaml");
    let statuses: Vec<_> = (0..5).map(|_| client.client().get("/login", &[]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    for path in ["/login?x=1", "//login", "/%6cogin", "/./login", "/a/%2e%2e/login", "/login/"] {
        assert_eq!(client.client().get(path, &[]).status, 429, "{path}");
    }
    for path in ["/logout", "/login/other", "/x?path=/login"] {
        assert_eq!(client.client().get(path, &[]).status, 200, "{path}");
    }
}

#[test]
fn a_route_can_override_the_limit() {
    let gateway = Gateway::start("sidecar.yaml");
    let client = gateway.client();
    let trial = [("x-trial", "ann")];
    let statuses: Vec<_> = (0..4).map(|_| client.get("/", &trial).status).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(client.get("/", &trial).header("x-ratelimit-limit"), "2");
}

/// The upstream reports a cost of 300 of 1000 tokens per response: the fourth exceeds the limit and
/// is counted.
#[test]
fn the_cost_of_a_response_is_charged_after_it() {
    let gateway = Gateway::start("sidecar.yaml");
    let client = gateway.client();
    let tenant = [("x-tenant", "acme")];
    for n in 1..=4 {
        assert_eq!(client.get("/", &tenant).status, 200, "{n}");
        // The charge comes after the response, so this polls for it.
        eventually(|| gateway.tokens_used("tenant", "acme") == 300 * n);
    }
    assert_eq!(client.get("/", &tenant).status, 429);
    assert_eq!(gateway.upstream.requests(), 4);
}

/// Each request charges 400 of 1000 tokens, and 200 are refunded after the response, in Redis: four
/// requests fit, instead of two without refunds.
#[test]
fn unused_tokens_are_refunded_after_the_response() {
    let redis = RedisServer::start(Version::System, &[]);
    let store = format!(
        "store: {{kind: redis, url: 'redis://127.0.0.1:{}', timeout: 2s, deadline: 5s}}\n",
        redis.port
    );
    let gateway = Gateway::with("sidecar.yaml", &store);
    let client = gateway.client();
    let account = [("x-account", "acme"), ("x-max-tokens", "400")];
    let used = || gateway.tokens_used("account", "acme");
    // Envoy lets a request through if the limiter does not respond in time: the first may not be
    // counted.
    eventually(|| {
        client.get("/", &account);
        used() > 0
    });
    eventually(|| used() == 200);
    for expected in [400, 600, 800] {
        assert_eq!(client.get("/", &account).status, 200);
        eventually(|| used() == expected);
    }
    assert_eq!(client.get("/", &account).status, 429);
}

#[test]
fn without_a_limiter_the_sidecar_fails_open_and_recovers() {
    let mut gateway = Gateway::start("sidecar.yaml");
    assert_eq!(flood(&gateway, 60, &[("x-user", "ann")]), (50, 10));
    gateway.stop_limiter();
    assert_eq!(flood(&gateway, 20, &[("x-user", "ann")]), (20, 0), "it fails open");
    gateway.start_limiter();
    // Usage was in memory, so it starts at zero.
    let client = gateway.client();
    eventually(|| client.get("/", &[("x-user", "new")]).header_or("x-ratelimit-limit", "") == "50");
    eventually(|| client.get("/", &[("x-user", "ann")]).status == 429);
}

#[test]
fn without_a_limiter_the_central_service_fails_closed_and_recovers() {
    let mut gateway = Gateway::start("central.yaml");
    let client = gateway.client();
    let user = [("x-user", "ann")];
    eventually(|| client.get("/", &user).status == 200);
    gateway.stop_limiter();
    let reached = gateway.upstream.requests();
    for _ in 0..20 {
        assert_eq!(client.get("/", &user).status, 503, "it fails closed");
    }
    assert_eq!(gateway.upstream.requests(), reached);
    gateway.start_limiter();
    eventually(|| client.get("/", &user).status == 200);
}

/// Envoy lets requests through if the limiter does not respond, so the limiter must respond.
#[test]
fn while_redis_is_a_black_hole_closed_clients_stay_closed() {
    let redis = RedisServer::start(Version::System, &[]);
    let proxy = FaultProxy::start(redis.port);
    let store = format!("store: {{kind: redis, url: 'redis://127.0.0.1:{}'}}\n", proxy.port);
    let gateway = Gateway::with("sidecar.yaml", &store);
    let client = gateway.client();
    let user = [("x-user", "ann")];
    let is_limited = || client.get("/", &user).header_or("x-ratelimit-limit", "") == "50";
    eventually(is_limited);

    proxy.set(NetworkState::BlackHole);
    // As soon as the circuit breaker is open, responses are immediate.
    eventually(|| client.get("/", &user).status == 429);
    let reached = gateway.upstream.requests();
    let refused = (0..50).filter(|_| client.get("/", &user).status == 429).count();
    assert!(refused >= 45, "{refused}: but for a probe that is waited for, all are refused");
    assert!(gateway.upstream.requests() - reached <= 5);

    proxy.set(NetworkState::Healthy);
    eventually(is_limited);
}
