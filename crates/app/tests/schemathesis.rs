//! Tests the running service against its OpenAPI document: schemathesis generates requests from the
//! document and checks the responses against it.

mod common;

use std::path::Path;
use std::process::Command;

use common::RunningService;

/// One rule of every kind, without dimensions that the document does not require.
const RULES: &str = "
dimensions:
  userId: optional
  modelId: optional
limits:
  - name: caller
    rules:
      - name: USER_MODEL
        per: [userId, modelId]
        limit: [5/s, 100/h]
  - name: budget
    rules:
      - name: USER_BUDGET
        per: [userId]
        limit: [20000 tokens/min, 5.00 USD/day]
  - name: concurrency
    rules:
      - name: GLOBAL_CONCURRENT
        per: []
        limit: 1000 concurrent
        lease: 1s
prices:
  default:
    input: 0.20 USD/1M
    output: 0.60 USD/1M
";

#[test]
fn requests_that_the_document_allows_get_answers_that_it_describes() {
    let program = std::env::var_os("SLUICEGATE_SCHEMATHESIS")
        .expect("run it by `cargo xtask test schemathesis`");
    let queues = tempfile::tempdir().expect("a folder");
    let path = queues.path().join("queue.db");
    let running = RunningService::start(&format!("{RULES}queue: {{path: {}}}\n", path.display()));
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    // It writes caches to the current directory.
    let folder = tempfile::tempdir().expect("a folder");
    let status = Command::new(program)
        .current_dir(&folder)
        .env("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
        .env("PYTHONPATH", &tests)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg("--config-file")
        .arg(tests.join("schemathesis.toml"))
        .arg("run")
        .arg(format!("{}/openapi.json", running.http))
        .arg("--no-color")
        .status()
        .expect("schemathesis starts");
    assert!(status.success(), "schemathesis found something: see above");
    running.signal("-TERM");
    let (code, _) = running.end();
    assert_eq!(code, Some(0), "the service stops cleanly");
}
