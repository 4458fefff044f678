//! Messages that can't be passed on: they wait or become dead letters, and nothing loops.

use serde_json::Value;
use simulators::Provider;
use sluicegate_queue::{DeadLetterFilter, JobId, Message};
use sluicegate_testkit::{eventually, eventually_get, eventually_is};

use crate::common::{ANYWHERE, RunningService, get, sluicegate};
use crate::support::{TestSetup, patient, worked};

fn config(setup: &TestSetup, url: &str) -> String {
    let name = &setup.name;
    format!(
        "dispatch:
  source: {name}-raw
  strategy: MESSAGE_BASED
  field: provider
  fixed: p
  prefetch: 20
  providers:
    p: {{queue: {name}-p, limit: 1000/s}}
    q: {{queue: {name}-q, limit: 1000/s}}
workers:
  - provider: p
    limit: 1000/s
    concurrency: 10
    attempts: 1
    results: {name}-results
    handler: {{http: {{url: '{url}/v1/analyze'}}}}
"
    )
}

/// Waits until a process reports that a queue can't be used, in a metric and in `/ready`.
fn wait_until_paused(running: &RunningService, queue: &str) {
    eventually_is(|| paused(running, queue), 1);
    let (status, body) = get(&format!("{}/ready", running.admin));
    assert_eq!((status, body.as_str()), (200, r#"{"status":"degraded","reason":"queue"}"#));
}

fn paused(running: &RunningService, queue: &str) -> u64 {
    running.metric(&format!("sluicegate_queue_paused{{queue=\"{queue}\"}}"))
}

/// Asserts that the log names the queue once when it failed and once when it worked again.
fn logged_once(running: &RunningService, queue: &str) {
    let count = |message: &str| {
        let lines = running.logged();
        lines.iter().filter(|line| line["queue"] == queue && line["message"] == message).count()
    };
    eventually_is(|| count("queue works again"), 1);
    assert_eq!(count("queue unavailable: its messages wait"), 1);
    assert!(running.logged().len() < 100, "{} lines", running.logged().len());
}

/// The provider was called 378 times for 100 jobs.
#[test]
fn a_deleted_results_queue_repeats_no_call_and_loses_no_result() {
    let setup = TestSetup::shared("no-results");
    let (url, record) = setup.provider(patient(0));
    let running = setup.run("worker", &config(&setup, &url));
    setup.delete("results");
    setup.produce("p", 50);
    wait_until_paused(&running, "no-results-results");
    eventually_is(|| record.calls().len(), 10);
    setup.queue("results");
    eventually_is(|| worked(&running, "p", "done"), 50);
    assert_eq!(setup.depth("results").ready, 50);
    setup.each_was_called_once(50, &record);
    logged_once(&running, "no-results-results");
    assert_eq!(paused(&running, "no-results-results"), 0);
    assert_eq!(get(&format!("{}/ready", running.admin)).1, r#"{"status":"ready"}"#);
}

/// The log grew by 3 MB in seconds.
#[test]
fn a_deleted_target_queue_pauses_its_messages_and_no_others() {
    let setup = TestSetup::shared("no-target");
    let running = setup.run("dispatch", &config(&setup, "http://127.0.0.1:1"));
    setup.delete("p");
    setup.produce("raw", 100);
    wait_until_paused(&running, "no-target-p");
    let raw = setup.queue("raw");
    let other =
        Message::of_job(JobId::try_from("other".to_owned()).expect("an id"), r#"{"provider":"q"}"#);
    setup.runtime.block_on(raw.send(other)).expect("sent");
    eventually_is(|| setup.depth("q").ready, 1);
    setup.queue("p");
    // With the other places of the messages, which tell where those are that do not arrive.
    let places = || {
        let raw = setup.depth("raw");
        let raw = (raw.ready, raw.delayed, raw.in_flight);
        (setup.depth("p").ready, setup.dead("raw"), raw)
    };
    eventually_get(|| match places() {
        (100, 0, _) => Ok(()),
        places => Err(places),
    });
    logged_once(&running, "no-target-p");
    assert_eq!(setup.dead("raw"), 0);
}

#[test]
fn a_deleted_dead_letter_queue_repeats_no_call_and_loses_no_letter() {
    let setup = TestSetup::shared("no-dlq");
    let (url, record) = setup.provider(Provider { failures_percent: 100, ..patient(0) });
    let running = setup.run("worker", &config(&setup, &url));
    setup.delete("p-dlq");
    // Not with `produce`, which would create the queue again.
    for number in 0..5 {
        setup.send_foreign("p", format!("{{\"AnalysisId\":\"{number}\"}}").as_bytes());
    }
    wait_until_paused(&running, "no-dlq-p-dlq");
    eventually_is(|| record.calls().len(), 5);
    setup.queue("p");
    eventually_is(|| setup.dead("p"), 5);
    assert_eq!(record.calls().len(), 5);
    logged_once(&running, "no-dlq-p-dlq");
}

/// The jobs stayed leased for `visibility`, 300 s by default.
#[test]
fn a_second_signal_returns_the_jobs_to_their_queue() {
    let setup = TestSetup::alone("interrupted");
    let (url, _) = setup.provider(patient(600_000));
    let running = setup.run("worker", &config(&setup, &url));
    setup.produce("p", 20);
    eventually_is(|| running.metric("sluicegate_worker_busy{provider=\"p\"}"), 10);
    let stopping = |text: &str| {
        let lines = running.logged();
        lines.iter().any(|line| line["message"].as_str().is_some_and(|m| m.starts_with(text)))
    };
    running.signal("-TERM");
    eventually(|| stopping("stopping: finishing"));
    running.signal("-TERM");
    assert_eq!(running.end().0, Some(0));
    let depth = setup.depth("p");
    assert_eq!((depth.ready, depth.in_flight), (20, Some(0)));
}

#[test]
fn draining_ends_after_its_timeout_and_returns_the_jobs() {
    let setup = TestSetup::alone("undrained");
    let (url, _) = setup.provider(patient(600_000));
    let config = format!("server: {{drain_timeout: 1s}}\n{}", config(&setup, &url));
    let running = setup.run("worker", &config);
    setup.produce("p", 20);
    eventually_is(|| running.metric("sluicegate_worker_busy{provider=\"p\"}"), 10);
    running.stop();
    let depth = setup.depth("p");
    assert_eq!((depth.ready, depth.in_flight), (20, Some(0)));
}

#[test]
fn a_missing_dead_letter_queue_is_named_at_the_start() {
    let setup = TestSetup::shared("start-dlq");
    for queue in ["raw", "p", "q", "results"] {
        setup.queue(queue);
    }
    setup.delete("p-dlq");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("c.yaml");
    let text = format!("{ANYWHERE}{}{}", setup.config(), config(&setup, "http://127.0.0.1:1"));
    std::fs::write(&path, text).expect("a file");
    for arguments in [&["serve", "--only", "worker"][..], &["doctor"]] {
        let output = sluicegate().args(arguments).arg("--config").arg(&path).output();
        let output = output.expect("it ran");
        assert!(!output.status.success(), "{arguments:?}");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let expected = "dead-letter queue of start-dlq-p: queue start-dlq-p-dlq does not exist";
        assert!(said.contains(expected) && said.contains("--create"), "{said}");
    }
}

/// RabbitMQ accepts larger messages than we send. Such a message was received 34 times per second.
#[test]
fn a_message_that_is_too_large_is_a_dead_letter_with_the_reason() {
    let setup = TestSetup::shared("too-large");
    let running = setup.run("dispatch", &config(&setup, "http://127.0.0.1:1"));
    let body = format!("{{\"AnalysisId\":\"big\",\"x\":\"{}\"}}", "x".repeat(17 << 20));
    setup.send_foreign("raw", body.as_bytes());
    let letters = setup.queue("raw").dead_letters();
    let (job, error, original) = eventually_get(|| {
        let (mut found, all) = (None, DeadLetterFilter::default());
        let listed = letters.list(&all, 1, |letter| {
            let error = letter.failure().expect("its failure").message.clone();
            found = Some((letter.message.meta.job.to_string(), error, letter.original()));
        });
        setup.runtime.block_on(listed).expect("listed");
        found.ok_or("no letter")
    });
    assert_eq!(job, "big");
    let expected = "it can't be sent to queue too-large-p: the message has 17";
    assert!(error.starts_with(expected) && error.contains("maximum of RabbitMQ"), "{error}");
    assert!(original == body.as_bytes(), "the letter has the bytes of its producer");
    let received = r#"sluicegate_queue_messages_total{queue="too-large-raw",event="received"}"#;
    assert_eq!(running.metric(received), 1);
    let lines: Vec<Value> = running.logged();
    assert!(lines.len() < 50, "{lines:?}");
}
