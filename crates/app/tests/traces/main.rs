//! Traces of a running service, received by a collector over OTLP: the tree of spans, the ids that
//! clients, upstreams, handlers and messages see, and a collector that does not answer.

mod collector;
#[path = "../common/mod.rs"]
mod common;
mod upstream;

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use collector::Collector;
use common::{ANYWHERE, RunningService, get};
use serde_json::{Value, json};
use sluicegate_testkit::ports::free_port;
use sluicegate_testkit::rabbitmq::RabbitServer;
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::{eventually, eventually_get};
use upstream::Upstream;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT_SPAN: &str = "00f067aa0ba902b7";
const RULES: &str = "
dimensions: {userId: optional, modelId: optional}
limits: [{name: g, rules: [{name: USER, per: [userId], limit: 2/h}]}]
";

fn traceparent() -> String {
    format!("00-{TRACE}-{CLIENT_SPAN}-01")
}

/// Sends a POST request with header fields; returns the status and the response.
fn post(url: &str, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut request = agent.post(url).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut response = request.send(body.to_string()).expect("an answer");
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string().expect("a body");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Returns the lines of a decision log.
fn decisions(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_decision_over_rest_is_a_tree_of_spans() {
    let collector = Collector::start();
    let service = RunningService::start(&format!(
        "{RULES}traces: {{endpoint: '{}', sample_ratio: 1.0, service_name: limiter, headers: {{x-api-key: k-1}}}}\n",
        collector.http
    ));
    let url = format!("{}/rate-limit/allow", service.http);
    let body = json!({"userId": "u1", "modelId": "m"});
    for allowed in [true, true, false] {
        let (status, answer) = post(&url, &[("traceparent", &traceparent())], &body);
        assert_eq!((status, &answer["allowed"]), (200, &json!(allowed)), "{answer}");
    }
    let spans = collector.wait_for(|spans| spans.of_trace(TRACE).len() == 9);
    let tree = spans.of_trace(TRACE);
    let requests = tree.named("POST /rate-limit/allow");
    assert_eq!(requests.len(), 3, "{tree:#?}");
    for (request, word) in requests.iter().zip(["allow", "allow", "deny"]) {
        assert_eq!((&request["parent"], &request["kind"]), (&json!(CLIENT_SPAN), &json!("SERVER")));
        assert_eq!(request["service"], "limiter");
        assert_eq!((&request["protocol"], &request["key"]), (&json!("http"), &json!("k-1")));
        let decision = tree.only_child(request, "decision");
        let store = tree.only_child(decision, "store acquire");
        assert_eq!(store["attributes"]["db.system.name"], "memory");
        for (inner, outer) in [(decision, *request), (store, decision)] {
            let time = |span: &Value, field: &str| span[field].as_u64().expect("a time");
            assert!(time(inner, "start") >= time(outer, "start"), "{inner} {outer}");
            assert!(time(inner, "end") <= time(outer, "end"), "{inner} {outer}");
        }
        assert_eq!(request["attributes"]["http.response.status_code"], 200);
        assert_eq!(decision["attributes"]["sluicegate.decision"], word);
    }
    let log = decisions(&service.stop());
    let of_trace = log.iter().filter(|line| line["traceId"] == TRACE).count();
    assert_eq!(of_trace, 3, "{log:#?}");
}

#[test]
fn a_malformed_parent_starts_a_new_trace() {
    let collector = Collector::start();
    let service = RunningService::start(&format!(
        "{RULES}traces: {{endpoint: '{}', sample_ratio: 1.0}}\n",
        collector.http
    ));
    let url = format!("{}/rate-limit/allow", service.http);
    let body = json!({"userId": "u1", "modelId": "m"});
    let (status, answer) = post(&url, &[("traceparent", "00-nonsense")], &body);
    assert_eq!(status, 200, "{answer}");
    // Stopping exports what is left.
    let log = decisions(&service.stop());
    let spans = collector.wait_for(|spans| spans.named("POST /rate-limit/allow").len() == 1);
    let root = spans.named("POST /rate-limit/allow")[0];
    assert_eq!(root["parent"], "");
    assert_eq!(log[0]["traceId"], root["trace"]);
}

#[test]
fn requests_over_grpc_continue_the_trace_of_their_client() {
    let collector = Collector::start();
    let service = RunningService::start(&format!(
        "{RULES}traces: {{endpoint: '{}', protocol: grpc, sample_ratio: 0, headers: {{x-api-key: k-2}}}}\n",
        collector.grpc
    ));
    let address = service.grpc.trim_start_matches("http://");
    let method = "/sluicegate.v1.RateLimiterService/Allow";
    // userId: u1, modelId: m
    collector::call(&["call", address, method, &traceparent(), "0a02753112016d"]);
    // A new trace is not sampled, and so not recorded.
    post(
        &format!("{}/rate-limit/allow", service.http),
        &[],
        &json!({"userId": "u2", "modelId": "m"}),
    );
    let log = decisions(&service.stop());
    let spans = collector.wait_for(|spans| spans.of_trace(TRACE).len() == 3);
    let requests = spans.named(method.trim_start_matches('/'));
    assert_eq!(requests.len(), 1, "{spans:#?}");
    assert_eq!(requests[0]["parent"], CLIENT_SPAN);
    assert_eq!((&requests[0]["protocol"], &requests[0]["key"]), (&json!("grpc"), &json!("k-2")));
    spans.only_child(spans.only_child(requests[0], "decision"), "store acquire");
    assert!(spans.of_trace(TRACE).len() == spans.len(), "{spans:#?}");
    let unsampled = log[1]["traceId"].as_str().expect("an id of a trace that is not sampled");
    assert_ne!(unsampled, TRACE);
}

/// Writes a certificate for `localhost` and its key; returns the files.
fn certificate(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let [certificate, key] = ["crt", "key"].map(|end| folder.join(format!("{name}.{end}")));
    std::fs::write(&certificate, made.cert.pem()).expect("a file");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("a file");
    (certificate, key)
}

#[test]
fn spans_are_sent_over_tls_to_a_collector_that_the_configured_ca_vouches_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let (trusted, key) = certificate(folder.path(), "trusted");
    let (other, _) = certificate(folder.path(), "other");
    let collector = Collector::start_tls(&trusted, &key);
    for (protocol, endpoint) in [("http", &collector.http), ("grpc", &collector.grpc)] {
        let ask = |ca: &Path, user: &str| {
            let service = RunningService::start(&format!(
                "{RULES}traces: {{endpoint: '{endpoint}', protocol: {protocol}, sample_ratio: 1.0, ca: '{}'}}\n",
                ca.display()
            ));
            let url = format!("{}/rate-limit/allow", service.http);
            post(&url, &[], &json!({ "userId": user, "modelId": "m" }));
            service
        };
        let _service = ask(&trusted, "u1");
        let of_protocol = |spans: &collector::SpanTree| {
            spans.iter().filter(|span| span["protocol"] == protocol).count()
        };
        assert_eq!(of_protocol(&collector.wait_for(|spans| of_protocol(spans) >= 3)), 3);

        let refused = ask(&other, "u2");
        let dropped = r#"sluicegate_trace_spans_dropped_total{reason="export_failed"} 3"#;
        let metrics = format!("{}/metrics", refused.admin);
        eventually(|| get(&metrics).1.lines().any(|line| line == dropped));
        assert_eq!(of_protocol(&collector.wait_for(|_| true)), 3, "sent to an unknown server");
    }
}

#[test]
fn a_gateway_passes_the_trace_on_to_its_upstream() {
    let (collector, upstream) = (Collector::start(), Upstream::start());
    let service = RunningService::start_only(
        &format!(
            "traces: {{endpoint: '{}', protocol: grpc, sample_ratio: 1.0}}
gateways:
- name: vendor
  listen: 127.0.0.1:0
  routes: [{{path: /, upstream: '{}', limit: 1/2s, wait: {{max: 60s}}}}]\n",
            collector.grpc, upstream.address
        ),
        "gateway",
    );
    let mut address = String::new();
    eventually(|| {
        let log = service.logged();
        let line = log.iter().find(|line| line["listener"] == "gateways.vendor");
        address = line
            .map(|line| format!("http://{}/", line["address"].as_str().expect("text")))
            .unwrap_or_default();
        !address.is_empty()
    });
    let headers = [("traceparent", traceparent()), ("tracestate", "vendor=1".to_owned())];
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for _ in 0..2 {
        let (status, answer) = post(&address, &headers, &json!({}));
        assert_eq!(status, 200, "{answer}");
    }
    eventually(|| service.logged().iter().filter(|line| line["message"] == "request").count() == 2);
    let lines = service.logged();
    let lines = lines.iter().filter(|line| line["message"] == "request");
    assert!(lines.clone().all(|line| line["trace_id"] == TRACE), "{lines:?}");
    service.stop();
    let spans = collector.wait_for(|spans| spans.named("gateway vendor").len() == 2);
    let tree = spans.of_trace(TRACE);
    assert_eq!(tree.len(), spans.len(), "all spans belong to the trace of the client: {spans:#?}");
    let requests = tree.named("gateway vendor");
    assert_eq!(requests.len(), 2, "{tree:#?}");
    let seen = upstream.requests();
    for (request, seen) in requests.iter().zip(&seen) {
        assert_eq!(
            (&request["parent"], &request["state"]),
            (&json!(CLIENT_SPAN), &json!("vendor=1"))
        );
        let call = tree.only_child(request, "upstream");
        let id = call["span"].as_str().expect("an id");
        assert_eq!(seen.header("traceparent"), Some(format!("00-{TRACE}-{id}-01")));
        assert_eq!(seen.header("tracestate").as_deref(), Some("vendor=1"));
        assert_eq!(call["attributes"]["http.response.status_code"], 200);
        assert_eq!(call["kind"], "CLIENT");
    }
    assert!(tree.children(requests[0]).iter().any(|span| span["name"] == "decision"), "{tree:#?}");
    // The second request had to wait for the limit of the route.
    let below = tree.children(requests[1]);
    assert!(below.iter().any(|span| span["name"] == "wait"), "{tree:#?}");
}

/// Starts a service that creates its queues in a folder.
fn serve_jobs(folder: &Path, config: &str) -> RunningService {
    let queue = folder.join("queue.db");
    let config =
        format!("{ANYWHERE}queue: {{kind: embedded, path: '{}'}}\n{config}", queue.display());
    let path = folder.join("sluicegate.yaml");
    std::fs::write(&path, config).expect("a file");
    RunningService::spawn(&path, &[], &["--create"])
}

#[test]
fn a_job_is_one_trace_from_its_producer_to_its_result() {
    let (collector, provider) = (Collector::start(), Upstream::start());
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        "traces: {{endpoint: '{}', sample_ratio: 1.0}}
dispatch: {{source: raw, providers: {{gemini: {{queue: gemini, limit: 500/min}}}}}}
workers:
- {{provider: gemini, limit: 500/min, results: results, handler: {{http: {{url: '{}'}}}}}}\n",
        collector.http, provider.address
    );
    let service = serve_jobs(folder.path(), &config);
    let queues = format!("{}/v1/queues", service.http);
    let message = json!({"body": {"n": 1}, "job": "j-1"});
    let (status, answer) =
        post(&format!("{queues}/raw/send"), &[("traceparent", &traceparent())], &message);
    assert_eq!(status, 201, "{answer}");
    let result = eventually_get(|| {
        let url = format!("{queues}/results/receive");
        let (_, mut answer) = post(&url, &[], &json!({"wait": "5s"}));
        let result = answer["messages"][0].take();
        if result["job"] == "j-1" { Ok(result) } else { Err(answer) }
    });

    let spans = collector.wait_for(|spans| {
        let tree = spans.of_trace(TRACE);
        let request = "POST /v1/queues/{queue}/send";
        let last = [request, "dispatch raw", "send gemini", "process gemini"];
        last.iter().all(|name| tree.named(name).len() == 1)
    });
    let tree = spans.of_trace(TRACE);
    let request = tree.named("POST /v1/queues/{queue}/send")[0];
    assert_eq!(request["parent"], CLIENT_SPAN);
    let produced = tree.only_child(request, "send raw");
    let dispatched = tree.only_child(produced, "dispatch raw");
    tree.only_child(tree.only_child(dispatched, "decision"), "store acquire");
    let forwarded = tree.only_child(dispatched, "send gemini");
    let processed = tree.only_child(forwarded, "process gemini");
    assert_eq!(processed["attributes"]["sluicegate.job"], "j-1");
    assert!(!tree.children(processed).iter().all(|span| span["name"] != "decision"), "{tree:#?}");
    let handled = tree.only_child(processed, "handler");
    let answered = tree.only_child(processed, "send results");
    let kinds = [produced, dispatched, forwarded, processed, handled, answered]
        .map(|span| span["kind"].as_str().expect("a kind"));
    assert_eq!(kinds, ["PRODUCER", "CONSUMER", "PRODUCER", "CONSUMER", "INTERNAL", "PRODUCER"]);

    let parent_of =
        |span: &Value| json!(format!("00-{TRACE}-{}-01", span["span"].as_str().unwrap()));
    assert_eq!(result["headers"]["traceparent"], parent_of(answered));
    let seen = provider.requests();
    assert_eq!(json!(seen[0].header("traceparent")), parent_of(handled));
    let log = decisions(&service.stop());
    let of_trace = log.iter().filter(|line| line["traceId"] == TRACE).count();
    assert!(of_trace >= 2, "the dispatcher and the worker decided: {log:#?}");
}

#[test]
fn a_failed_job_is_an_error_and_its_log_lines_have_the_trace() {
    let (collector, provider) = (Collector::start(), Upstream::start());
    provider.answer_with(400);
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        "traces: {{endpoint: '{}', sample_ratio: 1.0}}
workers: [{{provider: gemini, queue: gemini, limit: 500/min, handler: {{http: {{url: '{}'}}}}}}]\n",
        collector.http, provider.address
    );
    let service = serve_jobs(folder.path(), &config);
    // The producer has a trace of its own, which is not that of the request.
    let message = json!({"body": {"n": 1}, "headers": {"traceparent": traceparent()}});
    let (status, answer) = post(&format!("{}/v1/queues/gemini/send", service.http), &[], &message);
    assert_eq!(status, 201, "{answer}");
    let line =
        |log: &[Value]| log.iter().find(|line| line["message"] == "job dead-lettered").cloned();
    eventually(|| line(&service.logged()).is_some());
    assert_eq!(line(&service.logged()).expect("a line")["trace_id"], TRACE);
    service.stop();
    let spans = collector.wait_for(|spans| spans.named("process gemini").len() == 1);
    let processed = spans.named("process gemini")[0];
    assert_eq!(processed["parent"], CLIENT_SPAN);
    let handled = spans.only_child(processed, "handler");
    assert!(handled["error"].is_string(), "{handled}");
}

#[test]
fn a_command_gets_the_context_of_its_job_in_its_environment() {
    let collector = Collector::start();
    let folder = tempfile::tempdir().expect("a folder");
    let seen = folder.path().join("seen.txt");
    let command = format!(r#"printf '%s %s' "$TRACEPARENT" "$TRACESTATE" > '{}'"#, seen.display());
    let config = format!(
        "traces: {{endpoint: '{}', sample_ratio: 1.0}}
workers: [{{provider: shell, queue: shell, limit: 500/min, handler: {{command: [sh, -c, {}]}}}}]\n",
        collector.http,
        json!(command)
    );
    let service = serve_jobs(folder.path(), &config);
    let headers = json!({"traceparent": traceparent(), "tracestate": "vendor=1"});
    let message = json!({"body": {"n": 1}, "headers": headers});
    let (status, answer) = post(&format!("{}/v1/queues/shell/send", service.http), &[], &message);
    assert_eq!(status, 201, "{answer}");
    let spans = collector.wait_for(|spans| spans.named("process shell").len() == 1);
    let processed = spans.named("process shell")[0];
    assert_eq!((&processed["parent"], &processed["trace"]), (&json!(CLIENT_SPAN), &json!(TRACE)));
    let handled = spans.only_child(processed, "handler");
    let expected = format!("00-{TRACE}-{}-01 vendor=1", handled["span"].as_str().expect("an id"));
    assert_eq!(std::fs::read_to_string(&seen).expect("the command ran"), expected);
    service.stop();
}

#[test]
fn the_call_to_redis_is_a_span_of_the_decision() {
    let collector = Collector::start();
    let redis = RedisServer::start(Version::System, &[]);
    let service = RunningService::start(&format!(
        "{RULES}store: {{kind: redis, url: 'redis://127.0.0.1:{}', timeout: 2s, deadline: 5s}}
traces: {{endpoint: '{}', sample_ratio: 1.0}}\n",
        redis.port, collector.http
    ));
    let url = format!("{}/v1/acquire", service.http);
    let body = json!({"dimensions": {"userId": "u1"}});
    let (status, answer) = post(&url, &[("traceparent", &traceparent())], &body);
    assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
    let spans = collector.wait_for(|spans| spans.of_trace(TRACE).len() == 3);
    let tree = spans.of_trace(TRACE);
    let request = tree.named("POST /v1/acquire")[0];
    let decision = tree.only_child(request, "decision");
    let store = tree.only_child(decision, "store acquire");
    assert_eq!(store["kind"], "CLIENT");
    assert_eq!(store["attributes"]["db.system.name"], "redis");
    service.stop();
}

#[test]
fn a_message_on_rabbitmq_carries_the_trace_from_its_producer_to_its_result() {
    let (collector, rabbit) = (Collector::start(), RabbitServer::start());
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        "{ANYWHERE}queue: {{kind: rabbitmq, url: '{}'}}
traces: {{endpoint: '{}', sample_ratio: 1.0}}
workers: [{{provider: shell, queue: shell, limit: 500/min, results: results, handler: {{command: [cat]}}}}]\n",
        rabbit.url(),
        collector.http
    );
    let path = folder.path().join("sluicegate.yaml");
    std::fs::write(&path, config).expect("a file");
    let service = RunningService::spawn(&path, &[], &["--create"]);
    let queues = format!("{}/v1/queues", service.http);
    let message = json!({"body": {"n": 1}, "job": "j-1"});
    let parent = traceparent();
    let (status, answer) =
        post(&format!("{queues}/shell/send"), &[("traceparent", &parent)], &message);
    assert_eq!(status, 201, "{answer}");
    let result = eventually_get(|| {
        let (_, mut answer) =
            post(&format!("{queues}/results/receive"), &[], &json!({"wait": "5s"}));
        let result = answer["messages"][0].take();
        if result["job"] == "j-1" { Ok(result) } else { Err(answer) }
    });
    let spans = collector.wait_for(|spans| {
        let tree = spans.of_trace(TRACE);
        ["POST /v1/queues/{queue}/send", "process shell"]
            .iter()
            .all(|name| tree.named(name).len() == 1)
    });
    let tree = spans.of_trace(TRACE);
    let produced = tree.only_child(tree.named("POST /v1/queues/{queue}/send")[0], "send shell");
    let processed = tree.only_child(produced, "process shell");
    let answered = tree.only_child(processed, "send results");
    let expected = format!("00-{TRACE}-{}-01", answered["span"].as_str().expect("an id"));
    assert_eq!(result["headers"]["traceparent"], expected);
    service.stop();
}

/// Asserts that a service answers, counts dropped spans and stops in time, although the collector
/// takes nothing.
fn check_without_collector(endpoint: &str, protocol: &str) {
    let service = RunningService::start(&format!(
        "{RULES}traces: {{endpoint: '{endpoint}', protocol: {protocol}, sample_ratio: 1.0, timeout: 300ms}}\n"
    ));
    let url = format!("{}/rate-limit/allow", service.http);
    let dropped = "sluicegate_trace_spans_dropped_total{reason=\"export_failed\"}";
    let mut requests = 0;
    // Two exports, so that a second log line would be seen.
    let mut before = 0;
    for _ in 0..2 {
        eventually(|| {
            for _ in 0..50 {
                requests += 1;
                let body = json!({"userId": format!("u{requests}"), "modelId": "m"});
                let (status, answer) = post(&url, &[("traceparent", &traceparent())], &body);
                assert_eq!(status, 200, "{answer}");
            }
            service.metric(dropped) > before
        });
        before = service.metric(dropped);
    }
    assert_eq!(service.metric("sluicegate_trace_spans_exported_total"), 0);
    let is_about_export = |line: &&Value| {
        line["message"].as_str().is_some_and(|text| text.starts_with("traces are not exported"))
    };
    let log = service.logged();
    assert_eq!(log.iter().filter(is_about_export).count(), 1, "{log:#?}");
    let decisions = decisions(&service.stop());
    assert!(decisions.len() > requests, "every decision is logged");
}

#[test]
fn a_dead_collector_costs_spans_and_no_requests() {
    let port = free_port();
    for protocol in ["http", "grpc"] {
        check_without_collector(&format!("http://127.0.0.1:{port}"), protocol);
    }
}

#[test]
fn a_silent_collector_costs_spans_and_no_requests() {
    // Connections are made, but nobody reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", silent.local_addr().expect("it"));
    for protocol in ["http", "grpc"] {
        check_without_collector(&address, protocol);
    }
}

#[test]
fn without_a_collector_no_line_has_a_trace() {
    let service =
        RunningService::start(&format!("{RULES}traces:\n  endpoint: ${{NO_COLLECTOR:-}}\n"));
    let url = format!("{}/rate-limit/allow", service.http);
    let body = json!({"userId": "u1", "modelId": "m"});
    assert_eq!(post(&url, &[("traceparent", &traceparent())], &body).0, 200);
    let (_, metrics) = get(&format!("{}/metrics", service.admin));
    assert!(!metrics.contains("sluicegate_trace_spans"), "{metrics}");
    let log = decisions(&service.stop());
    assert!(log.iter().all(|line| line.get("traceId").is_none()), "{log:#?}");
}
