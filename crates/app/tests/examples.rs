//! Runs the demo scripts of the examples and checks their output against their READMEs.
//!
//! The test program also replaces the programs that the scripts start, as `examples assistant` and
//! `examples simulators`. So it has a `main` of its own.

mod common;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;

use common::page::{Page, repository, run};
use sluicegate_testkit::ports;
use sluicegate_testkit::rabbitmq::RabbitServer;
use sluicegate_testkit::redis::{RedisServer, Version};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("assistant") {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(assistant_api::serve()).expect("it serves until it is killed");
        return ExitCode::SUCCESS;
    }
    if std::env::args().nth(1).as_deref() == Some("simulators") {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let cli = <simulators::Cli as clap::Parser>::parse_from(std::env::args().skip(1));
        runtime.block_on(cli.run()).expect("it serves until it is killed");
        return ExitCode::SUCCESS;
    }
    thread::scope(|scope| {
        // It mostly waits for the windows of a minute.
        scope.spawn(|| the_commands_of_an_example_work("two-tier-dispatch", 5));
        scope.spawn(|| the_commands_of_an_example_work("crawler-queue", 2));
        three_replicas_keep_the_contract_of_a_vendor();
        both_kinds_of_delay_finish_every_analysis(None);
        every_repository_is_crawled_although_workers_are_killed();
        an_organisation_is_crawled_to_its_end(None);
        ten_questions_are_answered_and_five_get_a_retry_time(None);
        requests_of_a_user_are_allowed_until_one_is_denied(None);
        let redis = RedisServer::start(Version::System, &[]);
        requests_of_a_user_are_allowed_until_one_is_denied(Some(&redis));
        ten_questions_are_answered_and_five_get_a_retry_time(Some(&redis));
        let rabbit = RabbitServer::start();
        both_kinds_of_delay_finish_every_analysis(Some((&rabbit, &redis)));
        an_organisation_is_crawled_to_its_end(Some((&rabbit, &redis)));
    });
    ExitCode::SUCCESS
}

/// Runs the README of an example with its simulator: that of two-tier-dispatch sends 1000 messages, as in
/// C10.
fn the_commands_of_an_example_work(example: &str, blocks_min: usize) {
    let bin = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_sluicegate"), bin.path().join("sluicegate"))
        .expect("a link");
    write_program(&bin.path().join("simulators"), &format!("{} \"$@\"", simulators()));
    let path = repository().join("examples").join(example).join("README.md");
    let page = Page::read(&std::fs::read_to_string(path).expect("the README")).expect("a page");
    assert!(page.blocks >= blocks_min, "{}", page.script);
    if let Err(failure) = run(example, &page.script, bin.path()) {
        panic!("{failure}");
    }
}

/// Writes a shell script that runs a command.
fn write_program(path: &Path, command: &str) {
    std::fs::write(path, format!("#!/bin/sh\nexec {command}\n")).expect("a file");
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a program");
}

/// Returns the command that runs a script of an example with the binary under test.
fn script(path: &str) -> (PathBuf, Command) {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path);
    let mut command = Command::new(&example);
    command.env("SLUICEGATE", env!("CARGO_BIN_EXE_sluicegate"));
    (example, command)
}

/// Runs a script to its end; returns the lines of its output.
fn lines((script, mut command): (PathBuf, Command)) -> Vec<String> {
    let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    let [out, err] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(output.status.success(), "{}: {}\n{out}{err}", script.display(), output.status);
    out.lines().map(|line| line.trim().to_owned()).collect()
}

/// Returns free ports as text.
fn free_ports<const N: usize>() -> [String; N] {
    ports::free_ports().map(|port| port.to_string())
}

fn three_replicas_keep_the_contract_of_a_vendor() {
    let mut show = script("ingestion-proxy/show.sh");
    let [first, second, third, vendor, redis, distant] = free_ports();
    show.1.env("PORTS", format!("{first} {second} {third}"));
    show.1.env("VENDOR_PORT", vendor).env("REDIS_PORT", redis).env("DISTANT_PORT", distant);
    let lines = lines(show);
    let [asked, answered, seen, again, answered_again, seen_again, _, logged] = lines.as_slice()
    else {
        panic!("{lines:#?}")
    };
    assert_eq!(*asked, format!("100 requests at once, through ports {first} {second} {third}:"));
    assert_eq!(again, "the same with Redis 10 ms away:");
    for (answered, seen) in [(answered, seen), (answered_again, seen_again)] {
        assert_eq!(answered, "100 200", "all are answered");
        let words = seen.strip_prefix("the vendor received 100 in ");
        let words = words.and_then(|seen| seen.split_once(" s, at most "));
        let (seconds, most) = words.expect(seen);
        let seconds: f64 = seconds.parse().expect(seen);
        let most = most.strip_suffix(" in any 1.000 s").and_then(|most| most.parse().ok());
        assert!(seconds >= 2.9, "{seen}");
        // Requests take different times to the vendor on a busy machine; tests/gateway has the proof.
        assert!(most.is_some_and(|most: u32| most <= 26), "{seen}");
    }
    assert!(logged.contains("ingestion_proxy_request"), "{logged}");
}

/// Returns the path of this program, which the scripts start as the simulators.
fn simulators() -> String {
    let this = std::env::current_exe().expect("this program");
    format!("{} simulators", this.display())
}

/// Runs the script with a file and memory, or on servers.
fn both_kinds_of_delay_finish_every_analysis(servers: Option<(&RabbitServer, &RedisServer)>) {
    let mut show = script("two-tier-dispatch/show.sh");
    let [http, grpc, admin, provider] = free_ports();
    show.1.env("HTTP_PORT", http).env("GRPC_PORT", grpc).env("ADMIN_PORT", admin);
    show.1.env("PROVIDER_PORT", provider).env("SIMULATORS", simulators());
    if let Some((rabbit, redis)) = servers {
        show.1.env("QUEUE", "rabbitmq").env("RABBITMQ_URL", rabbit.url());
        show.1.env("STORE", "redis").env("REDIS_URL", format!("redis://127.0.0.1:{}", redis.port));
    }
    let lines = lines(show);
    let [sent, fixed, _, sent_again, booked, went_back] = lines.as_slice() else {
        panic!("{lines:#?}")
    };
    assert_eq!((sent.as_str(), sent), ("300 messages sent", sent_again));
    for (line, delay) in [(fixed, "delay: 5000ms"), (booked, "delay: booked")] {
        let report = line.strip_prefix(delay).and_then(|line| line.split_once("provider: "));
        let (_, report) = report.unwrap_or_else(|| panic!("{line}"));
        let report: serde_json::Value = serde_json::from_str(report).expect("JSON");
        for (field, expected) in [("jobs", 300), ("duplicates", 0), ("failed", 0)] {
            assert_eq!(report[field], expected, "{field}: {line}");
        }
    }
    match servers {
        None => assert_eq!(went_back, "worker:   0 went back"),
        // A busy machine may miss a booked start; tests/dispatch has the strict form.
        Some((_, redis)) => {
            assert!(redis.command(&["KEYS", "demo-*"]).contains("worker"), "{lines:?}")
        }
    }
}

fn every_repository_is_crawled_although_workers_are_killed() {
    let mut show = script("crawler-queue/show.sh");
    let [admin, github] = free_ports();
    show.1.env("ADMIN_PORT", admin).env("GITHUB_PORT", github).env("SIMULATORS", simulators());
    let lines = lines(show);
    let last = lines.last().expect("a line");
    let report =
        last.strip_prefix("killed 5 times; GitHub saw ").unwrap_or_else(|| panic!("{last}"));
    let report: serde_json::Value = serde_json::from_str(report).expect("JSON");
    // The organisation and each of its repositories.
    assert_eq!(report["jobs"], 601, "{last}");
}

/// The organisation and all queues have names of the user's own, on the embedded queue or on servers. GitHub
/// gets the token of the user.
fn an_organisation_is_crawled_to_its_end(servers: Option<(&RabbitServer, &RedisServer)>) {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let github = simulators::GitHub {
        repositories: 120,
        limit: 5_000,
        window: std::time::Duration::from_secs(3_600),
        latency: std::time::Duration::ZERO,
    };
    let (router, record) = github.router();
    let (address, _) = runtime.block_on(simulators::serve(0, router)).expect("a port");
    let mut crawl = script("crawler-queue/crawl.sh");
    let [admin] = free_ports();
    crawl.1.env("ADMIN_PORT", admin).env("GITHUB_URL", format!("http://{address}"));
    crawl.1.env("ORG", "umbrella").env("QUEUE_FILE", folder.path().join("crawler.db"));
    crawl.1.env("GITHUB_TOKEN", "token-of-the-test");
    if let Some((rabbit, redis)) = servers {
        crawl.1.env("QUEUE", "rabbitmq").env("RABBITMQ_URL", rabbit.url());
        crawl.1.env("STORE", "redis").env("REDIS_URL", format!("redis://127.0.0.1:{}", redis.port));
    }
    for name in ["CRAWL_ORG_QUEUE", "CRAWL_REPO_QUEUE", "GENERATE_DOC_QUEUE", "DOCUMENTS_QUEUE"] {
        crawl.1.env(name, format!("my-{}", name.to_lowercase().replace('_', "-")));
    }
    let lines = lines(crawl);
    let last = lines.last().expect("a line");
    let mut columns = last.split_whitespace();
    assert_eq!(columns.next(), Some("my-documents-queue"), "{lines:#?}");
    assert_eq!(columns.next(), Some("120"), "{lines:#?}");
    let calls = record.calls();
    assert!(calls.len() >= 122, "two pages and 120 repositories");
    for call in &calls {
        assert_eq!(call.authorization.as_deref(), Some("Bearer token-of-the-test"), "{call:?}");
    }
}

/// Runs the script in memory, or on Redis.
fn requests_of_a_user_are_allowed_until_one_is_denied(redis: Option<&RedisServer>) {
    let mut show = script("inference-limiter/show.sh");
    let [http, grpc, admin] = free_ports();
    let service = format!("127.0.0.1:{http}");
    show.1.env("HTTP_PORT", http).env("GRPC_PORT", grpc).env("ADMIN_PORT", admin);
    show.1.env_remove("STORE").env_remove("REDIS_URL").env_remove("REDIS_CLUSTER_MODE");
    if let Some(redis) = redis {
        show.1.env("STORE", "redis").env("REDIS_URL", format!("redis://127.0.0.1:{}", redis.port));
    }
    let lines = lines(show);
    let [counters, allowed @ .., denied] = lines.as_slice() else { panic!("{lines:#?}") };
    assert_eq!(counters, if redis.is_some() { "counters: redis" } else { "counters: memory" });
    // 5 in 5 s; a slow machine sends more before one is denied.
    assert!(allowed.len() >= 5, "{lines:#?}");
    for (number, line) in (1..).zip(allowed) {
        assert!(line.starts_with(&format!("request {number}: allowed, ")), "{lines:#?}");
    }
    let number = allowed.len() + 1;
    let expected = format!(
        "request {number}: denied by USER_MODEL, reason HIT_USER_MODEL_LIMIT, retry after "
    );
    assert!(denied.starts_with(&expected), "{denied}");
    let wait = denied[expected.len()..].strip_suffix(" ms").and_then(|ms| ms.parse::<u64>().ok());
    assert!(wait.is_some_and(|ms| ms > 0), "{denied}");
    assert!(std::net::TcpStream::connect(&service).is_err(), "the script ends what it started");
    if let Some(redis) = redis {
        let keys = redis.command(&["KEYS", "demo-inference-limiter:*"]);
        assert!(keys.contains("USER_MODEL"), "usage is in Redis: {keys}");
    }
}

fn ten_questions_are_answered_and_five_get_a_retry_time(redis: Option<&RedisServer>) {
    let folder = tempfile::tempdir().expect("a folder");
    let assistant = folder.path().join("assistant");
    let this = std::env::current_exe().expect("this program");
    write_program(&assistant, &format!("'{}' assistant", this.display()));
    let mut demo = script("assistant-api/demo.sh");
    let [http, grpc, admin, listen] = free_ports();
    demo.1.env("LIMITER_PORT", http).env("LIMITER_GRPC_PORT", grpc);
    demo.1.env("LIMITER_ADMIN_PORT", admin).env("ASSISTANT", &assistant);
    demo.1.env("ASSISTANT_LISTEN", format!("127.0.0.1:{listen}"));
    if let Some(redis) = redis {
        // The machine of a test may be slow.
        demo.1.env("REDIS_TIMEOUT", "10s").env("REDIS_DEADLINE", "20s");
        demo.1.env("STORE", "redis").env("REDIS_PORT", redis.port.to_string());
    }
    let lines = lines(demo);
    let [answered, refused, usage] = lines.as_slice() else { panic!("{lines:#?}") };
    assert_eq!(answered, "10 200 retry-after=");
    assert!(refused.starts_with("5 429 retry-after="), "{refused}");
    let usage: serde_json::Value = serde_json::from_str(usage).expect("JSON");
    assert_eq!(usage["limits"]["minute"]["current"], 10);
    assert_eq!(usage["cost"]["today"].to_string(), "0.002606");
    if let Some(redis) = redis {
        assert!(redis.command(&["KEYS", "*ann*"]).contains("ann"), "usage is in Redis");
    }
}
