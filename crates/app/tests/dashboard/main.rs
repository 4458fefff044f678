//! Tests the dashboard of running services in a real browser: `browser.py` drives Chromium.

#[path = "../common/mod.rs"]
mod common;
mod nodes;

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use common::{RunningService, sluicegate};
use serde_json::json;
use sluicegate_testkit::redis::{RedisServer, Version};

/// Rules of every kind, a gateway, and a worker whose jobs fail.
const RULES: &str = r#"
queue: {kind: embedded, path: QUEUE}
store: {kind: memory}
limits:
  - name: caller
    rules:
      - name: USER_MODEL
        description: Bursts and the steady use of one model by one user
        per: [userId, modelId]
        limit: [5/s, 60/min]
  - name: tenant
    rules:
      - name: TENANT
        description: Everything that one tenant sends
        per: [tenantId]
        limit: 20000/h
      - name: NO_TENANT
        per: []
        limit: 20000/h
  - name: next
    rules:
      - name: NEXT_LIMIT
        shadow: true
        per: [userId]
        limit: 20/min
  - name: money
    rules:
      - name: USER_BUDGET
        per: [userId]
        limit: 0.50 USD/day
  - name: money-of-tenants
    rules:
      - name: TENANT_BUDGET
        per: [tenantId]
        limit: 500 USD/day
      - name: NO_TENANT_BUDGET
        per: []
        limit: 500 USD/day
  - name: money-of-models
    rules:
      - name: MODEL_BUDGET
        per: [modelId]
        limit: 900 USD/day
dimensions: {tenantId: optional}
prices:
  default: {input: 2.00 USD/1M, output: 6.00 USD/1M}
gateways:
  - name: vendor
    listen: 127.0.0.1:0
    routes:
      - path: /graphql
        upstream: UPSTREAM
        limit: 25/s
        wait: {max: 10s, depth: 500}
      - path: /paused
        upstream: UPSTREAM
        limit: 600/min
        wait: {max: 0ms}
      - path: /hostile
        upstream: UPSTREAM
        limit: 25/s
        wait: {max: 0ms}
workers:
  - provider: mailer
    queue: mail
    dead_letter: mail-dead
    limit: 6000/min
    attempts: 1
    handler: {command: [sh, -c, "cat >&2; exit 3"]}
"#;

/// Two people with different rights.
const TOKENS: &str = "
auth:
  tokens:
    reader: {token: reader-token-of-the-browser-test, scopes: [read]}
    operator: {token: operator-token-of-the-browser-test, scopes: [read, admin, queue]}
";

#[test]
fn every_page_and_action_works_in_a_browser() {
    let program =
        std::env::var_os("SLUICEGATE_PLAYWRIGHT").expect("run it by `cargo xtask test dashboard`");
    let python = Path::new(&program).with_file_name("python");
    let folder = tempfile::tempdir().expect("a folder");
    let upstream = upstream();
    let queue = folder.path().join("queue.db");
    let rules = RULES.replace("UPSTREAM", &upstream).replace("QUEUE", &queue.display().to_string());
    let open = RunningService::start(&rules);
    send_jobs(&open.config);
    let secured = RunningService::start(TOKENS);
    let gateway_address = gateway(&open);
    let redis = RedisServer::start(Version::System, &[]);
    let pair = [nodes::node(&redis), nodes::node(&redis)];
    let address = |node: &RunningService| json!({ "admin": node.admin, "http": node.http, "gateway": gateway(node) });
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let plan = json!({
        "admin": open.admin,
        "http": open.http,
        "gateway": gateway_address,
        "pair": pair.each_ref().map(address),
        "config": open.config,
        "queue": queue,
        "secured": secured.admin,
        "axe": root.join("target/services/axe-core/node_modules/axe-core/axe.min.js"),
        "screenshots": root.join("target/dashboard"),
    });
    let status = Command::new(python)
        .arg(here.join("browser.py"))
        .arg(plan.to_string())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status()
        .expect("Python starts");
    assert!(status.success(), "the browser found something: see above");
    secured.stop();
    open.stop();
    for node in pair {
        node.stop();
    }
}

/// Sends jobs that fail; texts of hostile clients are among them.
fn send_jobs(config: &Path) {
    let mut child = sluicegate()
        .args(["queue", "send", "mail", "--lines", "-", "--create", "--config"])
        .arg(config)
        .args(["--type", "<img src=x onerror=alert(1)>"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = child.stdin.take().expect("piped");
    for number in 0..12 {
        let line = json!({ "to": format!("user-{number}@example.com"), "text": "<script>alert(1)</script>" });
        writeln!(lines, "{line}").expect("written");
    }
    drop(lines);
    assert!(child.wait().expect("it ends").success());
}

/// Starts an upstream that answers every request, and asks for a pause at `/paused`. Returns its
/// address.
fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("non-blocking");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let paused = || async {
                let fields = [
                    ("retry-after", "300"),
                    ("x-ratelimit-limit", "60"),
                    ("x-ratelimit-remaining", "0"),
                ];
                (StatusCode::TOO_MANY_REQUESTS, fields, "{}")
            };
            // A text that would run as a script, if a page treated it as HTML.
            let hostile = || async {
                let fields = [
                    ("retry-after-ms", "<img src=x onerror=window.hacked=1>"),
                    ("retry-after", "300"),
                ];
                (StatusCode::TOO_MANY_REQUESTS, fields, "{}")
            };
            let app = Router::new()
                .route("/paused", any(paused))
                .route("/hostile", any(hostile))
                .fallback(any(|| async { "{}" }));
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            axum::serve(listener, app).await.expect("it serves");
        });
    });
    format!("http://{address}")
}

/// Returns the address of the gateway, from the log.
fn gateway(service: &RunningService) -> String {
    let mut found = None;
    sluicegate_testkit::eventually(|| {
        let logged = service.logged();
        let event = logged.iter().find(|event| event["listener"] == "gateways.vendor");
        found = event.map(|event| format!("http://{}", event["address"].as_str().expect("text")));
        found.is_some()
    });
    found.expect("it listens")
}
