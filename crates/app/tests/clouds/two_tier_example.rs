//! The two-tier example, with its own configuration file: the variable `QUEUE` selects the broker.

use std::collections::BTreeSet;

use serde_json::Value;
use sluicegate_testkit::{eventually, eventually_get};
use tokio::runtime::Runtime;

use crate::example::{Example, ExampleSetup};
pub(crate) use crate::example::{pubsub, servicebus, sqs};
use crate::support::{patient, worked};

/// Number of analyses. `tests/examples.rs` runs the commands of the README, with 1,000 on RabbitMQ.
const JOBS: usize = 150;
/// Providers of the example.
const PROVIDERS: [&str; 3] = ["openai", "gemini", "anthropic"];

/// C10 with the processes of the example: a dispatcher and a worker. Every provider gets a share of the
/// analyses, and every analysis has a result.
pub(crate) fn the_example_dispatches_every_analysis(setup: &ExampleSetup) {
    let runtime = Runtime::new().expect("a runtime");
    let (router, record) = patient(5).router();
    let (address, _) = runtime.block_on(simulators::serve(0, router)).expect("a port");
    let url = format!("http://{address}");
    let environment = setup.environment(&[
        ("PROVIDER_URL", url.as_str()),
        ("PROVIDER_SELECTION_STRATEGY", "ROUND_ROBIN"),
        ("PREFETCH", "20"),
    ]);
    let example = Example::new("two-tier-dispatch", environment);
    let jobs: BTreeSet<_> = (0..JOBS).map(|number| format!("a-{number}")).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("analyses");
    let lines: Vec<_> = jobs.iter().map(|job| format!("{{\"AnalysisId\":\"{job}\"}}")).collect();
    std::fs::write(&file, lines.join("\n")).expect("a file");
    let file = file.display().to_string();
    let send = ["queue", "send", "raw-analysis-queue", "--lines", &file, "--create"];
    let (code, _, err) = example.run(&send);
    assert_eq!(code, Some(0), "{err}");

    let dispatcher = example.start("dispatch");
    let worker = example.start("worker");
    let done = || PROVIDERS.map(|provider| worked(&worker, provider, "done"));
    eventually(|| done().iter().sum::<u64>() >= JOBS as u64);
    eventually_get(|| {
        let (_, lines, err) = example.run(&["queue", "peek", "analysis-results", "--max", "10000"]);
        let results: BTreeSet<_> = lines.lines().map(job).collect();
        if results == jobs { Ok(()) } else { Err((results.len(), err)) }
    });
    assert!(done().iter().all(|done| *done > 0), "{:?}", done());
    assert_eq!(PROVIDERS.map(|provider| worked(&worker, provider, "dead")), [0; 3]);
    assert_eq!(dispatcher.metric("sluicegate_dispatch_rejected_total"), 0);
    for call in record.calls() {
        assert_eq!(call.status, 200, "{call:?}");
    }
}

/// Returns the job of a message, whose id is that of the job and a number.
fn job(line: &str) -> String {
    let message: Value = serde_json::from_str(line).expect("JSON");
    let id = message["id"].as_str().unwrap_or_else(|| panic!("{message}"));
    id.rsplit_once('/').map_or(id, |(job, _)| job).to_owned()
}
