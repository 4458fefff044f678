//! Changes to honest logs: `sluicegate verify` must notice each, or prove no more than is true.
//!
//! The logs are those of the product: of services on Redis and on a Redis Cluster, of a gateway and
//! of a dispatcher with its workers, through overrides and reloads, and of refunds, debts and
//! `optimistic` budgets. Every change is tried on every log. The test prints the table:
//! `cargo test --features redis-tests --test mutations -- --nocapture`.

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use common::{Running, get, post, sluicegate};
use pollster::block_on;
use serde_json::{Map, Value, json};
use sluicegate_core::query::{Cost, Query};
use sluicegate_core::rule::Mode;
use sluicegate_core::{Group, Limiter, Rule, Ruleset, Span, Timestamp};
use sluicegate_server::decision_log::{DecisionLog, Options};
use sluicegate_server::service::{Question, Service};
use sluicegate_store::Memory;
use sluicegate_store::memory::Capacity;
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::redis::{RedisCluster, RedisServer, Version};

/// The logs of one installation, a file for each process, as lines.
type Logs = Vec<Vec<String>>;

/// What has to come of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// It is noticed: exceeded or not provable.
    Noticed,
    /// It is harmless: the same is proven as before.
    Same,
    /// It is noticed, or else the same is proven as before: what is changed is no part of the
    /// proof of every log.
    NoticedOrSame,
    /// It is harmless: less is proven, and verify says from when on or up to when.
    Less,
}

/// One change. It returns false where there is nothing to change.
struct Mutation {
    name: &'static str,
    expected: Expected,
    change: fn(&mut Logs) -> bool,
}

/// Changes the fields of one line.
fn edit(line: &mut String, change: impl FnOnce(&mut Map<String, Value>)) {
    let mut fields: Map<String, Value> = serde_json::from_str(line).expect("a line");
    change(&mut fields);
    *line = Value::Object(fields).to_string();
}

fn fields(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_default()
}

/// The place in the middle, of those between other lines of the same process.
fn middle(logs: &Logs, fits: impl Fn(&Value) -> bool) -> Option<(usize, usize)> {
    let mut places = places(logs, fits);
    places.retain(|&(log, line)| 0 < line && line + 2 < logs[log].len());
    places.get(places.len() / 2).copied()
}

/// The places of lines that fit.
fn places(logs: &Logs, fits: impl Fn(&Value) -> bool) -> Vec<(usize, usize)> {
    let lines = logs.iter().enumerate().flat_map(|(log, lines)| {
        lines.iter().enumerate().map(move |(line, text)| (log, line, text))
    });
    lines.filter(|(.., text)| fits(&fields(text))).map(|(log, line, _)| (log, line)).collect()
}

/// An admission of the store that was charged with it.
fn is_admission(line: &Value) -> bool {
    let charge = &line["charges"][0];
    line["allowed"] == true
        && line["decided"] == "store"
        && ["acquire", "book"].iter().any(|&name| line["operation"] == name)
        && charge["take"].as_u64() > Some(0)
        && charge["shadow"].is_null()
}

/// Changes the admission in the middle.
fn admission(logs: &mut Logs, change: impl FnOnce(&mut Map<String, Value>)) -> bool {
    let Some((log, line)) = middle(logs, is_admission) else { return false };
    edit(&mut logs[log][line], change);
    true
}

/// Changes an admission that others on its counter come before and after: only what the store
/// counted later tells that it is missing there.
fn admission_between(logs: &mut Logs, change: impl FnOnce(&mut Map<String, Value>)) -> bool {
    let of = |(log, line): &(usize, usize), name: &str| fields(&logs[*log][*line])[name].clone();
    let mut places = places(logs, is_admission);
    places.sort_by_key(|place| of(place, "at").to_string());
    let keys: Vec<_> = places.iter().map(|place| of(place, "charges")[0]["key"].clone()).collect();
    let alike = |others: &[Value], key: &Value| others.iter().filter(|other| *other == key).count();
    let between = |number: &usize| {
        let (before, after) = (&keys[..*number], &keys[*number + 1..]);
        alike(before, &keys[*number]) > 1 && alike(after, &keys[*number]) > 1
    };
    let between: Vec<_> = (0..keys.len()).filter(between).collect();
    let Some(&number) = between.get(between.len() / 2) else { return false };
    let (log, line) = places[number];
    edit(&mut logs[log][line], change);
    true
}

/// Changes the first charge of the admission in the middle.
fn charge(logs: &mut Logs, change: impl FnOnce(&mut Value)) -> bool {
    admission(logs, |fields| change(&mut fields["charges"][0]))
}

fn remove(logs: &mut Logs, fits: impl Fn(&Value) -> bool) -> bool {
    let Some((log, line)) = middle(logs, fits) else { return false };
    logs[log].remove(line);
    true
}

fn insert(logs: &mut Logs, text: &str) -> bool {
    let middle = logs[0].len() / 2;
    logs[0].insert(middle, text.to_owned());
    true
}

/// Moves an instant by so many microseconds.
fn moved(instant: &Value, micros: i64) -> Value {
    let at: Timestamp = instant.as_str().expect("an instant").parse().expect("an instant");
    let at = at.as_micros().checked_add_signed(micros).expect("an instant");
    Timestamp::from_micros(at).to_string().into()
}

const HOUR: i64 = 3_600_000_000;

/// Moves every instant of a line.
fn move_all(fields: &mut Map<String, Value>, micros: i64) {
    for name in ["timestamp", "at", "start", "until", "retryAt", "windowResetAt"] {
        if let Some(instant) = fields.get_mut(name) {
            *instant = moved(instant, micros);
        }
    }
    for charge in fields.get_mut("charges").and_then(Value::as_array_mut).into_iter().flatten() {
        if !charge["at"].is_null() {
            charge["at"] = moved(&charge["at"], micros);
        }
    }
}

fn raised(limit: &Value) -> Value {
    format!("9{}", limit.as_str().expect("a limit")).into()
}

const MUTATIONS: &[Mutation] = &[
    Mutation { name: "nothing", expected: Expected::Same, change: |_| true },
    // Delete.
    Mutation {
        name: "delete an admission",
        expected: Expected::Noticed,
        change: |logs| remove(logs, is_admission),
    },
    Mutation {
        name: "delete a denial",
        expected: Expected::Noticed,
        change: |logs| remove(logs, |line| line["allowed"] == false),
    },
    Mutation {
        name: "delete a settlement, release, cancellation or claim",
        expected: Expected::Noticed,
        change: |logs| {
            remove(logs, |line| {
                let follows = ["settle", "release", "cancel", "claim", "renew", "refund", "reset"];
                follows.iter().any(|&name| line["operation"] == name)
            })
        },
    },
    Mutation {
        name: "delete the first line of a process",
        expected: Expected::Less,
        change: |logs| {
            logs[0].remove(0);
            true
        },
    },
    Mutation {
        name: "delete the first half (a later slice)",
        expected: Expected::Less,
        change: |logs| {
            let middle = logs[0].len() / 2;
            logs[0].drain(..middle);
            true
        },
    },
    Mutation {
        name: "delete the end line (kill -9)",
        expected: Expected::Less,
        change: |logs| {
            logs[0].pop();
            true
        },
    },
    Mutation {
        name: "delete the file of a node",
        expected: Expected::Noticed,
        change: |logs| {
            let several = logs.len() > 1;
            logs.truncate(logs.len() - usize::from(several));
            several
        },
    },
    Mutation {
        name: "delete the numbers of a line (an older version)",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "seq")),
    },
    // Duplicate.
    Mutation {
        name: "duplicate an admission",
        expected: Expected::Noticed,
        change: |logs| {
            let Some(&(log, line)) = places(logs, is_admission).last() else { return false };
            let again = logs[log][line].clone();
            logs[log].insert(line, again);
            true
        },
    },
    Mutation {
        name: "duplicate a file",
        expected: Expected::Noticed,
        change: |logs| {
            let again = logs[0].clone();
            logs.push(again);
            true
        },
    },
    Mutation {
        name: "duplicate the end line",
        expected: Expected::Noticed,
        change: |logs| {
            let end = logs[0].last().expect("a line").clone();
            logs[0].push(end);
            true
        },
    },
    // Shift.
    Mutation {
        name: "shift an admission an hour ahead",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields["at"] = moved(&fields["at"], HOUR)),
    },
    Mutation {
        name: "shift an admission an hour back",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields["at"] = moved(&fields["at"], -HOUR)),
    },
    Mutation {
        name: "shift the whole log by an hour",
        expected: Expected::Same,
        change: |logs| {
            logs.iter_mut().flatten().for_each(|line| edit(line, |fields| move_all(fields, HOUR)));
            true
        },
    },
    // Reorder.
    Mutation {
        name: "swap neighbours",
        expected: Expected::Same,
        change: |logs| {
            logs.iter_mut().for_each(|log| log.chunks_exact_mut(2).for_each(|two| two.swap(0, 1)));
            true
        },
    },
    Mutation {
        name: "reverse every ten lines",
        expected: Expected::Same,
        change: |logs| {
            logs.iter_mut().for_each(|log| log.chunks_mut(10).for_each(<[_]>::reverse));
            true
        },
    },
    Mutation {
        name: "the files in another order",
        expected: Expected::Same,
        change: |logs| {
            logs.reverse();
            true
        },
    },
    Mutation {
        name: "all files in one",
        expected: Expected::Same,
        change: |logs| {
            *logs = vec![logs.concat()];
            true
        },
    },
    // Truncate.
    Mutation {
        name: "cut off the second half (a prefix)",
        expected: Expected::Less,
        change: |logs| {
            let middle = logs[0].len() / 2;
            logs[0].truncate(middle);
            true
        },
    },
    Mutation {
        name: "cut off the last line",
        expected: Expected::Less,
        change: |logs| {
            let last = logs.last_mut().and_then(|log| log.last_mut()).expect("a line");
            last.truncate(last.len() / 2);
            true
        },
    },
    Mutation {
        name: "cut off a line in the middle",
        expected: Expected::Noticed,
        change: |logs| {
            let Some(&(log, line)) = places(logs, is_admission).first() else { return false };
            let half = logs[log][line].len() / 2;
            logs[log][line].truncate(half);
            true
        },
    },
    Mutation {
        name: "join two lines",
        expected: Expected::Noticed,
        change: |logs| {
            let next = logs[0].remove(1);
            logs[0][0].push_str(&next);
            true
        },
    },
    // Change an amount.
    Mutation {
        name: "take 0",
        expected: Expected::Noticed,
        change: |logs| charge(logs, |charge| charge["take"] = 0.into()),
    },
    Mutation {
        // What was settled counts as what it cost.
        name: "take a thousand million times as much",
        expected: Expected::NoticedOrSame,
        change: |logs| {
            charge(logs, |charge| {
                let take = charge["take"].as_u64().expect("an amount");
                charge["take"] = take.saturating_mul(1_000_000_000).into();
                charge.as_object_mut().expect("a charge").remove("need");
            })
        },
    },
    Mutation {
        name: "no charges",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "charges")),
    },
    Mutation {
        name: "an empty list of charges",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields["charges"] = json!([])),
    },
    Mutation {
        name: "another unit",
        expected: Expected::Noticed,
        change: |logs| charge(logs, |charge| charge["unit"] = "bananas".into()),
    },
    Mutation {
        name: "a higher count",
        expected: Expected::Noticed,
        change: |logs| {
            admission(logs, |fields| {
                let count = &mut fields["scopes"][0]["count"];
                *count = (count.as_f64().expect("a count") + 1_000.0).into();
            })
        },
    },
    Mutation {
        name: "a higher count, with what remains",
        expected: Expected::NoticedOrSame,
        change: |logs| {
            admission(logs, |fields| {
                let scope = &mut fields["scopes"][0];
                scope["count"] = scope["limit"].clone();
                scope["remaining"] = 0.into();
            })
        },
    },
    // Change a key or a limit.
    Mutation {
        name: "another key",
        expected: Expected::Noticed,
        change: |logs| {
            admission_between(logs, |fields| {
                fields["charges"][0]["key"] = "OTHER#requests".into();
            })
        },
    },
    Mutation {
        name: "a higher limit in a charge",
        expected: Expected::Noticed,
        change: |logs| charge(logs, |charge| charge["limits"][0] = raised(&charge["limits"][0])),
    },
    Mutation {
        name: "a higher limit in a charge and where it is shown",
        expected: Expected::Noticed,
        change: |logs| {
            admission(logs, |fields| {
                let limit = raised(&fields["charges"][0]["limits"][0]);
                fields["charges"][0]["limits"][0] = limit.clone();
                fields["scopes"][0]["window"] = limit;
            })
        },
    },
    Mutation {
        name: "a limit that can't be read",
        expected: Expected::Noticed,
        change: |logs| charge(logs, |charge| charge["limits"][0] = "many/s".into()),
    },
    Mutation {
        name: "no limits",
        expected: Expected::Noticed,
        change: |logs| charge(logs, |charge| charge["limits"] = json!([])),
    },
    // Change who wrote or decided it.
    Mutation {
        name: "another node",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields["node"] = "elsewhere".into()),
    },
    Mutation {
        name: "another start of the process",
        expected: Expected::Noticed,
        change: |logs| {
            admission(logs, |fields| fields["started"] = moved(&fields["started"], HOUR))
        },
    },
    Mutation {
        name: "another sequence number",
        expected: Expected::Noticed,
        change: |logs| {
            admission(logs, |fields| {
                fields["seq"] = (fields["seq"].as_u64().expect("a number") + 1).into();
            })
        },
    },
    Mutation {
        name: "a sequence number far ahead",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields["seq"] = 1_000_000.into()),
    },
    Mutation {
        name: "another line number",
        expected: Expected::Noticed,
        change: |logs| {
            admission(logs, |fields| {
                fields["line"] = (fields["line"].as_u64().expect("a number") + 1).into();
            })
        },
    },
    Mutation {
        name: "fewer admissions in the end line",
        expected: Expected::Noticed,
        change: |logs| {
            let end = logs[0].last_mut().expect("a line");
            edit(end, |fields| fields["seq"] = 0.into());
            true
        },
    },
    Mutation {
        name: "an admission made a denial",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields["allowed"] = false.into()),
    },
    Mutation {
        name: "an admission made a look ahead",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields["operation"] = "peek".into()),
    },
    Mutation {
        name: "decided by nobody",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields.retain(|name, _| name != "decided")),
    },
    Mutation {
        name: "decided by a fallback",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields["decided"] = "fallback".into()),
    },
    Mutation {
        name: "decided before",
        expected: Expected::Noticed,
        change: |logs| admission(logs, |fields| fields["decided"] = "replay".into()),
    },
    // Tell that something is missing, or write something else.
    Mutation {
        name: "lines that were dropped",
        expected: Expected::Noticed,
        change: |logs| {
            admission(logs, |fields| drop(fields.insert("dropped".to_owned(), 3.into())))
        },
    },
    Mutation {
        name: "a sample",
        expected: Expected::Noticed,
        change: |logs| {
            admission(logs, |fields| drop(fields.insert("samplePpm".to_owned(), 9.into())))
        },
    },
    Mutation {
        name: "a line of another program",
        expected: Expected::Same,
        change: |logs| insert(logs, "listening on 8080") && insert(logs, "{\"level\":\"INFO\"}"),
    },
    Mutation {
        name: "a line that is no JSON",
        expected: Expected::Noticed,
        change: |logs| insert(logs, "{\"allowed\":tr"),
    },
];

/// Verifies logs: the exit code and all that is said.
fn verify(logs: &Logs) -> (i32, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = sluicegate();
    command.args(["verify", "--top", "3"]).current_dir(folder.path());
    for (number, log) in logs.iter().enumerate() {
        let name = format!("{number}.log");
        // A last line that is cut off has no end.
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

/// Tries every change on a log; a row of the table for each.
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
        let right = match expected {
            Expected::Noticed => code == 1 || code == 2,
            Expected::Same => code == 0 && last == last_line(&honest),
            Expected::NoticedOrSame => code != 0 || last == last_line(&honest),
            Expected::Less => code == 0 && says_less,
        };
        let kind = match expected {
            Expected::NoticedOrSame if code != 0 => "noticed",
            Expected::Noticed => "noticed",
            Expected::Same | Expected::NoticedOrSame => "harmless: the same is proven",
            Expected::Less => "harmless: less is proven",
        };
        rows.push(format!("| {scene} | {name} | {code} | {kind} | {} |", last.trim()));
        assert!(right, "{scene}: {name}: {expected:?}, but exit code {code}\n{said}");
    }
    rows
}

/// Lines of what a process wrote.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// The logs of services that are told to end.
fn ended(services: Vec<Running>) -> Logs {
    let ended = services.into_iter().map(|service| {
        service.signal("-TERM");
        let (code, decisions) = service.end();
        assert_eq!(code, Some(0));
        lines(&decisions)
    });
    ended.collect()
}

fn wait_until_ready(service: &Running) {
    for _ in 0..100_000 {
        if get(&format!("{}/ready", service.admin)).1 == "{\"status\":\"ready\"}" {
            return;
        }
        thread::yield_now();
    }
    panic!("it never becomes ready");
}

fn redis(server: &RedisServer) -> String {
    let url = format!("redis://127.0.0.1:{}", server.port);
    format!("store: {{kind: redis, url: '{url}', timeout: 2s, deadline: 5s}}\n")
}

const LIMITS: &str = "limits:
- {name: user, rules: [{name: USER, per: [userId], limit: 12/h}]}
- {name: all, rules: [{name: ALL, per: [], limit: [40/min, 60/h]}]}
";

/// Asks for so many users, so often each, from several callers at once.
fn ask(services: &[Running], users: usize, times: usize) {
    thread::scope(|scope| {
        for user in 0..users {
            let service = &services[user % services.len()];
            scope.spawn(move || {
                for n in 0..times {
                    // Every node has admissions of every user.
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
    let services = vec![Running::start(LIMITS)];
    ask(&services, 3, 16);
    show(mutate("memory", &ended(services)));
}

#[test]
fn changes_to_logs_of_nodes_on_redis_are_noticed_or_harmless() {
    let server = RedisServer::start(Version::System, &[]);
    let config = redis(&server) + LIMITS;
    let services = vec![Running::start(&config), Running::start(&config)];
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
    let services = vec![Running::start(&config), Running::start(&config)];
    services.iter().for_each(wait_until_ready);
    ask(&services, 4, 60);
    let logs = ended(services);
    let slots = places(&logs, |line| !line["charges"][0]["at"].is_null());
    assert!(!slots.is_empty(), "the slots have times of their own");
    show(mutate("Cluster", &logs));
}

/// An upstream that says yes to everything.
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
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = listener.local_addr().expect("an address");
    drop(listener);
    let config = redis(&server)
        + &format!(
            "booking: {{slack: 100ms}}
gateways:
  - name: vendor
    listen: {listen}
    routes:
      - path: /
        upstream: http://127.0.0.1:{port}/
        limit: 5/s
        wait: {{max: 30s, depth: 100}}
"
        );
    let service = Running::start(&config);
    wait_until_ready(&service);
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
    let sent = sluicegate()
        .args(["queue", "send", "raw", &messages, "--lines", "--create", "-c"])
        .arg(&path)
        .output()
        .expect("it runs");
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let service = Running::start_only(&config, "dispatch,worker");
    let depth = || {
        let shown = sluicegate().args(["queue", "depth", "results", "-c"]).arg(&path).output();
        let text = String::from_utf8(shown.expect("it runs").stdout).expect("text");
        let ready = text.lines().nth(1).and_then(|row| row.split_whitespace().nth(1));
        ready.and_then(|ready| ready.parse::<usize>().ok())
    };
    let done = (0..600).any(|_| {
        thread::sleep(std::time::Duration::from_millis(100));
        depth() == Some(16)
    });
    assert!(done, "{:?} of 16 results", depth());
    show(mutate("dispatch", &ended(vec![service])));
}

#[test]
fn changes_to_a_log_with_overrides_are_noticed_or_harmless() {
    let server = RedisServer::start(Version::System, &[]);
    let services = vec![Running::start(&(redis(&server) + LIMITS))];
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
    let services = vec![Running::start(LIMITS)];
    for amount in ["15", "9", "25"] {
        ask(&services, 2, 5);
        services[0].write(&LIMITS.replace("12/h", &format!("{amount}/h")));
        let limit = || services[0].allow(&json!({ "userId": "x", "modelId": "m" })).1;
        let shown = |answer: Value| answer["effectiveLimit"].to_string() == amount;
        assert!((0..100_000).any(|_| shown(limit())), "{amount}/h is never in force");
    }
    ask(&services, 2, 8);
    show(mutate("reloads", &ended(services)));
}

/// A service in this process, on a clock that is advanced.
struct Inside {
    clock: Arc<ManualClock>,
    service: Service<Memory<Arc<ManualClock>>, Arc<ManualClock>>,
    log: DecisionLog,
    file: tempfile::NamedTempFile,
}

impl Inside {
    fn new(rules: Vec<Rule>) -> Self {
        let groups = rules.into_iter().map(|rule| Group::new(rule.name.clone(), [rule])).collect();
        let rules = Ruleset::new(groups, Default::default()).expect("rules");
        let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_767_571_200)));
        let file = tempfile::NamedTempFile::new().expect("a file");
        let out = Box::new(file.reopen().expect("the same file"));
        let log = DecisionLog::new(out, clock.clone(), Options::new([7; 32])).expect("a log");
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let observers: Vec<Box<dyn sluicegate_server::service::Observer>> =
            vec![Box::new(log.clone())];
        let service = Service::new(Limiter::new(rules, store), clock.clone(), observers);
        Self { clock, service, log, file }
    }

    fn ask(&self, tokens: u64, hold: bool) -> Option<sluicegate_core::plan::Handle> {
        self.clock.advance(Span::from_millis(700));
        let mut query = Query::new(self.service.request_id());
        query.cost = Cost { input_tokens: Some(tokens), ..Cost::default() };
        query.hold = hold.then_some(Span::from_secs(60));
        let queries = [query];
        let decided = self.service.decide(&queries, Question::Acquire, |answer| {
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
    let inside = Inside::new(vec![rule("ALL", &["40/h", "9/min"])]);
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
    let inside = Inside::new(vec![rule("ALL", &["90/h"]), rule("BUDGET", &["1000 tokens/min"])]);
    for n in 0..240 {
        if let Some(handle) = inside.ask(100, true) {
            // Some cost less than was estimated, some more.
            inside.settle(&handle, if n % 3 == 0 { 180 } else { 40 });
        }
    }
    show(mutate("debts", &inside.logs()));
}

#[test]
fn changes_to_a_log_of_an_optimistic_budget_are_noticed_or_harmless() {
    let mut budget = rule("BUDGET", &["1000 tokens/min"]);
    budget.mode = Mode::Optimistic;
    let inside = Inside::new(vec![rule("ALL", &["90/h"]), budget]);
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

/// Prints rows of the table.
fn show(rows: Vec<String>) {
    assert!(rows.len() > 40, "{} changes", rows.len());
    println!("{}", rows.join("\n"));
}
