//! End-to-end tests of `sluicegate serve`.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use common::{RunningService, get, post, sluicegate};
use serde_json::{Value, json};
use sluicegate_testkit::{eventually, eventually_is};

fn ann() -> Value {
    json!({ "userId": "ann", "modelId": "gpt4" })
}

fn limit(text: &str) -> String {
    format!(
        "limits: [{{name: g, effective: true, rules: [{{name: USER, per: [userId], limit: {text}}}]}}]\n"
    )
}

#[test]
fn by_default_a_hundred_are_allowed_and_the_next_is_denied() {
    let service = RunningService::start("");
    for n in 1..=100 {
        let (status, answer) = service.allow(&ann());
        assert_eq!(
            (status, &answer["allowed"], &answer["remaining"]),
            (200, &json!(true), &json!(100 - n))
        );
    }
    let (status, answer) = service.allow(&ann());
    assert_eq!(status, 200);
    assert_eq!(
        (&answer["allowed"], &answer["reason"], &answer["scopeHit"]),
        (&json!(false), &json!("HIT_USER_MODEL_LIMIT"), &json!("USER_MODEL")),
    );
    assert_eq!(get(&format!("{}/health", service.http)), (200, "{\"status\":\"healthy\"}".into()));
    assert_eq!(get(&format!("{}/ready", service.admin)), (200, "{\"status\":\"ready\"}".into()));
}

#[test]
fn unknown_paths_and_methods_of_every_listener_have_an_answer_that_says_so() {
    let service = RunningService::start(&limit("3/h"));
    for (url, words) in [(&service.http, "see /docs"), (&service.admin, "metrics are at /metrics")]
    {
        let (status, body) = get(&format!("{url}/v1/no-such-path"));
        assert!(status == 404 && body.contains(words), "{status} {body}");
    }
    let (status, body) = get(&format!("{}/reload", service.admin));
    assert!(status == 405 && body.contains("does not support this method"), "{status} {body}");
}

#[test]
fn a_changed_file_is_reloaded_and_an_invalid_one_is_rejected() {
    let service = RunningService::start(&limit("3/h"));
    assert_eq!(service.allow(&ann()).1["remaining"], 2);

    let reload = format!("{}/reload", service.admin);
    service.write(&limit("5/h"));
    let (status, told) = post(&reload, &json!({}), None);
    assert_eq!((status, &told["reloaded"]), (200, &json!(true)));
    assert_eq!(service.allow(&ann()).1["remaining"], 3, "usage goes on under the new limit");

    service.write("limits: [{name: g, rules: [{name: USER, limt: 5/h}]}]");
    let (status, problem) = post(&reload, &json!({}), None);
    assert_eq!(status, 422);
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(detail.contains("did you mean limit?"), "{detail}");
    assert_eq!(service.allow(&ann()).1["remaining"], 2, "the old rules stay");
    // The file watcher may have loaded the same file, too.
    let failures = service.metric("rate_limiter_config_load_failures_total");
    assert!((1..=2).contains(&failures), "{failures}");
}

#[test]
fn a_limit_that_changes_its_shape_keeps_its_usage() {
    let service = RunningService::start(&limit("20/h"));
    let admitted =
        |calls: usize| (0..calls).filter(|_| service.allow(&ann()).1["allowed"] == true).count();
    assert_eq!(admitted(15), 15);
    let reload = format!("{}/reload", service.admin);
    for (shape, more) in [("20/h windowed", 3), ("20/h", 1), ("20/h burst 20", 1), ("20/h", 0)] {
        service.write(&limit(shape));
        assert_eq!(post(&reload, &json!({}), None).0, 200);
        let calls = if more == 0 { 9 } else { more };
        assert_eq!(admitted(calls), more, "{shape}");
    }
    let override_of = |limit: &str| {
        let body = json!({ "rule": "USER", "when": { "userId": "ann" }, "limit": limit, "reason": "test" });
        post(&format!("{}/v1/overrides", service.admin), &body, None)
    };
    let (status, answer) = override_of("22/h windowed");
    assert_eq!(status, 201, "{answer}");
    assert_eq!(admitted(9), 2, "an override of another shape keeps it too");
    let (status, shown) = get(&format!("{}/ready", service.admin));
    assert_eq!(status, 200, "{shown}");
}

#[test]
fn a_thousand_reloads_under_load_drop_nothing_and_stay_within_the_looser_limit() {
    let service = RunningService::start(&limit("30/h"));
    let (done, admitted, asked) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let reloads = if std::env::var_os("SLUICEGATE_LONG").is_some() { 10_000 } else { 1_000 };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let agent: ureq::Agent = ureq::Agent::config_builder().build().into();
                let url = format!("{}/rate-limit/allow", service.http);
                while !done.load(Ordering::SeqCst) {
                    let request = agent.post(&url).header("content-type", "application/json");
                    let mut response =
                        request.send(ann().to_string()).expect("no request is dropped");
                    let text = response.body_mut().read_to_string().expect("a body");
                    asked.fetch_add(1, Ordering::SeqCst);
                    if text.starts_with("{\"allowed\":true") {
                        admitted.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let reload = format!("{}/reload", service.admin);
        for n in 0..reloads {
            let text = match n % 10 {
                0 => "nonsense: [".to_owned(),
                n if n % 2 == 0 => limit("20/h"),
                _ => limit("40/h"),
            };
            service.write(&text);
            let (status, _) = post(&reload, &json!({}), None);
            assert_eq!(status, if n % 10 == 0 { 422 } else { 200 }, "reload {n}");
        }
        eventually(|| asked.load(Ordering::SeqCst) >= 200);
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(admitted.load(Ordering::SeqCst), 40, "of {}", asked.load(Ordering::SeqCst));
}

#[test]
fn usage_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluicegate.yaml");
    let snapshot = folder.path().join("usage").display().to_string();
    let text = format!(
        "{}store: {{kind: memory, snapshot: {{path: '{snapshot}'}}}}\n{}",
        common::ANYWHERE,
        limit("3/h")
    );
    std::fs::write(&path, text).expect("a file");
    let service = RunningService::with_file(&path);
    assert_eq!(service.allow(&ann()).1["remaining"], 2);
    service.signal("-TERM");
    assert_eq!(service.end().0, Some(0));
    let service = RunningService::with_file(&path);
    assert_eq!(service.allow(&ann()).1["remaining"], 1);
}

#[test]
fn an_override_is_set_listed_and_removed_from_the_command_line_and_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluicegate.yaml");
    let overrides = folder.path().join("overrides.jsonl").display().to_string();
    let store = format!("store: {{kind: memory, overrides: '{overrides}'}}\n");
    let text = format!("{}{store}{}", common::ANYWHERE, limit("3/h"));
    std::fs::write(&path, text).expect("a file");
    let run = |service: &RunningService, words: &[&str]| {
        let mut command = sluicegate();
        let ran = command.arg("override").args(words).args(["--json", "--url", &service.http]);
        let ran = ran.output().expect("it runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        serde_json::from_slice::<Value>(&ran.stdout).expect("JSON")
    };
    let service = RunningService::with_file(&path);
    let set = run(
        &service,
        &["set", "USER", "userId=ann", "--limit", "9/h", "--for", "1h", "--reason", "a test"],
    );
    assert_eq!(service.allow(&ann()).1["remaining"], 8);
    service.signal("-TERM");
    assert_eq!(service.end().0, Some(0));

    let service = RunningService::with_file(&path);
    eventually_is(|| service.allow(&ann()).1["effectiveLimit"].clone(), 9);
    assert_eq!(run(&service, &["list"])["overrides"], serde_json::json!([set]));
    run(&service, &["remove", set["id"].as_str().expect("an id")]);
    assert_eq!(service.allow(&ann()).1["effectiveLimit"], 3);
}

#[test]
fn a_signal_stops_it_cleanly_and_every_decision_is_logged() {
    for signal in ["-INT", "-TERM"] {
        let service = RunningService::start("");
        for _ in 0..5 {
            service.allow(
                &json!({ "userId": "ann\n{}", "modelId": "gpt4", "apiKey": "planted-secret-1" }),
            );
        }
        let messages = service.logged();
        service.signal(signal);
        let (code, out) = service.end();
        assert_eq!(code, Some(0), "{signal}");
        let (decisions, end) = out.trim_end().rsplit_once('\n').expect("several lines");
        let end: Value = serde_json::from_str(end).expect("a line of JSON");
        assert_eq!(
            [&end["operation"], &end["seq"], &end["droppedTotal"]],
            [&json!("end"), &json!(5), &json!(0)]
        );
        assert_eq!(decisions.lines().count(), 5, "{out}");
        for line in decisions.lines() {
            let decision: Value = serde_json::from_str(line).expect("a line of JSON");
            assert_eq!(
                (&decision["allowed"], &decision["userId"]),
                (&json!(true), &json!("ann\n{}"))
            );
        }
        let everything = format!("{out}{messages:?}");
        assert!(!everything.contains("planted-secret"), "a key was logged");
    }
}

#[test]
fn tokens_are_required_and_never_logged() {
    let config = "auth: {tokens: {gateway: planted-secret-token-1}}\n";
    let service = RunningService::start(config);
    let url = format!("{}/rate-limit/allow", service.http);
    let (status, problem) = post(&url, &ann(), None);
    assert_eq!((status, &problem["title"]), (401, &json!("Unauthorized")));
    assert_eq!(post(&url, &ann(), Some("planted-secret-token-2")).0, 401);
    assert_eq!(post(&url, &ann(), Some("planted-secret-token-1")).0, 200);
    assert_eq!(get(&format!("{}/health", service.http)).0, 200, "probes need no token");
    assert_eq!(get(&format!("{}/metrics", service.admin)).0, 401);

    // A token is rotated without a restart.
    service.write("auth: {tokens: {gateway: planted-secret-token-2}}\n");
    let (status, _) =
        post(&format!("{}/reload", service.admin), &json!({}), Some("planted-secret-token-1"));
    assert_eq!(status, 200);
    assert_eq!(post(&url, &ann(), Some("planted-secret-token-1")).0, 401);
    assert_eq!(post(&url, &ann(), Some("planted-secret-token-2")).0, 200);
    let log = format!("{:?}", service.logged());
    assert!(!log.contains("planted-secret"), "{log}");
}

#[test]
fn a_failed_start_prints_the_reason_and_exits_with_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluicegate.yaml");
    for (config, expected) in [
        ("listen: {http: 0.0.0.0:0}", "insecure"),
        ("limits: 7", "limits"),
        ("auth: {tokens: {a: short}}", "auth.tokens.a"),
        (
            "listen: {http: {address: '127.0.0.1:0', tls: {cert: /nowhere, key: /nowhere}}, admin: '127.0.0.1:0'}",
            "listen.http.tls: cannot read /nowhere",
        ),
        (
            "listen: {http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}\ngateways:\n\
             - {name: a, listen: '127.0.0.1:0', routes: [{path: /, upstream: 'http://a'}]}\n\
             - {name: b, listen: {address: '127.0.0.1:0', tls: {cert: /nowhere, key: /nowhere}}, \
             routes: [{path: /, upstream: 'http://b'}]}\n",
            "gateways[1].listen.tls: cannot read /nowhere",
        ),
        (
            "listen: {http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}\ngateways:\n\
             - {name: a, listen: {address: '192.0.2.1:1', insecure: true}, routes: [{path: /, upstream: 'http://a'}]}\n",
            "choose another address with gateways[0].listen",
        ),
        (
            "listen: {http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}\ngateways:\n\
             - {name: a, listen: '127.0.0.1:0', routes: [{path: /, upstream: 'http://a', credentials: \
             {bearer: {file: /dev/null}}}]}\n",
            "gateway a, route all: the secret file /dev/null is empty: write the secret into it",
        ),
        (
            "listen: {http: '127.0.0.1:0', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}\ngateways:\n\
             - {name: a, listen: '127.0.0.1:0', routes: [{path: /, upstream: 'https://a', ca: /dev/null}]}\n",
            "gateway a, route all: the CA file /dev/null contains no certificate",
        ),
    ] {
        std::fs::write(&path, config).expect("a file");
        let output = sluicegate().args(["serve", "--config"]).arg(&path).output().expect("it ran");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{config}: {said}");
        assert!(said.contains(expected), "{config}: {said}");
    }
    let output =
        sluicegate().args(["serve", "--config", "/no/such/file"]).output().expect("it ran");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/file"));
}

#[test]
fn a_gateway_refuses_requests_that_would_bypass_a_limit_by_a_required_dimension() {
    let config = "dimensions: {tenantId: required}
limits: [{name: t, rules: [{name: TENANT, per: [tenantId], limit: 1/h}]}, {name: m, rules: [{name: MODEL, per: [modelId], limit: 1/h}]}]
gateways: [{name: p, listen: '127.0.0.1:0', dimensions: {tenantId: x-tenant-id}, routes: [{path: /, upstream: 'http://127.0.0.1:1'}]}]
";
    let service = RunningService::start_only(config, "gateway");
    let listens = |event: &&Value| event["listener"] == "gateways.p";
    eventually(|| service.logged().iter().any(|event| listens(&event)));
    let events = service.logged();
    let event = events.iter().find(listens).expect("it listens");
    let url = format!("http://{}/", event["address"].as_str().expect("an address"));
    let ask = || {
        let (status, text) = get(&url);
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let word = |key: &str| answer["error"][key].as_str().expect("text").to_owned();
        (status, word("code"), word("message"))
    };
    let (status, code, message) = ask();
    assert_eq!((status, code.as_str()), (400, "MISSING_HEADER"));
    assert!(message.contains("the header x-tenant-id is missing"), "{message}");
    let never = |event: &Value| {
        event["message"] == "the rule never applies: no gateway provides all its dimensions"
    };
    let never: Vec<_> = events.iter().filter(|event| never(event)).collect();
    assert!(never.len() == 1 && never[0]["rule"] == "MODEL", "{never:?}");
    // Without limits there is nothing to bypass. The upstream does not exist.
    service.write(&format!("enabled: false\n{config}"));
    eventually_is(|| ask().1, "UPSTREAM_UNREACHABLE");
}

#[test]
fn disabled_limits_allow_everything() {
    let service = RunningService::start("enabled: ${NO_SUCH_VARIABLE:-false}\n");
    for _ in 0..150 {
        assert_eq!(service.allow(&json!({ "userId": "ann" })).1["allowed"], true);
    }
}

#[test]
fn metrics_are_pushed_to_statsd_before_the_end() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = socket.local_addr().expect("an address").port();
    let running = RunningService::start(&format!("metrics: {{statsd: '127.0.0.1:{port}'}}"));
    running.allow(&json!({ "userId": "u", "modelId": "m" }));
    running.signal("-TERM");
    let mut buffer = [0; 2_000];
    let bytes = socket.recv(&mut buffer).expect("a datagram");
    let text = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
    assert!(text.contains("sluicegate_decisions_total:1|c|#operation:acquire,result:allowed"));
    assert_eq!(running.end().0, Some(0));
}

#[test]
fn prices_are_read_again_when_their_file_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prices.json");
    let write = |price: &str| {
        let text = format!(
            "{{\"m\": {{\"input_cost_per_token\": {price}, \"output_cost_per_token\": 1e-05}}}}"
        );
        let beside = folder.path().join("beside.json");
        std::fs::write(&beside, text).expect("a file");
        std::fs::rename(&beside, &path).expect("replaced");
    };
    write("2e-07");
    let budget = "limits: [{name: g, rules: [{name: BUDGET, per: [], limit: 1 USD/day}]}]\n";
    let prices = format!("{budget}prices: {{file: '{}'}}\n", path.display());
    let service = RunningService::start(&prices);
    let takes = || {
        let ask = json!({ "dimensions": { "modelId": "m" }, "cost": { "inputTokens": 1000 } });
        let (_, told) = post(&format!("{}/v1/explain", service.http), &ask, None);
        told["groups"][0]["matched"][0]["takes"].as_u64().expect("an amount")
    };
    assert_eq!(takes(), 200_000);
    write("3e-07");
    eventually_is(takes, 300_000);
    write("\"much\"");
    eventually_is(|| service.metric("rate_limiter_config_load_failures_total"), 1);
    eventually_is(|| service.metric("sluicegate_config_last_load_successful"), 0);
    assert_eq!(takes(), 300_000, "the old prices stay");
}

/// Waits until `found` is true for a log line of the service.
fn wait_for_log(service: &RunningService, what: &str, found: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..100_000 {
        if let Some(event) = service.logged().into_iter().find(|event| found(event)) {
            return event;
        }
        get(&format!("{}/health", service.http));
    }
    panic!("{what} is not logged: {:?}", service.logged());
}

#[test]
fn a_reload_that_needs_a_restart_is_refused_by_name_and_keeps_the_version() {
    let service = RunningService::start(&limit("3/h"));
    let reload = format!("{}/reload", service.admin);
    let version = |service: &RunningService| {
        let (_, metrics) = get(&format!("{}/metrics", service.admin));
        let line = metrics.lines().find(|line| line.starts_with("rate_limiter_config_version{"));
        line.expect("the version").to_owned()
    };
    let before = version(&service);
    for (section, key) in [
        ("store: {kind: memory, keys_max: 5000}\n", "store"),
        ("server: {body_limit: 1MB}\n", "server.body_limit"),
        ("log: {level: debug}\n", "log.level"),
        ("metrics: {label_values_max: 7}\n", "metrics.label_values_max"),
        ("envoy: {headers: false}\n", "envoy.headers"),
        (
            "gateways: [{name: a, listen: '127.0.0.1:0', routes: [{path: /, upstream: 'http://a'}]}]\n",
            "gateways[0] (a: added)",
        ),
        ("dispatch: {source: jobs, providers: {p: {limit: 5/s}}}\n", "dispatch"),
    ] {
        service.write(&format!("{section}{}", limit("9/h")));
        let (status, problem) = post(&reload, &json!({}), None);
        let detail = problem["detail"].as_str().expect("a detail");
        let expected = format!("restart required: {key} changed");
        assert!(status == 422 && detail.contains(&expected), "{section}{status} {detail}");
        assert_eq!(
            service.allow(&json!({ "userId": key, "modelId": "m" })).1["effectiveLimit"],
            3,
            "{section}"
        );
        assert_eq!(version(&service), before, "{section}");
    }
    let other = format!(
        "listen: {{http: '127.0.0.1:1', grpc: '127.0.0.1:0', admin: '127.0.0.1:0'}}\n{}",
        limit("9/h")
    );
    std::fs::write(&service.config, other).expect("a file");
    let (status, problem) = post(&reload, &json!({}), None);
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(status == 422 && detail.contains("restart required: listen.http changed"), "{detail}");
    let (_, metrics) = get(&format!("{}/metrics", service.admin));
    assert!(metrics.contains("sluicegate_config_last_load_successful 0"), "{metrics}");

    service.write(&limit("9/h"));
    let (status, told) = post(&reload, &json!({}), None);
    assert_eq!((status, &told["reloaded"]), (200, &json!(true)));
    // The file watcher may have been first; then the request changes nothing more.
    let change = "USER: 3/h changed to 9/h, looser";
    wait_for_log(&service, change, |event| event["change"] == change);
    assert_eq!(service.allow(&ann()).1["effectiveLimit"], 9);
}

#[test]
fn what_the_parts_of_a_node_know_is_shown_in_its_metrics() {
    let service = RunningService::start(&limit("3/h"));
    service.allow(&ann());
    let scrape = || get(&format!("{}/metrics", service.admin)).1;
    let metrics = scrape();
    let shows = |metrics: &str, expected| metrics.lines().any(|line| line == expected);
    for expected in [
        "sluicegate_store_keys 1",
        "sluicegate_store_overflow_keys 0",
        "sluicegate_store_records 0",
        "sluicegate_decision_log_dropped_total 0",
    ] {
        assert!(shows(&metrics, expected), "{expected} in\n{metrics}");
    }
    // That of this request. Those of earlier requests may not be closed yet.
    eventually(|| shows(&scrape(), "sluicegate_connections{listener=\"admin\"} 1"));
    assert!(!metrics.contains("dispatch"), "there are no jobs: {metrics}");
}

#[test]
fn a_deleted_file_is_a_failed_load_and_the_old_rules_stay() {
    let service = RunningService::start(&limit("3/h"));
    std::fs::remove_file(&service.config).expect("it was there");
    wait_for_log(&service, "the deleted file", |event| {
        event["message"].as_str().is_some_and(|text| text.contains("can't read the configuration"))
    });
    let (_, metrics) = get(&format!("{}/metrics", service.admin));
    assert!(metrics.contains("rate_limiter_config_load_failures_total 1"), "{metrics}");
    assert!(metrics.contains("sluicegate_config_last_load_successful 0"), "{metrics}");
    assert_eq!(service.allow(&ann()).1["effectiveLimit"], 3, "the old rules stay");
    service.write(&limit("4/h"));
    wait_for_log(&service, "the new file", |event| event["message"] == "configuration reloaded");
    assert_eq!(service.allow(&ann()).1["effectiveLimit"], 4);
}

#[test]
fn the_error_that_ends_it_is_logged_before_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluicegate.yaml");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    std::fs::write(&path, format!("listen: {{http: '{address}', admin: '127.0.0.1:0'}}\n"))
        .expect("a file");
    let output = sluicegate().args(["serve", "--config"]).arg(&path).output().expect("it ran");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let events: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
        .collect();
    let [.., cause, end] = events.as_slice() else { panic!("{said}") };
    let text = cause["message"].as_str().expect("a message");
    assert!(text.contains("choose another address with listen.http"), "{said}");
    assert_eq!((&cause["level"], &end["message"]), (&json!("ERROR"), &json!("stopped")), "{said}");
}

#[test]
fn a_token_that_may_only_decide_can_not_lift_limits() {
    let tokens = "auth: {tokens: {app: app-token-0123456789, \
                  ops: {token: ops-token-0123456789, scopes: [admin, read]}}}\n";
    let service = RunningService::start(tokens);
    let (app, ops) = (Some("app-token-0123456789"), Some("ops-token-0123456789"));
    assert_eq!(post(&format!("{}/rate-limit/allow", service.http), &ann(), app).0, 200);
    assert_eq!(post(&format!("{}/rate-limit/allow", service.http), &ann(), ops).0, 403);
    let body = json!({ "rule": "USER_MODEL", "limit": "unlimited", "reason": "mine" });
    for (listener, path, body) in [
        (&service.http, "/v1/overrides", body.clone()),
        (&service.admin, "/v1/overrides", body),
        (&service.http, "/v1/reset", json!({ "dimensions": ann() })),
        (&service.admin, "/reload", json!({})),
    ] {
        let url = format!("{listener}{path}");
        let (status, problem) = post(&url, &body, app);
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(status == 403 && detail.contains("the scope admin"), "{url}: {status} {detail}");
        let (status, answer) = post(&url, &body, ops);
        assert!(matches!(status, 200 | 201), "{url}: {status} {answer}");
    }
    let log = format!("{:?}", service.logged());
    assert!(!log.contains("no token has scopes"), "{log}");
    let open = RunningService::start("auth: {tokens: {app: app-token-0123456789}}\n");
    let log = format!("{:?}", open.logged());
    assert!(log.contains("no token has scopes"), "{log}");
}

/// A caller can use neither the ids that others chose nor those that the service made for them.
#[test]
fn a_caller_can_not_end_the_work_of_another() {
    let config = "auth:\n  tokens:\n    \
                  alice: {token: alice-token-0123456789, scopes: [decide]}\n    \
                  bob: {token: bob-token-0123456789, scopes: [decide]}\n\
                  limits: [{name: g, rules: [{name: SLOTS, per: [], limit: 2 concurrent}]}]\n";
    let service = RunningService::start(config);
    let call = |caller: &str, path: &str, body: &Value| {
        let token = format!("{caller}-token-0123456789");
        post(&format!("{}/v1/{path}", service.http), body, Some(&token))
    };
    let ended = |caller: &str, path: &str, handle: &Value| {
        call(caller, path, &json!({ "handle": handle })).0
    };
    // An id that she chose: others can compute it.
    let (_, chosen) = call("alice", "acquire", &json!({ "id": "job-7", "dimensions": {} }));
    for handle in [chosen["handle"].clone(), json!(format!("{}.", display(&chosen["id"])))] {
        for path in ["cancel", "release", "renew"] {
            assert_eq!(ended("bob", path, &handle), 404, "{path} {handle}");
        }
        let settle = json!({ "handle": handle, "cost": {} });
        assert_eq!(call("bob", "settle", &settle).0, 404);
    }
    // Ids that the service makes have nothing in common with the one before.
    let ids: Vec<u128> = (0..20)
        .map(|_| {
            let (_, made) = call("bob", "check", &json!({ "dimensions": {} }));
            u128::from_str_radix(&display(&made["id"]), 16).expect("an id")
        })
        .collect();
    let near = |pair: &[u128]| pair[0].abs_diff(pair[1]) < 1 << 64;
    assert!(!ids.windows(2).any(near), "{ids:x?}");
    assert_eq!(ended("alice", "release", &chosen["handle"]), 200);
}

fn display(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}
