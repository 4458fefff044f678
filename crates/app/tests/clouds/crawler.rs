//! The crawler example, with its own configuration file: the variable `QUEUE` selects the broker, and
//! workers are killed while they crawl.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use serde_json::Value;
use simulators::GitHub;
use sluicegate_core::Span;
use sluicegate_queue::{Options, Queue, ServiceBus, servicebus};
use sluicegate_testkit::ports::free_port;
use sluicegate_testkit::{eventually_get, long};
use tokio::runtime::Runtime;

use crate::example::{self, Example, ExampleSetup};
pub(crate) use crate::example::{pubsub, sqs};

/// Number of repositories: two pages, or 600 in the long form. `tests/dispatch/crawling.rs` always crawls 600
/// on the embedded queue and on RabbitMQ; the test servers of the clouds are slower by an order of magnitude.
fn repositories() -> usize {
    if long() { 600 } else { 150 }
}

/// Length of a window of GitHub.
const WINDOW: Duration = Duration::from_secs(4);
const KILLS: usize = 4;
/// Queues of the example.
const QUEUES: [&str; 4] = ["crawl-org", "crawl-repo", "generate-doc", "documents"];

/// Service Bus: its queues have short locks, so that the messages of a killed worker come soon.
pub(crate) fn servicebus(name: &str) -> ExampleSetup {
    let setup = example::servicebus(name);
    let connection_string = setup.variable("SERVICEBUS_CONNECTION_STRING");
    let options = servicebus::Options::from_connection_string(connection_string);
    let mut options = options.expect("a complete string");
    options.admin_url = Some(setup.variable("SERVICEBUS_ADMIN_URL").to_owned());
    options.lock = Span::from_secs(5);
    Runtime::new().expect("a runtime").block_on(async {
        let broker = Arc::new(ServiceBus::new(options).expect("valid options"));
        for queue in QUEUES {
            let options =
                Options { dead_letter: Some("crawler-dlq".to_owned()), ..Options::default() };
            Queue::new(broker.clone(), queue, options).create().await.expect("created");
        }
    });
    setup
}

/// D7: a message for the organisation fans out to a document for every repository, although workers are
/// killed. Workers pause together before GitHub refuses a call.
pub(crate) fn the_example_crawls_every_repository(setup: &ExampleSetup) {
    let runtime = Runtime::new().expect("a runtime");
    let github = GitHub {
        repositories: repositories(),
        limit: 150,
        window: WINDOW,
        latency: Duration::from_millis(5),
    };
    let (router, record) = github.router();
    let (address, _) = runtime.block_on(simulators::serve(0, router)).expect("a port");
    let url = format!("http://{address}");
    let environment = setup.environment(&[("GITHUB_URL", url.as_str())]);
    let example = Example::new("crawler-queue", environment);
    let message = r#"{"type": "crawl_org", "org": "acme"}"#;
    let (code, _, err) = example.run(&["queue", "send", "crawl-org", message, "--create"]);
    assert_eq!(code, Some(0), "{err}");

    let worker = || example.start("worker");
    let mut workers = [worker(), worker()];
    let (_nobody, moment) = sync_channel::<()>(1);
    for number in 0..KILLS {
        let _ = moment.recv_timeout(Duration::from_millis(700));
        workers[number % 2] = worker();
    }
    let expected: BTreeSet<_> =
        (0..repositories()).map(|number| format!("acme/repo-{number:04}")).collect();
    eventually_get(|| {
        let jobs = record.report(WINDOW).jobs;
        // Each repository and the pages.
        if jobs > repositories() { Ok(()) } else { Err(jobs) }
    });
    eventually_get(|| {
        let (_, lines, err) = example.run(&["queue", "peek", "documents", "--max", "10000"]);
        let documented: BTreeSet<_> = lines.lines().map(repository).collect();
        if documented == expected { Ok(()) } else { Err((documented.len(), err)) }
    });
    for queue in QUEUES {
        let (_, letters, _) = example.run(&["dlq", "list", queue, "--json"]);
        assert_eq!(letters, "", "{queue} has dead letters");
    }
    let report = record.report(WINDOW);
    assert_eq!((report.refused, report.failed), (0, 0), "{report:?}");
}

/// The script of the example with a broker of the user's choice, until all queues are empty. It sends
/// the token of the user.
pub(crate) fn the_script_crawls_an_organisation(setup: &ExampleSetup) {
    const ORGANISATION_SIZE: usize = 120;
    let runtime = Runtime::new().expect("a runtime");
    let github = GitHub {
        repositories: ORGANISATION_SIZE,
        limit: 5_000,
        window: Duration::from_secs(3_600),
        latency: Duration::ZERO,
    };
    let (router, record) = github.router();
    let (address, _) = runtime.block_on(simulators::serve(0, router)).expect("a port");
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/crawler-queue/crawl.sh");
    let mut command = Command::new(script);
    let url = format!("http://{address}");
    command.envs(setup.environment(&[("GITHUB_URL", url.as_str())]));
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    command.env("SLUICEGATE", env!("CARGO_BIN_EXE_sluicegate")).env("ORG", "umbrella");
    command.env("GITHUB_TOKEN", "token-of-the-test").env("ADMIN_PORT", free_port().to_string());
    let output = command.output().expect("it ran");
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}\n{out}{err}", output.status);
    let done = |line: &&str| line.ends_with("0 dead letters, 0 waiting");
    let last = out.lines().rfind(done).unwrap_or_else(|| panic!("{out}{err}"));
    let jobs = last.split_once(" jobs done").and_then(|(jobs, _)| jobs.parse::<usize>().ok());
    // Two pages, and two jobs for each repository.
    assert!(jobs.is_some_and(|jobs| jobs >= 2 + 2 * ORGANISATION_SIZE), "{last}");
    let calls = record.calls();
    let repositories: BTreeSet<_> = calls.iter().map(|call| call.job.as_str()).collect();
    assert_eq!(repositories.len(), 1 + ORGANISATION_SIZE, "{repositories:?}");
    for call in &calls {
        assert_eq!(call.authorization.as_deref(), Some("Bearer token-of-the-test"), "{call:?}");
    }
}

/// Returns the repository of a document, which is `# ` and the message of the job.
fn repository(line: &str) -> String {
    let message: Value = serde_json::from_str(line).expect("JSON");
    let document = message["body"].as_str().unwrap_or_else(|| panic!("{message}"));
    let job = document.strip_prefix("# ").unwrap_or_else(|| panic!("{document}"));
    let job: Value = serde_json::from_str(job).expect("JSON");
    job["repo"].as_str().unwrap_or_else(|| panic!("{job}")).to_owned()
}
