//! The files of `deploy/compose`, without containers: each service is a process of this machine, with the command,
//! environment and configuration of the file, in a private network.

use std::os::unix::fs::symlink;

use crate::common::page;
use crate::{python, repository};

/// Starts the services of a file until they answer.
fn start(name: &str) {
    let bin = tempfile::tempdir().expect("a folder");
    symlink(env!("CARGO_BIN_EXE_sluicegate"), bin.path().join("sluicegate")).expect("a link");
    let script = format!(
        "echo '127.0.0.1 localhost redis rabbitmq' > hosts
mount --bind hosts /etc/hosts
python3 \"$REPOSITORY/examples/ingestion-proxy/upstream.py\" 3999 > vendor.log 2>&1 &
until curl -so /dev/null localhost:3999/arrivals; do sleep 0.1; done
'{}' '{}' \"$REPOSITORY/deploy/compose/{name}\"",
        python().display(),
        repository("crates/app/tests/deploy/compose.py").display()
    );
    let printed = page::run(name, &script, bin.path()).unwrap_or_else(|error| panic!("{error}"));
    assert!(printed.contains(": answers\n"), "{printed}");
}

#[test]
fn the_inference_limiter_answers() {
    start("inference-limiter.yaml");
}

#[test]
fn the_assistant_api_answers() {
    start("assistant-api.yaml");
}

#[test]
fn the_two_tier_dispatch_answers() {
    start("two-tier-dispatch.yaml");
}

#[test]
fn the_crawler_queue_answers() {
    start("crawler-queue.yaml");
}

#[test]
fn the_ingestion_proxy_answers() {
    start("ingestion-proxy.yaml");
}

#[test]
fn every_file_is_started() {
    let tests = include_str!("compose.rs");
    for entry in std::fs::read_dir(repository("deploy/compose")).expect("the files") {
        let name = entry.expect("a file").file_name().into_string().expect("text");
        let is_started = tests.contains(&format!("start(\"{name}\")"));
        assert!(is_started || !name.ends_with(".yaml"), "no test starts {name}");
    }
}
