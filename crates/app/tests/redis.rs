//! End-to-end tests of `sluicegate serve` on Redis.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::idle::{assert_idle, everything};
use common::{RunningService, get, post, sluicegate};
use serde_json::{Value, json};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Span, Timestamp};
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::ports::free_port;
use sluicegate_testkit::proxy::FaultProxy;
use sluicegate_testkit::redis::{RedisCluster, RedisServer, Version};
use sluicegate_testkit::{eventually, eventually_is};

fn ann() -> Value {
    json!({ "userId": "ann", "modelId": "gpt4" })
}

/// Returns a store with longer timeouts than in production: tests share the machine.
fn on(redis: &RedisServer, more: &str) -> String {
    let url = format!("redis://127.0.0.1:{}", redis.port);
    format!("store: {{kind: redis, url: '{url}', timeout: 2s, deadline: 5s{more}}}\n")
}

/// Polls a probe until it returns the expected response.
fn wait_for(service: &RunningService, ready: &str) {
    eventually_is(|| get(&format!("{}/ready", service.admin)).1, ready);
}

const READY: &str = "{\"status\":\"ready\"}";
const UNHEALTHY: &str = "{\"status\":\"unhealthy\",\"reason\":\"redis\"}";

/// The file of the old inference limiter, with small limits.
const OLD_LIMITS: &str = "
rate_limits:
  default: {limit: 3, window_ms: 3600000}
  scopes:
    - {type: TENANT_MODEL_TIER, limit: 2, window_ms: 3600000, tier: PREMIUM, reason: HIT_TENANT_TIER_MODEL_LIMIT}
    - {type: TENANT_GLOBAL, limit: 4, window_ms: 3600000}
    - {type: API_KEY_MODEL, limit: 1, window_ms: 3600000}
    - {type: GLOBAL_MODEL, limit: 12, window_ms: 3600000}
";

/// Serves the old `config.yaml` with this section `redis` on some nodes, and uses up each of its limits by
/// asking the nodes in turn.
fn check_old_limits(redis: &str, nodes: usize) {
    let config = format!("{redis}{OLD_LIMITS}");
    let services: Vec<_> = (0..nodes).map(|_| RunningService::start(&config)).collect();
    services.iter().for_each(|service| wait_for(service, READY));
    let mut next = services.iter().cycle();
    // Sends a request until it is denied; returns the number of admissions and the reason.
    let mut exhaust = |request: Value| {
        for admitted in 0..20 {
            let (status, answer) = next.next().expect("a node").allow(&request);
            assert_eq!(status, 200, "{answer}");
            if answer["allowed"] == false {
                return (admitted, answer["reason"].as_str().expect("a reason").to_owned());
            }
        }
        panic!("{request} is never denied");
    };
    for (request, admitted, reason) in [
        (json!({"userId": "ann", "modelId": "m"}), 3, "HIT_USER_MODEL_LIMIT"),
        (json!({"userId": "bob", "modelId": "m", "apiKey": "k"}), 1, "HIT_API_KEY_MODEL_LIMIT"),
        (
            json!({"userId": "eve", "modelId": "m", "tenantId": "t", "modelTier": "PREMIUM"}),
            2,
            "HIT_TENANT_TIER_MODEL_LIMIT",
        ),
        (json!({"userId": "joe", "modelId": "m", "tenantId": "u"}), 3, "HIT_USER_MODEL_LIMIT"),
        (json!({"userId": "kim", "modelId": "m", "tenantId": "u"}), 1, "HIT_TENANT_GLOBAL_LIMIT"),
        // Ten of the twelve requests to the model are used.
        (json!({"userId": "lea", "modelId": "m"}), 2, "HIT_GLOBAL_MODEL_LIMIT"),
        (json!({"userId": "lea", "modelId": "other"}), 3, "HIT_USER_MODEL_LIMIT"),
    ] {
        let shown = request.to_string();
        assert_eq!(exhaust(request), (admitted, reason.to_owned()), "{redis}: {shown}");
    }
}

#[test]
fn the_limits_of_an_old_file_hold_in_memory_on_redis_and_in_a_cluster() {
    check_old_limits("", 1);
    let redis = RedisServer::start(Version::System, &[]);
    let section = |mode: bool, ports: &[u16]| {
        let servers: Vec<_> = ports.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
        // Longer than in production: tests share the machine.
        format!(
            "redis: {{cluster_mode: {mode}, endpoints: [{}], timeout_ms: 2000}}\n",
            servers.join(", ")
        )
    };
    check_old_limits(&section(false, &[redis.port]), 2);
    assert!(redis.command(&["KEYS", "*USER_MODEL*"]).contains("ann"), "usage is in Redis");
    let cluster = RedisCluster::start(3);
    let ports: Vec<_> = cluster.primaries.iter().map(|server| server.port).collect();
    check_old_limits(&section(true, &ports), 2);
    let keys = cluster.primaries.iter().map(|server| server.command(&["KEYS", "*USER_MODEL*"]));
    assert!(keys.collect::<String>().contains("ann"), "usage is in the cluster");
}

#[test]
fn two_services_on_one_redis_admit_exactly_the_limit() {
    let redis = RedisServer::start(Version::System, &[]);
    let services = [RunningService::start(&on(&redis, "")), RunningService::start(&on(&redis, ""))];
    services.iter().for_each(|service| wait_for(service, READY));
    let (allowed, denied) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for n in 0..20 {
            let service = &services[n % 2];
            let (allowed, denied) = (&allowed, &denied);
            scope.spawn(move || {
                for _ in 0..50 {
                    let (status, answer) = service.allow(&ann());
                    assert_eq!(status, 200, "{answer}");
                    let counted = if answer["allowed"] == true { allowed } else { denied };
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    let both = (allowed.into_inner(), denied.into_inner());
    assert_eq!(both, (100, 900));
}

#[test]
fn a_dashboard_shows_all_nodes_and_forgets_those_that_end() {
    let redis = RedisServer::start(Version::System, &[]);
    let [one, other] =
        [RunningService::start(&on(&redis, "")), RunningService::start(&on(&redis, ""))];
    [&one, &other].into_iter().for_each(|service| wait_for(service, READY));
    assert_eq!(other.allow(&ann()).1["allowed"], true);
    let nodes = || {
        let (status, text) = get(&format!("{}/v1/dashboard/nodes", one.admin));
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        answer["nodes"].as_array().expect("nodes").clone()
    };
    let seen = |nodes: &[Value]| {
        let users = nodes.iter().map(|node| &node["callers"]["userId"]["requested"][0]["value"]);
        users.filter(|user| **user == "ann").count()
    };
    eventually_is(|| (nodes().len(), seen(&nodes())), (2, 1));
    other.kill();
    eventually_is(|| nodes().len(), 1);
}

#[test]
fn an_override_reaches_every_node_and_survives_all_of_them() {
    let redis = RedisServer::start(Version::System, &[]);
    let services = [RunningService::start(&on(&redis, "")), RunningService::start(&on(&redis, ""))];
    services.iter().for_each(|service| wait_for(service, READY));
    let body = json!({ "rule": "USER_MODEL", "when": { "userId": "ann" }, "limit": "7/h",
        "reason": "a test" });
    let (status, set) = post(&format!("{}/v1/overrides", services[0].http), &body, None);
    assert_eq!(status, 201, "{set}");
    let limit = |service: &RunningService| service.allow(&ann()).1["effectiveLimit"].clone();
    assert_eq!(limit(&services[0]), 7);
    // A node reads overrides every half second.
    eventually_is(|| limit(&services[1]), 7);
    for service in services {
        service.signal("-TERM");
        assert_eq!(service.end().0, Some(0));
    }
    let again = RunningService::start(&on(&redis, ""));
    wait_for(&again, READY);
    eventually_is(|| limit(&again), 7);
}

#[test]
fn the_logs_of_nodes_that_share_a_redis_prove_every_limit() {
    let redis = RedisServer::start(Version::System, &[]);
    let limits = "limits:
- {name: user, rules: [{name: USER, per: [userId], limit: [5/100ms, 20/s]}]}
- {name: model, rules: [{name: MODEL, per: [modelId], limit: 30/s}]}
- {name: all, rules: [{name: ALL, per: [], limit: [100/2s, 60 tokens/s]}]}
";
    let services: Vec<_> =
        (0..3).map(|_| RunningService::start(&(on(&redis, "") + limits))).collect();
    services.iter().for_each(|service| wait_for(service, READY));
    let denied = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..12 {
            let (service, denied) = (&services[n % 3], &denied);
            scope.spawn(move || {
                for i in 0..150 {
                    let (user, model) = (format!("u{}", (n + i) % 3), format!("m{}", i % 2));
                    let body = json!({
                        "dimensions": { "userId": user, "modelId": model },
                        "cost": { "inputTokens": i % 4 },
                    });
                    let (status, answer) =
                        post(&format!("{}/v1/acquire", service.http), &body, None);
                    assert_eq!(status, 200, "{answer}");
                    denied.fetch_add(usize::from(answer["allowed"] == false), Ordering::SeqCst);
                }
            });
        }
    });
    assert!(denied.into_inner() > 100, "limits that nobody met prove nothing");
    let folder = tempfile::tempdir().expect("a folder");
    let mut verify = sluicegate();
    verify.arg("verify");
    for (number, service) in services.into_iter().enumerate() {
        service.signal("-TERM");
        let (_, decisions) = service.end();
        let log = folder.path().join(format!("{number}.log"));
        std::fs::write(&log, decisions).expect("a file");
        verify.arg(log);
    }
    let said = verify.output().expect("it runs");
    let text = String::from_utf8_lossy(&said.stdout);
    assert_eq!(said.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn a_claim_on_redis_states_what_was_booked_and_survives_a_reload() {
    let redis = RedisServer::start(Version::System, &[]);
    let limits = |rule: &str| {
        on(&redis, "")
            + &format!(
                "limits: [{{name: g, rules: [{{name: {rule}, per: [userId], limit: 5/h}}]}}]\n"
            )
    };
    let service = RunningService::start(&limits("USER"));
    wait_for(&service, READY);
    let ask = |id: &str, user: &str, requests: u64| json!({ "id": id, "dimensions": { "userId": user }, "cost": { "requests": requests } });
    let asks = |path: &str, body: Value| post(&format!("{}{path}", service.http), &body, None);
    let claims =
        |request: Value| asks("/v1/claim", json!({ "request": request, "claimant": "me" }));
    for id in ["a", "b"] {
        let (_, booked) = asks("/v1/book", ask(id, "ann", 1));
        assert_eq!(booked["allowed"], true, "{booked}");
    }
    for other in [ask("a", "ann", 5), ask("a", "bob", 1)] {
        let (status, answer) = claims(other);
        assert_eq!(status, 409, "{answer}");
    }
    assert_eq!(claims(ask("a", "ann", 1)).1["claim"], "go");
    // Under another rule, the second booking must be made again.
    service.write(&limits("PERSON"));
    let counted_by = |rule: &str| {
        let (_, explained) = asks("/v1/explain", ask("x", "ann", 1));
        explained.to_string().contains(rule)
    };
    assert!((0..100_000).any(|_| counted_by("PERSON")), "the file is not read again");
    let (status, rebooked) = claims(ask("b", "ann", 1));
    assert_eq!((status, &rebooked["claim"]), (200, &json!("rebooked")), "{rebooked}");
    let (status, go) = claims(ask("b", "ann", 1));
    assert_eq!((status, &go["claim"]), (200, &json!("go")), "{go}");
    assert_eq!(redis.command(&["ZCARD", "sg:{USER:ann#requests}"]), ":1", "the first has gone");
    assert_eq!(redis.command(&["ZCARD", "sg:{PERSON:ann#requests}"]), ":1");
}

#[test]
fn a_limit_that_changes_its_shape_with_a_restart_keeps_its_usage() {
    let redis = RedisServer::start(Version::System, &[]);
    let limits = |limit: &str| {
        let rule = format!("{{name: USER, per: [userId], limit: {limit}}}");
        on(&redis, "") + &format!("limits: [{{name: g, rules: [{rule}]}}]\n")
    };
    let admitted = |service: &RunningService, calls: usize| {
        (0..calls).filter(|_| service.allow(&ann()).1["allowed"] == true).count()
    };
    let written = |limit: &str| {
        let shared = redis.command(&["HVALS", "sg:{shelf}"]);
        shared.contains(&format!("[\\\"{limit}\\\"]")) || shared.contains(&format!("[\"{limit}\"]"))
    };
    let before = RunningService::start(&limits("20/h"));
    wait_for(&before, READY);
    assert_eq!(admitted(&before, 15), 15);
    eventually(|| written("20/h"));
    // A rolling restart: the second starts while the first still serves.
    let after = RunningService::start(&limits("20/h windowed"));
    wait_for(&after, READY);
    assert_eq!(admitted(&after, 3), 3);
    assert_eq!(admitted(&before, 1), 1, "the old node has counted what the new one admitted");
    before.stop();
    assert_eq!(admitted(&after, 9), 1);
    after.stop();
    let last = RunningService::start(&limits("20/h"));
    wait_for(&last, READY);
    assert_eq!(admitted(&last, 9), 0, "and back again");
}

#[test]
fn any_node_can_settle_an_admission_on_redis() {
    let redis = RedisServer::start(Version::System, &[]);
    let limits = "limits: [{name: g, rules: [{name: BUDGET, per: [userId], limit: [1.00 USD/day, \
                  1 concurrent], lease: 1h}]}]\n";
    let nodes = [(); 2].map(|()| RunningService::start(&(on(&redis, "") + limits)));
    nodes.iter().for_each(|node| wait_for(node, READY));
    for spent in ["0.60", "1.20"] {
        let (_, answer) = nodes[0].allow(&ann());
        assert_eq!(answer["allowed"], true, "{answer}");
        assert_eq!(nodes[1].allow(&ann()).1["allowed"], false, "the slot is taken");
        let settle = json!({ "handle": answer["handle"], "cost": { "usd": "0.60" } });
        let (status, settled) = post(&format!("{}/v1/settle", nodes[1].http), &settle, None);
        assert_eq!(status, 200, "{settled}");
        let usage = json!({ "dimensions": ann() });
        let (_, usage) = post(&format!("{}/v1/usage", nodes[0].http), &usage, None);
        let current = (&usage["scopes"][0]["current"], &usage["scopes"][1]["current"]);
        let spent: f64 = spent.parse().expect("a number");
        assert_eq!(current, (&json!(spent), &json!(0)), "{usage}");
    }
    assert_eq!(nodes[1].allow(&ann()).1["reason"], "HIT_BUDGET_LIMIT");
}

#[test]
fn calls_that_were_denied_because_redis_was_slow_are_not_charged() {
    let redis = RedisServer::start(Version::System, &[]);
    let proxy = FaultProxy::start(redis.port);
    let config = format!(
        "store: {{kind: redis, url: 'redis://127.0.0.1:{}', timeout: 20ms, deadline: 45ms}}\n",
        proxy.port
    );
    let service = RunningService::start(&config);
    wait_for(&service, READY);
    proxy.delay(Duration::from_millis(60));
    for number in 0..20 {
        let body = json!({ "id": format!("call-{number}"), "dimensions": ann() });
        let body = if number % 2 == 0 { json!({ "dimensions": ann() }) } else { body };
        let (status, answer) = post(&format!("{}/v1/acquire", service.http), &body, None);
        let told = (status, &answer["allowed"], &answer["reason"]);
        assert_eq!(told, (200, &json!(false), &json!("STORE_UNAVAILABLE")), "{answer}");
    }
    proxy.delay(Duration::ZERO);
    wait_for(&service, READY);
    let (clock, second) = (MonotonicClock::new(), Span::from_secs(1));
    let answered = clock.now();
    let charged = || redis.command(&["ZCARD", "sg:{USER_MODEL:ann:gpt4#requests}"]) != ":0";
    while charged() {
        assert!(clock.now().since(answered) < second, "still charged");
        thread::yield_now();
    }
    let metrics = || get(&format!("{}/metrics", service.admin)).1;
    let done = || metrics().contains("sluicegate_redis_taking_back 0");
    assert!((0..100_000).any(|_| done()), "{}", metrics());
    assert!(metrics().contains("sluicegate_redis_not_taken_back_total 0"), "{}", metrics());
}

/// Returns the times of the entries of a log in Redis, in microseconds.
fn log_entries(redis: &RedisServer, key: &str) -> Vec<u64> {
    let reply = redis.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
    let micros = |line: &str| line.parse().ok().filter(|_| line.len() == 16);
    reply.lines().filter_map(micros).collect()
}

/// A retry is decided later than its charge was written. A log with the time of the decision would
/// show the charge in a window that it had left in Redis.
#[test]
fn a_lost_reply_does_not_make_an_honest_log_look_exceeded() {
    // The first limits are decided by the fast script, the others by the full one.
    for limits in ["[1/300ms, 100/h]", "[1/300ms, 100/h, 1000 tokens/h]"] {
        let redis = RedisServer::start(Version::System, &[]);
        let proxy = FaultProxy::start(redis.port);
        let config = format!(
            "store: {{kind: redis, url: 'redis://127.0.0.1:{}', timeout: 1s, deadline: 20s, \
             retries: 3}}\nlimits: [{{name: g, rules: [{{name: USER, per: [userId], limit: \
             {limits}}}]}}]\n",
            proxy.port
        );
        let service = RunningService::start(&config);
        wait_for(&service, READY);
        let mut entries = Vec::new();
        for user in ["u1", "u2", "u3", "u4"] {
            let is_admitted = || {
                let (status, answer) = service.allow(&json!({ "userId": user, "modelId": "m" }));
                assert_eq!(status, 200, "{answer}");
                answer["allowed"] == true
            };
            proxy.cut_next_reply();
            assert!(is_admitted());
            // The next one is admitted at the edge of the window.
            while !is_admitted() {}
            entries.extend(log_entries(&redis, &format!("sg:{{USER:{user}#requests}}")));
        }
        let log = service.stop();
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let admitted: Vec<_> = lines.filter(|line| line["allowed"] == true).collect();
        let time = |line: &Value, name: &str| {
            let time = line[name].as_str()?.parse::<Timestamp>().expect("a time");
            Some(time.as_micros())
        };
        let charged =
            admitted.iter().map(|line| time(line, "start").or(time(line, "at")).expect("a time"));
        assert_eq!(charged.collect::<Vec<_>>(), entries, "{limits}: the times in Redis\n{log}");
        let late = admitted.iter().filter(|line| time(line, "start") < time(line, "at"));
        let retried = late.filter(|line| !line["start"].is_null()).count();
        assert!(proxy.lost() >= 4 && retried > 0, "{limits}: {retried} retries\n{log}");
        let (code, said) = verified(&log, &[]);
        assert_eq!(code, Some(0), "{limits}: {said}\n{log}");
    }
}

#[test]
fn the_count_of_a_literal_key_can_be_read_in_redis() {
    let redis = RedisServer::start(Version::System, &[]);
    let limits = "limits: [{name: g, rules: [{name: WORKER, per: [provider], limit: 500/min, \
                  key: 'ziraai:worker:ratelimit:<provider>'}]}]\n";
    let service = RunningService::start(&(on(&redis, "") + limits));
    wait_for(&service, READY);
    for _ in 0..7 {
        let gemini = json!({ "userId": "u", "modelId": "m", "provider": "gemini" });
        let (_, answer) = service.allow(&gemini);
        assert_eq!(answer["allowed"], true, "{answer}");
    }
    let key = "ziraai:worker:ratelimit:gemini";
    assert_eq!(redis.command(&["ZCARD", key]), ":7");
    assert_eq!(redis.command(&["TYPE", key]), "+zset");
    let ttl: u64 = redis.command(&["TTL", key])[1..].parse().expect("a number");
    assert!((120..=126).contains(&ttl), "two windows: {ttl} s");
}

#[test]
fn a_service_reports_that_redis_is_down_and_recovers_with_it() {
    let mut redis = RedisServer::start(Version::System, &[]);
    let service = RunningService::start(&on(&redis, ""));
    wait_for(&service, READY);
    assert_eq!(service.allow(&ann()).1["allowed"], true);
    redis.kill();
    wait_for(&service, UNHEALTHY);
    let (status, answer) = service.allow(&ann());
    assert_eq!((status, &answer["reason"]), (200, &json!("STORE_UNAVAILABLE")), "{answer}");
    let (_, shown) = get(&format!("{}/metrics", service.admin));
    for expected in [
        "sluicegate_redis_up 0",
        "sluicegate_redis_evicts 0",
        "rate_limiter_redis_calls_total{operation=\"acquire\"} 2",
        "rate_limiter_redis_errors_total{type=\"down\",operation=\"acquire\"} 1",
        "rate_limiter_redis_latency_seconds_count{operation=\"acquire\"} 2",
        "rate_limiter_fallback_total{mode=\"closed\"} 1",
    ] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    redis.restart();
    wait_for(&service, READY);
    assert_eq!(service.allow(&ann()).1["remaining"], 99, "it came back empty");
}

#[test]
fn while_redis_is_down_the_policy_of_the_client_type_decides() {
    let mut redis = RedisServer::start(Version::System, &[]);
    let outage = "outage: {default: closed, by_client_type: {INTERNAL: local, BATCH: unlimited}}\n";
    let service = RunningService::start(&(on(&redis, ", nodes_max: 5") + outage));
    wait_for(&service, READY);
    redis.kill();
    wait_for(&service, "{\"status\":\"degraded\",\"reason\":\"redis\"}");
    let allowed = |client_type: &str| {
        let body = json!({ "userId": "ann", "modelId": "gpt4", "clientType": client_type });
        (0..50).filter(|_| service.allow(&body).1["allowed"] == true).count()
    };
    // A hundred per hour: a node on its own gets half of a fifth.
    assert_eq!([allowed("EXTERNAL"), allowed("INTERNAL"), allowed("BATCH")], [0, 10, 50]);
    redis.restart();
    wait_for(&service, READY);
    assert_eq!(service.allow(&ann()).1["allowed"], true);
}

/// Verifies the log of a service; returns the exit code and the output.
fn verified(log: &str, options: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.log"), log).expect("a file");
    let mut command = sluicegate();
    command.arg("verify").args(options).arg("a.log").current_dir(folder.path());
    let output = command.output().expect("it runs");
    let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
    (output.status.code(), said)
}

#[test]
fn an_outage_policy_hides_no_admission_from_a_proof() {
    let mut redis = RedisServer::start(Version::System, &[]);
    let more = "outage: {default: open}\n\
                limits: [{name: g, rules: [{name: USER, per: [userId], limit: 30/h}]}]\n";
    let service = RunningService::start(&(on(&redis, ", nodes_max: 1") + more));
    wait_for(&service, READY);
    let allowed = || (0..50).filter(|_| service.allow(&ann()).1["allowed"] == true).count();
    assert_eq!(allowed(), 30);
    redis.kill();
    wait_for(&service, "{\"status\":\"degraded\",\"reason\":\"redis\"}");
    // The last denial of the store is cached for up to a second.
    eventually(|| service.allow(&ann()).1["allowed"] == true);
    assert_eq!(allowed(), 50);
    service.signal("-TERM");
    let (_, log) = service.end();
    let (code, said) = verified(&log, &[]);
    assert!(code == Some(1) && said.contains("81 of 30"), "{said}");
    let (code, said) = verified(&log, &["--bound", "2"]);
    assert_eq!(code, Some(1), "{said}");
    // Ten times the limit by the policy, plus the earlier admissions by the store.
    let (code, said) = verified(&log, &["--bound", "11"]);
    assert!(code == Some(0) && said.contains("proven: 81 admissions"), "{said}");
}

#[test]
fn admissions_by_the_policy_unlimited_can_be_settled_and_released() {
    let mut redis = RedisServer::start(Version::System, &[]);
    let more = "outage: {default: unlimited}\n\
                limits: [{name: g, rules: [{name: R, per: [], limit: [1000 tokens/h, 3 concurrent]}]}]\n";
    let service = RunningService::start(&(on(&redis, "") + more));
    wait_for(&service, READY);
    redis.kill();
    wait_for(&service, "{\"status\":\"degraded\",\"reason\":\"redis\"}");
    let call = |path: &str, body: &Value| post(&format!("{}/v1/{path}", service.http), body, None);
    let cost = json!({ "inputTokens": 10 });
    for (hold, ends) in [(json!("1min"), &["settle"][..]), (Value::Null, &["renew", "release"])] {
        let mut body = json!({ "dimensions": {}, "cost": cost });
        if !hold.is_null() {
            body["hold"] = hold;
        }
        let (status, answer) = call("acquire", &body);
        assert!(status == 200 && answer["allowed"] == true, "{answer}");
        for end in ends {
            let mut body = json!({ "handle": answer["handle"] });
            if *end == "settle" {
                body["cost"] = cost.clone();
            }
            let (status, told) = call(end, &body);
            assert_eq!(status, 200, "{end}: {told}");
        }
    }
    service.signal("-TERM");
    let (_, log) = service.end();
    assert!(log.contains(r#""decided":"unlimited""#), "{log}");
    assert!(log.contains(r#""operation":"settle""#) && log.contains(r#""operation":"release""#));
    let (code, said) = verified(&log, &[]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn passwords_users_and_databases_are_used() {
    let user = ["--user", "ann", "on", ">hush", "~*", "&*", "+@all"];
    let redis = RedisServer::start(Version::System, &user);
    let url = format!("redis://ann:hush@127.0.0.1:{}/7", redis.port);
    let config = format!(
        "store: {{kind: redis, url: '{url}', timeout: 2s, deadline: 5s, key_prefix: 'x:'}}\n"
    );
    let service = RunningService::start(&config);
    wait_for(&service, READY);
    assert_eq!(service.allow(&ann()).1["allowed"], true);
    let keys = redis.command(&["INFO", "keyspace"]);
    // A counter, the heartbeat count and the limits of the rules, and soon the list of nodes and
    // their summaries.
    assert!((3..=5).any(|count| keys.contains(&format!("db7:keys={count}"))), "{keys}");
    assert!(!keys.contains("db0"), "{keys}");
}

#[test]
fn a_connection_is_encrypted_and_the_certificate_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("text").to_owned()
    };
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("one");
    let trusted = file("trusted.pem", &certified.cert.pem());
    let key = file("key.pem", &certified.signing_key.serialize_pem());
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("another");
    let untrusted = file("other.pem", &other.cert.pem());

    let tls_port = free_port().to_string();
    let options =
        ["--tls-port", &tls_port, "--tls-auth-clients", "no", "--tls-cert-file", &trusted];
    let options =
        [&options[..], &["--tls-key-file", &key, "--tls-ca-cert-file", &trusted]].concat();
    let _redis = RedisServer::start(Version::System, &options);
    let config = format!(
        "store: {{kind: redis, url: 'rediss://localhost:{tls_port}', timeout: 2s, deadline: 5s}}\n"
    );
    let service = RunningService::start_with(&config, &[("SSL_CERT_FILE", Path::new(&trusted))]);
    wait_for(&service, READY);
    assert_eq!(service.allow(&ann()).1["allowed"], true);

    let wary = RunningService::start_with(&config, &[("SSL_CERT_FILE", Path::new(&untrusted))]);
    for _ in 0..20 {
        let (_, answer) = wary.allow(&ann());
        assert_eq!(answer["reason"], "STORE_UNAVAILABLE", "the certificate is not to be trusted");
    }
}

#[test]
fn a_redis_that_evicts_keys_causes_a_warning() {
    let redis = RedisServer::start(Version::System, &["--maxmemory-policy", "volatile-lru"]);
    let service = RunningService::start(&on(&redis, ""));
    wait_for(&service, READY);
    let warned = |event: &Value| event["level"] == "WARN" && event["policy"] == "volatile-lru";
    eventually(|| service.logged().iter().any(warned));
}

/// Returns the log lines of a service with this message.
fn told(service: &RunningService, message: &str) -> Vec<Value> {
    let all = service.logged();
    all.into_iter().filter(|line| line["message"] == message).collect()
}

fn metrics(service: &RunningService) -> String {
    get(&format!("{}/metrics", service.admin)).1
}

/// Tests a Redis that answers but rejects writes, and then accepts them again.
fn rejected_writes_are_reported(reason: &str, begin: &[&str], end: &[&str]) {
    let redis = RedisServer::start(Version::System, &[]);
    let service = RunningService::start(&on(&redis, ""));
    wait_for(&service, READY);
    assert!(metrics(&service).contains("sluicegate_redis_refuses_writes{reason=\"none\"} 0"));
    assert_eq!(redis.command(begin), "+OK");
    wait_for(&service, &format!("{{\"status\":\"unhealthy\",\"reason\":\"{reason}\"}}"));
    for _ in 0..5 {
        let (_, answer) = service.allow(&ann());
        assert_eq!(answer["reason"], "STORE_UNAVAILABLE", "{answer}");
    }
    let shown = metrics(&service);
    let expected = format!("sluicegate_redis_refuses_writes{{reason=\"{reason}\"}} 1");
    assert!(shown.contains(&expected), "{expected} in {shown}");
    let lines = told(&service, "Redis refuses writes: outage policies decide");
    assert_eq!(lines.len(), 1, "told once: {lines:?}");
    assert_eq!(lines[0]["reason"], reason);
    assert_eq!(redis.command(end), "+OK");
    wait_for(&service, READY);
    assert_eq!(service.allow(&ann()).1["allowed"], true);
    eventually_is(|| told(&service, "Redis accepts writes again").len(), 1);
}

#[test]
fn a_redis_that_is_out_of_memory_is_reported() {
    let (full, free) = (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]);
    rejected_writes_are_reported("redis_out_of_memory", &full, &free);
}

#[test]
fn a_read_only_redis_is_reported() {
    let (replica, primary) = (["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"]);
    rejected_writes_are_reported("redis_read_only", &replica, &primary);
}

#[test]
fn a_redis_without_persistence_causes_a_warning_and_its_data_loss_is_reported() {
    let mut redis = RedisServer::start(Version::System, &[]);
    let service = RunningService::start(&on(&redis, ", on_loss: closed"));
    wait_for(&service, READY);
    let warned = service.logged().iter().any(|line| {
        let message = line["message"].as_str().unwrap_or_default();
        line["level"] == "WARN" && message.starts_with("Redis keeps no append-only file")
    });
    assert!(warned, "{:?}", service.logged());
    assert_eq!(service.allow(&ann()).1["allowed"], true);
    assert!(metrics(&service).contains("sluicegate_redis_memory_losses_total 0"));
    redis.kill();
    wait_for(&service, UNHEALTHY);
    redis.restart();
    wait_for(&service, READY);
    let (status, answer) = service.allow(&ann());
    assert_eq!((status, &answer["reason"]), (200, &json!("STORE_LOST_MEMORY")), "{answer}");
    let (status, answer) = post(
        &format!("{}/v1/acquire?status=429", service.http),
        &json!({ "dimensions": ann() }),
        None,
    );
    assert_eq!(status, 503, "{answer}");
    assert!(metrics(&service).contains("sluicegate_redis_memory_losses_total 1"));
    let lines = told(&service, "Redis lost data");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["cause"], "restarted empty");
    assert_ne!(lines[0]["run_id"], lines[0]["run_id_before"]);
}

/// A service that is paused during its requests answers late or not at all. It rolls back what Redis
/// charged in the meantime, and the other service is not affected.
#[test]
fn a_service_that_is_stopped_leaves_nothing_charged_in_a_cluster() {
    let cluster = RedisCluster::start(3);
    let seeds: Vec<_> =
        cluster.primaries.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let config = format!(
        "store: {{kind: redis, cluster: [{}], timeout: 100ms, deadline: 250ms}}\n\
         limits:\n\
         \x20 - {{name: user, rules: [{{name: USER, per: [userId], limit: 1000000/h}}]}}\n\
         \x20 - {{name: model, rules: [{{name: MODEL, per: [modelId], limit: 1000000/h}}]}}\n",
        seeds.join(", ")
    );
    let services = [RunningService::start(&config), RunningService::start(&config)];
    services.iter().for_each(|service| wait_for(service, READY));
    let (allowed, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for n in 0..8 {
            let (service, allowed, done) = (&services[n % 2], &allowed, &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let (_, answer) = service.allow(&ann());
                    allowed.fetch_add(usize::from(answer["allowed"] == true), Ordering::SeqCst);
                }
            });
        }
        let goes_on = |more: usize| {
            let before = allowed.load(Ordering::SeqCst);
            eventually(|| allowed.load(Ordering::SeqCst) >= before + more);
        };
        let clock = MonotonicClock::new();
        for _ in 0..5 {
            goes_on(100);
            services[0].signal("-STOP");
            // The other one continues for longer than the deadline, but not for as long as a
            // connection may take to send its request.
            let stopped = clock.now();
            goes_on(100);
            eventually(|| clock.now().since(stopped) > Span::from_millis(500));
            services[0].signal("-CONT");
        }
        goes_on(100);
        done.store(true, Ordering::SeqCst);
    });
    let counted = |key: &str| {
        let answers = cluster.primaries.iter().map(|server| server.command(&["ZCARD", key]));
        let found = answers.filter_map(|answer| answer.strip_prefix(':')?.parse::<usize>().ok());
        found.sum::<usize>()
    };
    let expected = [allowed.load(Ordering::SeqCst); 2];
    let keys = ["sg:{USER:ann#requests}", "sg:{MODEL:gpt4#requests}"];
    eventually_is(|| keys.map(counted), expected);
}

#[test]
fn an_idle_service_on_redis_with_every_part_uses_less_than_one_percent_of_a_core() {
    let redis = RedisServer::start(Version::System, &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let service =
        RunningService::start(&format!("{}{}", on(&redis, ""), everything(folder.path())));
    wait_for(&service, READY);
    assert_idle(&service);
}
