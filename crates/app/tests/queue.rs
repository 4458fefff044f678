//! Tests of `sluicegate queue`, `dlq` and `jobs why` on the embedded queue.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::sluicegate;
use serde_json::Value;
use sluicegate_queue::{DeadLetterReason, Embedded, Options, Queue};

/// A folder to run commands in.
struct Shell(tempfile::TempDir);

impl Shell {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output =
            sluicegate().args(arguments).current_dir(self.path()).output().expect("it ran");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Runs a command that must succeed; returns its output.
    fn says(&self, arguments: &[&str]) -> String {
        let (code, out, said) = self.run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        out
    }

    /// Dead-letters every message of a queue.
    fn bury(&self, name: &str, count: usize, reason: &str) {
        self.bury_with(name, count, reason, Options::default());
    }

    fn bury_with(&self, name: &str, count: usize, reason: &str, options: Options) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let broker = Embedded::open(&self.path().join("sluicegate-queue.db")).expect("a file");
            let queue = Queue::new(Arc::new(broker), name, options);
            let mut consumer = queue.consume(1).await.expect("a consumer");
            for _ in 0..count {
                let delivery = consumer.receive_one().await.expect("received");
                let reason = DeadLetterReason::new(reason).with("response", "<html>");
                delivery.dead_letter(reason.with("provider", "p")).await.expect("buried");
            }
        });
    }
}

#[test]
fn messages_are_sent_counted_peeked_at_and_purged() {
    let shell = Shell::new();
    let (code, _, said) = shell.run(&["queue", "depth", "jobs"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("queue jobs does not exist: create it, or use `--create`"), "{said}");
    let id = shell.says(&["queue", "send", "jobs", "{\"n\":1}", "--create", "--job", "j-1"]);
    assert_eq!(id, "j-1/0\n");
    shell.says(&["queue", "send", "jobs", "later", "--in", "1h", "--type", "crawl_org"]);
    let depth = shell.says(&["queue", "depth", "jobs"]);
    let row: Vec<_> = depth.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row[..4], ["jobs", "1", "1", "0"], "{depth}");
    let peeked = shell.says(&["queue", "peek", "jobs"]);
    let first: Value = serde_json::from_str(peeked.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&first["id"], &first["body"]["n"]), (&"j-1/0".into(), &1.into()));
    assert_eq!(peeked.lines().count(), 2);
    let (code, _, said) = shell.run(&["queue", "purge", "jobs"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("has 1 ready and 1 delayed messages: add --yes"), "{said}");
    assert_eq!(shell.says(&["queue", "purge", "jobs", "--yes"]), "2 messages deleted\n");
    assert_eq!(shell.run(&["queue", "peek", "jobs"]).0, Some(1), "nothing to see");
    let size =
        || std::fs::metadata(shell.path().join("sluicegate-queue.db")).expect("a file").len();
    let empty = size();
    shell.says(&["queue", "send", "jobs", &"x".repeat(100_000), "--create"]);
    let lines = format!("{}\n", "x".repeat(1_000)).repeat(100);
    std::fs::write(shell.path().join("lines"), lines).expect("a file");
    shell.says(&["queue", "send", "jobs", "--lines", "lines"]);
    shell.says(&["queue", "purge", "jobs", "--yes"]);
    assert!(size() <= empty + 65_536, "{} bytes, and {empty} before", size());
}

/// The bodies begin with a byte order mark, or are too deep for a tree; each contains the error.
#[test]
fn dead_letters_of_unusual_bodies_are_shown_with_their_stack() {
    let shell = Shell::new();
    let deep = format!("{{\"error\":1,\"a\":{}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
    for (job, body) in [("marked", "\u{feff}{\"a\":1}"), ("deep", &deep)] {
        shell.says(&["queue", "send", "jobs", body, "--job", job, "--create"]);
        shell.bury("jobs", 1, "HTTP 404");
        let listed = shell.says(&["dlq", "show", "jobs", job]);
        let (_, died) = listed.split_once("\"died\":").expect("its end");
        let stack = r#""stack":"HTTP 404""#;
        assert!(died.contains(stack) && died.contains(r#""provider":"p""#), "{job}: {died}");
    }
}

#[test]
fn dead_letters_are_listed_shown_replayed_and_deleted() {
    let shell = Shell::new();
    for (job, kind) in [("a", "crawl_org"), ("b", "crawl_repo"), ("c", "crawl_repo")] {
        let body = format!("{{\"job\":\"{job}\"}}");
        shell.says(&["queue", "send", "jobs", &body, "--job", job, "--type", kind, "--create"]);
    }
    shell.bury("jobs", 2, "HTTP 503 from upstream");
    shell.bury("jobs", 1, "HTTP 404");
    let listed = shell.says(&["dlq", "list", "jobs"]);
    assert!(
        listed.ends_with("\n3 dead letters\n") && listed.contains("HTTP 503 from upstream"),
        "{listed}"
    );
    assert_eq!(
        shell.says(&["dlq", "list", "jobs-dlq"]),
        listed,
        "the name of its dead-letter queue"
    );
    let repos = ["dlq", "list", "jobs", "--type", "crawl_repo", "--json"];
    assert_eq!(shell.says(&repos).lines().count(), 2);
    assert!(
        shell.says(&["dlq", "list", "jobs", "--older-than", "1h"]).ends_with("\n0 dead letters\n")
    );
    let letter: Value =
        serde_json::from_str(&shell.says(&["dlq", "show", "jobs", "c"])).expect("JSON");
    assert_eq!(
        (&letter["died"]["message"], &letter["body"]["job"]),
        (&"HTTP 404".into(), &"c".into())
    );
    let died = &letter["died"];
    assert_eq!(
        (&died["attempts"], &died["response"], &died["provider"]),
        (&1.into(), &"<html>".into(), &"p".into())
    );
    assert_eq!(died["stack"], "HTTP 404", "the message, because there is no stack");
    let (code, _, said) = shell.run(&["dlq", "show", "jobs", "nobody"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no dead letter of queue jobs has job id \"nobody\""), "{said}");

    let replay = ["dlq", "replay", "jobs", "--error", "503"];
    let dry = [&replay[..], &["--dry-run"]].concat();
    assert_eq!(shell.says(&dry), "2 dead letters would be replayed\n");
    assert_eq!(shell.says(&replay), "2 dead letters replayed\n");
    let (code, _, said) = shell.run(&["dlq", "delete", "jobs"]);
    assert!(code == Some(2) && said.contains("--yes"), "{said}");
    assert_eq!(shell.says(&["dlq", "delete", "jobs", "--yes"]), "1 dead letter deleted\n");
    let depth = shell.says(&["queue", "depth", "jobs"]);
    assert!(depth.lines().nth(1).is_some_and(|row| row.starts_with("jobs   2")), "{depth}");
}

/// `dlq delete a --job X` deleted a letter of queue b.
#[test]
fn commands_on_shared_dead_letters_touch_only_those_of_their_queue() {
    let shell = Shell::new();
    std::fs::write(shell.path().join("c.yaml"), "queue: {dead_letter: all-dlq}\n").expect("a file");
    let with = |arguments: &[&str]| shell.says(&[arguments, &["-c", "c.yaml"]].concat());
    for (queue, job) in [("a", "j-1"), ("a", "j-2"), ("b", "j-3")] {
        with(&["queue", "send", queue, "{}", "--job", job, "--create"]);
    }
    let options = Options { dead_letter: Some("all-dlq".to_owned()), ..Options::default() };
    shell.bury_with("a", 2, "no", options.clone());
    shell.bury_with("b", 1, "no", options);
    let depth = with(&["queue", "depth", "a", "b"]);
    let dead = |queue: &str| {
        let row = depth.lines().find(|line| line.starts_with(queue)).expect("a row");
        row.split_whitespace().last().expect("a column").to_owned()
    };
    assert_eq!((dead("a "), dead("b ")), ("2".to_owned(), "1".to_owned()), "{depth}");
    assert_eq!(with(&["dlq", "delete", "a", "--job", "j-3", "--yes"]), "0 dead letters deleted\n");
    assert_eq!(with(&["dlq", "replay", "b", "--job", "j-1"]), "0 dead letters replayed\n");
    assert_eq!(shell.run(&["dlq", "show", "b", "j-1", "-c", "c.yaml"]).0, Some(1));
    assert!(with(&["dlq", "list", "b"]).ends_with("\n1 dead letter\n"));
    assert!(with(&["dlq", "list", "all-dlq"]).ends_with("\n3 dead letters\n"), "all of them");
    assert_eq!(with(&["dlq", "delete", "a", "--yes"]), "2 dead letters deleted\n");
    assert_eq!(with(&["dlq", "replay", "b"]), "1 dead letter replayed\n");
}

/// `AVAILABLE_PROVIDERS` without openai stopped the example: its worker had no queue.
#[test]
fn the_example_of_dispatch_is_valid_with_its_variables() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/two-tier-dispatch");
    for (file, variables) in [
        ("sluicegate.yaml", &[("AVAILABLE_PROVIDERS", "gemini,anthropic")][..]),
        ("sluicegate.yaml", &[("AVAILABLE_PROVIDERS", "gemini"), ("PROVIDER_FIXED", "gemini")]),
        ("worker.yaml", &[]),
        ("worker.yaml", &[("PROVIDER_FIXED", "gemini"), ("RATE_LIMIT", "500")]),
    ] {
        let mut check = sluicegate();
        check.arg("check").arg(folder.join(file)).envs(variables.iter().copied());
        let output = check.output().expect("it ran");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{file} {variables:?}: {said}");
    }
}

#[test]
fn a_missing_queue_does_not_hide_the_depth_of_others() {
    let shell = Shell::new();
    shell.says(&["queue", "send", "jobs", "x", "--create"]);
    let (code, out, said) = shell.run(&["queue", "depth", "nowhere", "jobs", "missing"]);
    assert_eq!(code, Some(2));
    assert!(out.lines().any(|line| line.starts_with("jobs  ")), "{out}");
    for name in ["nowhere", "missing"] {
        assert!(said.contains(&format!("queue {name} does not exist")), "{said}");
    }
}

#[test]
fn an_unusable_configuration_is_reported_at_the_start() {
    let shell = Shell::new();
    let with = |text: &str| {
        let path: PathBuf = shell.path().join("c.yaml");
        std::fs::write(&path, text).expect("a file");
        let (code, _, said) = shell.run(&["queue", "depth", "jobs", "--config", "c.yaml"]);
        assert_eq!(code, Some(2), "{text}");
        said
    };
    let said = with("queue: {kind: kafka}");
    assert!(said.contains("write embedded, rabbitmq, sqs, pubsub or servicebus"), "{said}");
    let said = with("queue: {kind: rabbitmq, url: 'amqp://dev:geheim@127.0.0.1:1/'}");
    assert!(said.contains("can't connect to 127.0.0.1:1") && !said.contains("geheim"), "{said}");
    let said = with("queue: {path: no/such/folder/queue.db}");
    assert!(said.contains("queue.path"), "{said}");
}

#[test]
fn every_line_is_a_message_with_the_job_id_of_its_body() {
    let shell = Shell::new();
    std::fs::write(shell.path().join("c.yaml"), "queue: {job_id: AnalysisId}\n").expect("a file");
    let lines = "{\"AnalysisId\":\"a-1\"}\n\n{\"AnalysisId\":7}\nno json\n";
    std::fs::write(shell.path().join("lines"), lines).expect("a file");
    let said =
        shell.says(&["queue", "send", "jobs", "--lines", "lines", "--create", "-c", "c.yaml"]);
    assert_eq!(said, "3 messages sent\n");
    let peeked = shell.says(&["queue", "peek", "jobs", "-c", "c.yaml"]);
    let ids: Vec<String> = peeked
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["id"].to_string())
        .collect();
    assert_eq!(ids[..2], ["\"a-1/0\"", "\"7/0\""]);
    assert_eq!(ids.len(), 3);
}

#[test]
fn lines_sends_the_lines_of_a_file_and_never_its_name() {
    let shell = Shell::new();
    std::fs::write(shell.path().join("jobs.ndjson"), "{\"n\":1}\n{\"n\":2}\n").expect("a file");
    let sent = shell.says(&["queue", "send", "jobs", "--create", "--lines", "jobs.ndjson"]);
    assert_eq!(sent, "2 messages sent\n");
    let peeked = shell.says(&["queue", "peek", "jobs"]);
    assert!(peeked.contains("\"n\":1") && !peeked.contains("ndjson"), "{peeked}");
    for (arguments, expected) in [
        (&["--lines", "lost.ndjson"][..], "--lines: can't read lost.ndjson"),
        (&["a\nb", "--lines"], "a value is required for '--lines <FILE>'"),
        (&["a\nb", "--lines", "jobs.ndjson"], "cannot be used with"),
        (&[], "required"),
    ] {
        let (code, _, said) = shell.run(&[&["queue", "send", "jobs"], arguments].concat());
        assert!(code == Some(2) && said.contains(expected), "{arguments:?}: {said}");
    }
    assert_eq!(shell.says(&["queue", "peek", "jobs"]).lines().count(), 2, "nothing more was sent");
}

#[test]
fn jobs_why_finds_a_job_in_every_queue() {
    let shell = Shell::new();
    let config = "queue: {job_id: id}
listen: {admin: '127.0.0.1:1'}
dispatch: {source: raw, providers: {p: {}}}
workers: [{provider: p, handler: {command: [cat]}}]
";
    std::fs::write(shell.path().join("c.yaml"), config).expect("a file");
    for queue in ["raw", "p-queue"] {
        shell.says(&["queue", "send", queue, "{}", "--job", "x", "--create", "-c", "c.yaml"]);
        shell.says(&["queue", "purge", queue, "--yes", "-c", "c.yaml"]);
    }
    shell.says(&["queue", "send", "raw", "{\"id\":\"j-1\"}", "-c", "c.yaml"]);
    shell.says(&["queue", "send", "p-queue", "{\"id\":\"j-2\"}", "--in", "1h", "-c", "c.yaml"]);
    shell.says(&["queue", "send", "p-queue", "{\"id\":\"j-3\"}", "-c", "c.yaml"]);
    shell.bury("p-queue", 1, "it said 400");
    let why = |job: &str| {
        let (code, out, said) = shell.run(&["jobs", "why", job, "-c", "c.yaml"]);
        assert!(said.contains("no response from http://127.0.0.1:1/v1/jobs/"), "{said}");
        (code, out)
    };
    let (code, said) = why("j-1");
    assert_eq!(code, Some(0));
    assert!(said.starts_with("it is in queue raw: ready, but not received yet"), "{said}");
    let (_, said) = why("j-2");
    let waits = "it is in queue p-queue: waiting for its delay, which its sender or the dispatcher set, until ";
    assert!(said.starts_with(waits), "{said}");
    let (_, said) = why("j-3");
    assert!(said.starts_with("it is a dead letter of queue p-queue: it said 400"), "{said}");
    let replay = "replay it with: sluicegate dlq replay p-queue --job=j-3 --config c.yaml";
    assert!(said.contains(replay), "{said}");
    let replayed = shell.says(&["dlq", "replay", "p-queue", "--job", "j-3", "-c", "c.yaml"]);
    assert!(replayed.contains('1'), "{replayed}");
    assert!(why("j-3").1.starts_with("it is in queue p-queue: ready, but not received yet"));
    let (code, said) = why("j-4");
    assert_eq!(code, Some(1));
    assert!(said.starts_with("job not found"), "{said}");
}
