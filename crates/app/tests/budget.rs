//! Budgets that several nodes share, with many concurrent callers.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use common::{RunningService, get, post};
use serde_json::{Value, json};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::{eventually, eventually_is};

const CALLERS: u64 = 200;
const READY: &str = "{\"status\":\"ready\"}";

/// Two nodes on one Redis, with longer timeouts than in production: tests share the machine.
struct Nodes {
    nodes: [RunningService; 2],
    _redis: RedisServer,
}

impl Nodes {
    fn start(limits: &str) -> Self {
        let redis = RedisServer::start(Version::System, &[]);
        let url = format!("redis://127.0.0.1:{}", redis.port);
        let config = format!(
            "store: {{kind: redis, url: '{url}', timeout: 5s, deadline: 11s}}\nlimits:\n{limits}"
        );
        let nodes = [RunningService::start(&config), RunningService::start(&config)];
        for node in &nodes {
            eventually_is(|| get(&format!("{}/ready", node.admin)).1, READY);
        }
        Self { nodes, _redis: redis }
    }

    fn post(&self, node: u64, path: &str, body: &Value) -> Value {
        let node = &self.nodes[usize::from(node % 2 == 1)];
        let (status, answer) = post(&format!("{}{path}", node.http), body, None);
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    /// Returns the usage of the budget, in nano-dollars.
    fn spent(&self) -> u64 {
        let usage = self.post(0, "/v1/usage", &json!({ "dimensions": {} }));
        let scopes = usage["scopes"].as_array().expect("scopes");
        let budget = scopes.iter().find(|scope| scope["name"] == "BUDGET").expect("the budget");
        nanos(&budget["current"])
    }
}

/// Converts dollars to nano-dollars; the numbers are small enough for a float to be exact.
fn nanos(dollars: &Value) -> u64 {
    (dollars.as_f64().expect("a number") * 1e9).round() as u64
}

fn dollars(nanos: u64) -> String {
    format!("0.{nanos:09}")
}

/// Random numbers with a fixed seed.
struct Random(u64);

impl Random {
    fn up_to(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (most + 1)
    }
}

#[test]
fn concurrent_callers_do_not_overrun_a_strict_budget_because_all_passed_before_any_was_counted() {
    const BUDGET: u64 = 10_000_000;
    let nodes =
        Nodes::start("- {name: g, rules: [{name: BUDGET, per: [], limit: 0.01 USD/day}]}\n");
    let (spent, denied, most_seen) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for caller in 1..=CALLERS {
            let (nodes, spent, denied, most_seen) = (&nodes, &spent, &denied, &most_seen);
            scope.spawn(move || {
                let mut random = Random(caller.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                for round in 0..5 {
                    let estimate = 1 + random.up_to(200_000);
                    let cost = json!({ "usd": dollars(estimate) });
                    let ask = json!({ "dimensions": {}, "cost": cost, "hold": "60s" });
                    let answer = nodes.post(caller, "/v1/acquire", &ask);
                    let used = nanos(&answer["scopes"][0]["current"]);
                    most_seen.fetch_max(used, Ordering::SeqCst);
                    if answer["allowed"] == false {
                        denied.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    // One caller in five never settles, and is charged its estimate.
                    if random.up_to(4) == 0 {
                        spent.fetch_add(estimate, Ordering::SeqCst);
                        continue;
                    }
                    let actual = random.up_to(estimate);
                    let cost = json!({ "usd": dollars(actual) });
                    let settle = json!({ "handle": answer["handle"], "cost": cost });
                    // Any node can settle, so this uses the other one.
                    nodes.post(caller + round + 1, "/v1/settle", &settle);
                    spent.fetch_add(actual, Ordering::SeqCst);
                }
            });
        }
    });
    let (spent, denied) = (spent.into_inner(), denied.into_inner());
    assert!(denied > 50, "a budget that nobody met proves nothing: {denied} denied");
    assert_eq!(nodes.spent(), spent, "the charge is the settled cost plus the open reservations");
    assert!(spent <= BUDGET, "{spent} of {BUDGET}");
    assert!(most_seen.into_inner() <= BUDGET, "at no instant is more than the budget charged");
}

#[test]
fn an_optimistic_budget_is_overshot_by_at_most_the_requests_in_flight() {
    const BUDGET: u64 = 1_000_000;
    const COST_MAX: u64 = 100_000;
    const UNDER_WAY: u64 = 8;
    let nodes = Nodes::start(
        "- {name: g, rules: [{name: BUDGET, per: [], limit: 0.001 USD/day, mode: optimistic}]}\n\
         - {name: c, rules: [{name: SLOTS, per: [], limit: 8 concurrent, lease: 60s}]}\n",
    );
    let (spent, allowed) = (AtomicU64::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for caller in 1..=CALLERS / 4 {
            let (nodes, spent, allowed) = (&nodes, &spent, &allowed);
            scope.spawn(move || {
                let mut random = Random(caller.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                loop {
                    // Without an estimate, like most callers.
                    let answer = nodes.post(caller, "/v1/acquire", &json!({ "dimensions": {} }));
                    if answer["scopeHit"] == "BUDGET" {
                        return;
                    }
                    if answer["allowed"] == false {
                        thread::yield_now();
                        continue;
                    }
                    allowed.fetch_add(1, Ordering::SeqCst);
                    let actual = random.up_to(COST_MAX);
                    let cost = json!({ "usd": dollars(actual) });
                    let settle = json!({ "handle": answer["handle"], "cost": cost });
                    nodes.post(caller + 1, "/v1/settle", &settle);
                    spent.fetch_add(actual, Ordering::SeqCst);
                }
            });
        }
    });
    let (spent, allowed) = (spent.into_inner(), allowed.into_inner());
    assert_eq!(nodes.spent(), spent);
    assert!(spent >= BUDGET, "callers went on until it was used up: {spent}");
    let bound = BUDGET - 1 + UNDER_WAY * COST_MAX;
    assert!(spent <= bound, "{spent}, more than {bound}, after {allowed} admissions");
}

#[test]
fn per_replica_counters_do_not_multiply_the_limit_by_the_number_of_nodes() {
    let limits = "- {name: g, rules: [{name: BUDGET, per: [], limit: [30/h, 1 USD/day]}]}\n";
    let nodes = Nodes::start(limits);
    let ask = json!({ "dimensions": {}, "cost": { "usd": "0.0001" } });
    let allowed = (0..80).filter(|&n| nodes.post(n, "/v1/acquire", &ask)["allowed"] == true);
    assert_eq!(allowed.count(), 30);
}

#[test]
fn the_assistant_fails_open_without_redis_and_comes_back_by_itself() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/assistant-api");
    let text = std::fs::read_to_string(format!("{example}/sluicegate.yaml")).expect("the example");
    let (before, rest) = text.split_once("listen:\n").expect("listeners");
    let (_, after) = rest.split_once("\n\n").expect("more after the listeners");
    let mut redis = RedisServer::start(Version::System, &[]);
    let port = redis.port.to_string();
    let environment = [("REDIS_HOST", "127.0.0.1"), ("REDIS_PORT", &port)];
    let environment = environment.map(|(name, value)| (name, Path::new(value)));
    let node = RunningService::start_with(&format!("{before}{after}"), &environment);
    let ready = |word: &str| {
        eventually(|| get(&format!("{}/ready", node.admin)).1.contains(word));
    };
    let ask = json!({ "dimensions": { "userId": "ann" }, "cost": { "inputTokens": 868 } });
    let asks = || post(&format!("{}/v1/acquire?status=429", node.http), &ask, None);
    ready("\"ready\"");
    assert_eq!(asks().0, 200);
    redis.kill();
    ready("degraded");
    // Ten times ten a minute, of which one of four nodes gets a quarter.
    let allowed = (0..40).filter(|_| asks().0 == 200).count();
    assert_eq!(allowed, 25);
    let (_, shown) = get(&format!("{}/metrics", node.admin));
    assert!(shown.contains("rate_limiter_fallback_total{mode=\"open\"} 40"), "{shown}");
    redis.restart();
    ready("\"ready\"");
    assert_eq!(asks().0, 200);
}
