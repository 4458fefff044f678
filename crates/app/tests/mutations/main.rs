//! Mutation tests of `sluicegate verify`: it must detect each change of a valid log, or prove no more
//! than is true.
//!
//! The logs come from real services: on Redis and on a Redis Cluster, of a gateway, of a dispatcher
//! with workers, with overrides and reloads, and with refunds, debts and `optimistic` budgets. Every
//! mutation is applied to every log. The test prints a table:
//! `cargo test --features redis-tests --test mutations -- --nocapture`.

mod changes;
#[path = "../common/mod.rs"]
mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use changes::{ExpectedResult, Logs, MUTATIONS, Mutation, places};
use common::{RunningService, get, post, sluicegate};
use pollster::block_on;
use serde_json::{Value, json};
use sluicegate_core::query::{Cost, Query};
use sluicegate_core::rule::EstimateMode;
use sluicegate_core::{Group, Limiter, Rule, Ruleset, Span, Timestamp};
use sluicegate_server::decision_log::{DecisionLog, Options};
use sluicegate_service::{DecisionMode, Service};
use sluicegate_store::memory::Capacity;
use sluicegate_store::{AnyStore, Memory};
use sluicegate_testkit::redis::{RedisCluster, RedisServer, Version};
use sluicegate_testkit::{ManualClock, eventually_is};

/// Verifies logs; returns the exit code and the output.
fn verify(logs: &Logs) -> (i32, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = sluicegate();
    command.args(["verify", "--top", "3"]).current_dir(folder.path());
    for (number, log) in logs.iter().enumerate() {
        let name = format!("{number}.log");
        // A last line that is cut off has no line feed.
        let whole = log.last().is_some_and(|last| last.ends_with('}'));
        let text = log.join("\n") + if whole { "\n" } else { "" };
        std::fs::write(folder.path().join(&name), text).expect("a file");
        command.arg(name);
    }
    let output = command.output().expect("it runs");
    let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
    (output.status.code().expect("an exit code"), said)
}

fn last_line(said: &str) -> &str {
    said.lines().last().unwrap_or_default()
}

/// Applies every mutation to a log; returns one table row for each.
fn mutate(scene: &str, logs: &Logs) -> Vec<String> {
    let (code, honest) = verify(logs);
    assert_eq!(code, 0, "{scene}: an honest log is proven\n{honest}");
    assert!(last_line(&honest).starts_with("proven: "), "{scene}: {honest}");
    let mut rows = Vec::new();
    for Mutation { name, expected, change } in MUTATIONS {
        let mut mutated = logs.clone();
        if !change(&mut mutated) {
            continue;
        }
        let (code, said) = verify(&mutated);
        let last = last_line(&said);
        let says_less = last.starts_with("proven up to ") || said.contains("are not proven");
        // On a busy machine one decision can take longer than all of the lines that are left.
        let too_short = said.contains("cover less time than its longest decision took")
            && has_process_shorter_than_a_decision(&mutated)
            || said.contains("admissions that have no line yet, and the lines cover less than 10s");
        let right = match expected {
            ExpectedResult::Noticed => code == 1 || code == 2,
            ExpectedResult::Same => code == 0 && last == last_line(&honest),
            ExpectedResult::NoticedOrSame => code != 0 || last == last_line(&honest),
            ExpectedResult::Less => code == 0 && says_less || code == 2 && too_short,
        };
        let kind = match expected {
            ExpectedResult::NoticedOrSame if code != 0 => "noticed",
            ExpectedResult::Noticed => "noticed",
            ExpectedResult::Less if code != 0 => "noticed",
            ExpectedResult::Same | ExpectedResult::NoticedOrSame => "harmless: same result",
            ExpectedResult::Less => "harmless: less is proven",
        };
        rows.push(format!("| {scene} | {name} | {code} | {kind} | {} |", last.trim()));
        assert!(right, "{scene}: {name}: {expected:?}, but exit code {code}\n{said}");
    }
    rows
}

/// Returns true if the lines of a process without an end line cover less time than one of its
/// decisions took.
fn has_process_shorter_than_a_decision(logs: &Logs) -> bool {
    let lines: Vec<Value> =
        logs.iter().flatten().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let time = |line: &Value| -> Option<Timestamp> {
        line["at"].as_str().or(line["timestamp"].as_str())?.parse().ok()
    };
    lines.iter().any(|process| {
        let own: Vec<_> =
            lines.iter().filter(|line| line["started"] == process["started"]).collect();
        let times = || own.iter().filter_map(|line| time(line));
        let covered = times().max().zip(times().min()).map(|(last, first)| last.since(first));
        let longest = own.iter().filter_map(|line| line["latencyMs"].as_f64()).fold(0.0, f64::max);
        own.iter().all(|line| line["operation"] != "end")
            && covered.is_some_and(|covered| (covered.as_micros() as f64) < longest * 1_000.0)
    })
}

/// Splits the output of a process into lines.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Stops services and returns their logs.
fn ended(services: Vec<RunningService>) -> Logs {
    let ended = services.into_iter().map(|service| {
        service.signal("-TERM");
        let (code, decisions) = service.end();
        assert_eq!(code, Some(0));
        lines(&decisions)
    });
    ended.collect()
}

fn wait_until_ready(service: &RunningService) {
    eventually_is(|| get(&format!("{}/ready", service.admin)).1, "{\"status\":\"ready\"}");
}

fn redis(server: &RedisServer) -> String {
    let url = format!("redis://127.0.0.1:{}", server.port);
    format!("store: {{kind: redis, url: '{url}', timeout: 2s, deadline: 5s}}\n")
}

const LIMITS: &str = "limits:
- {name: user, rules: [{name: USER, per: [userId], limit: 12/h}]}
- {name: all, rules: [{name: ALL, per: [], limit: [40/min, 60/h]}]}
";

/// Sends requests of several users from several callers at once.
fn ask(services: &[RunningService], users: usize, times: usize) {
    thread::scope(|scope| {
        for user in 0..users {
            let service = &services[user % services.len()];
            scope.spawn(move || {
                for n in 0..times {
                    // Every node admits requests of every user.
                    let user = format!("u{}", (user + n) % users);
                    let dimensions = json!({ "userId": user, "modelId": "m" });
                    let body = json!({ "dimensions": dimensions });
                    let (status, answer) =
                        post(&format!("{}/v1/acquire", service.http), &body, None);
                    assert_eq!(status, 200, "{answer}");
                }
            });
        }
    });
}

#[test]
fn changes_to_a_log_of_memory_are_noticed_or_harmless() {
    let services = vec![RunningService::start(LIMITS)];
    ask(&services, 3, 16);
    show(mutate("memory", &ended(services)));
}

#[test]
fn changes_to_logs_of_nodes_on_redis_are_noticed_or_harmless() {
    let server = RedisServer::start(Version::System, &[]);
    let config = redis(&server) + LIMITS;
    let services = vec![RunningService::start(&config), RunningService::start(&config)];
    services.iter().for_each(wait_until_ready);
    ask(&services, 4, 16);
    show(mutate("Redis", &ended(services)));
}

#[test]
fn changes_to_logs_of_a_cluster_are_noticed_or_harmless() {
    let cluster = RedisCluster::start(3);
    let seeds: Vec<_> =
        cluster.primaries.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let config = format!(
        "store: {{kind: redis, cluster: [{}], timeout: 2s, deadline: 5s}}\n{}",
        seeds.join(", "),
        LIMITS.replace("12/h", "100/h").replace("40/min, 60/h", "400/min, 600/h")
    );
    let services = vec![RunningService::start(&config), RunningService::start(&config)];
    services.iter().for_each(wait_until_ready);
    ask(&services, 4, 60);
    let logs = ended(services);
    let slots = places(&logs, |line| !line["charges"][0]["at"].is_null());
    assert!(!slots.is_empty(), "the slots have times of their own");
    show(mutate("Cluster", &logs));
}

/// Starts an upstream that answers every request with 200.
fn upstream() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while let Ok(1..) = stream.read(&mut buffer) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
                }
            });
        }
    });
    port
}

#[test]
fn changes_to_a_log_of_a_gateway_are_noticed_or_harmless() {
    let server = RedisServer::start(Version::System, &[]);
    let port = upstream();
    let config = redis(&server)
        + &format!(
            "booking: {{slack: 100ms}}
gateways:
  - name: vendor
    listen: 127.0.0.1:0
    routes:
      - path: /
        upstream: http://127.0.0.1:{port}/
        limit: 5/s
        wait: {{max: 30s, depth: 100}}
"
        );
    let service = RunningService::start(&config);
    wait_until_ready(&service);
    let listens = || {
        let mut events = service.logged().into_iter();
        let event = events.find(|event| event["listener"] == "gateways.vendor")?;
        Some(event["address"].as_str()?.to_owned())
    };
    let listen = (0..100_000).find_map(|_| {
        thread::yield_now();
        listens()
    });
    let listen = listen.expect("the gateway listens");
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let (status, text) = get(&format!("http://{listen}/"));
                assert_eq!(status, 200, "{text}");
            });
        }
    });
    let logs = ended(vec![service]);
    assert!(!places(&logs, |line| line["operation"] == "book").is_empty(), "some had to wait");
    show(mutate("gateway", &logs));
}

#[test]
fn changes_to_a_log_of_a_dispatcher_are_noticed_or_harmless() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("queue.db");
    let port = upstream();
    let config = format!(
        "queue: {{kind: embedded, path: {}}}
dispatch:
  source: raw
  fixed: gemini
  delay: 1s
  providers:
    gemini: {{queue: gemini, limit: 20/min}}
workers:
  - provider: gemini
    queue: gemini
    limit: 20/min
    results: results
    handler: {{http: {{url: 'http://127.0.0.1:{port}/'}}}}
",
        file.display()
    );
    let path = folder.path().join("c.yaml");
    std::fs::write(&path, &config).expect("a file");
    let messages: String = (0..16).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let lines = folder.path().join("messages");
    std::fs::write(&lines, messages).expect("a file");
    let sent = sluicegate()
        .args(["queue", "send", "raw", "--create", "--lines"])
        .arg(&lines)
        .arg("-c")
        .arg(&path)
        .output()
        .expect("it runs");
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let service = RunningService::start_only(&config, "dispatch,worker");
    let depth = || {
        let shown = sluicegate().args(["queue", "depth", "results", "-c"]).arg(&path).output();
        let text = String::from_utf8(shown.expect("it runs").stdout).expect("text");
        let ready = text.lines().nth(1).and_then(|row| row.split_whitespace().nth(1));
        ready.and_then(|ready| ready.parse::<usize>().ok())
    };
    // Each poll starts a process, which is slow.
    let done = (0..10_000).any(|_| depth() == Some(16));
    assert!(done, "{:?} of 16 results", depth());
    show(mutate("dispatch", &ended(vec![service])));
}

#[test]
fn changes_to_a_log_with_overrides_are_noticed_or_harmless() {
    let server = RedisServer::start(Version::System, &[]);
    let services = vec![RunningService::start(&(redis(&server) + LIMITS))];
    wait_until_ready(&services[0]);
    ask(&services, 2, 8);
    for limit in ["20/h", "5/h"] {
        let body = json!({ "rule": "USER", "when": { "userId": "u0" }, "limit": limit,
            "reason": "a test" });
        let (status, set) = post(&format!("{}/v1/overrides", services[0].http), &body, None);
        assert_eq!(status, 201, "{set}");
        ask(&services, 2, 5);
    }
    show(mutate("overrides", &ended(services)));
}

#[test]
fn changes_to_a_log_with_reloads_are_noticed_or_harmless() {
    let services = vec![RunningService::start(LIMITS)];
    for amount in [15, 9, 25] {
        ask(&services, 2, 5);
        services[0].write(&LIMITS.replace("12/h", &format!("{amount}/h")));
        let limit = || services[0].allow(&json!({ "userId": "x", "modelId": "m" })).1;
        let shown = |answer: Value| answer["effectiveLimit"] == amount;
        assert!((0..100_000).any(|_| shown(limit())), "{amount}/h is never in force");
    }
    ask(&services, 2, 8);
    show(mutate("reloads", &ended(services)));
}

/// A service inside the test process, on a virtual clock.
struct InProcessService {
    clock: Arc<ManualClock>,
    service: Service,
    log: DecisionLog,
    file: tempfile::NamedTempFile,
}

impl InProcessService {
    fn new(rules: Vec<Rule>) -> Self {
        let groups = rules.into_iter().map(|rule| Group::new(rule.name.clone(), [rule])).collect();
        let rules = Ruleset::new(groups, Default::default()).expect("rules");
        let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_767_571_200)));
        let file = tempfile::NamedTempFile::new().expect("a file");
        let out = Box::new(file.reopen().expect("the same file"));
        // No line is dropped, however little processor time the writing thread gets.
        let options = Options { queue_bytes_max: usize::MAX, ..Options::new([7; 32]) };
        let log = DecisionLog::new(out, clock.clone(), options).expect("a log");
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let observers: Vec<Box<dyn sluicegate_service::Observer>> = vec![Box::new(log.clone())];
        let service =
            Service::new(Limiter::new(rules, AnyStore::custom(store)), clock.clone(), observers);
        Self { clock, service, log, file }
    }

    fn ask(&self, tokens: u64, hold: bool) -> Option<sluicegate_core::plan::Handle> {
        self.clock.advance(Span::from_millis(700));
        let mut query = Query::new(self.service.request_id());
        query.cost = Cost { input_tokens: Some(tokens), ..Cost::default() };
        query.hold = hold.then_some(Span::from_secs(60));
        let queries = [query];
        let decided = self.service.decide(&queries, DecisionMode::Acquire, |answer| {
            answer.decision().is_allowed().then(|| answer.plan().handle())
        });
        block_on(decided).expect("a decision")
    }

    fn settle(&self, handle: &sluicegate_core::plan::Handle, tokens: u64) {
        self.clock.advance(Span::from_millis(300));
        let actual = Cost { requests: Some(1), input_tokens: Some(tokens), ..Cost::default() };
        block_on(self.service.settle(handle, &actual)).expect("settled");
    }

    fn logs(self) -> Logs {
        self.log.close();
        vec![lines(&std::fs::read_to_string(self.file.path()).expect("a log"))]
    }
}

fn rule(name: &str, limits: &[&str]) -> Rule {
    Rule::new(name, limits.iter().map(|limit| limit.parse().expect("a limit")))
}

#[test]
fn changes_to_a_log_with_refunds_are_noticed_or_harmless() {
    let inside = InProcessService::new(vec![rule("ALL", &["40/h", "9/min"])]);
    for n in 0..240 {
        inside.ask(0, false);
        if n > 170 && n % 7 == 3 {
            let query = Query::new(inside.service.request_id());
            block_on(inside.service.refund(&query, |_, _, _| ())).expect("refunded");
        }
    }
    show(mutate("refunds", &inside.logs()));
}

#[test]
fn changes_to_a_log_with_debts_are_noticed_or_harmless() {
    let inside =
        InProcessService::new(vec![rule("ALL", &["90/h"]), rule("BUDGET", &["1000 tokens/min"])]);
    for n in 0..240 {
        if let Some(handle) = inside.ask(100, true) {
            // Some cost less than the estimate, some more.
            inside.settle(&handle, if n % 3 == 0 { 180 } else { 40 });
        }
    }
    show(mutate("debts", &inside.logs()));
}

#[test]
fn changes_to_a_log_of_an_optimistic_budget_are_noticed_or_harmless() {
    let mut budget = rule("BUDGET", &["1000 tokens/min"]);
    budget.mode = EstimateMode::Optimistic;
    let inside = InProcessService::new(vec![rule("ALL", &["90/h"]), budget]);
    for n in 0..240 {
        inside.ask(70 + n % 60, false);
    }
    let logs = inside.logs();
    let over = places(&logs, |line| {
        line["scopes"][1]["count"].as_u64() > Some(1_000) && line["allowed"] == true
    });
    assert!(!over.is_empty(), "the last that is admitted goes beyond the budget");
    show(mutate("optimistic", &logs));
}

/// Prints the rows of the table.
#[expect(clippy::print_stdout, reason = "the table is the result of the test")]
fn show(rows: Vec<String>) {
    assert!(MUTATIONS.len() >= 60, "{} changes", MUTATIONS.len());
    // Some need several files, or lines that this log does not have.
    assert!(rows.len() + 8 >= MUTATIONS.len(), "{} of {}", rows.len(), MUTATIONS.len());
    println!("{}", rows.join("\n"));
}
