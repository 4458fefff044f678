//! Tests of the metrics, with decisions of a real store.

mod bounds;
mod counting;
#[path = "../observed/mod.rs"]
mod observed;
mod statsd;
mod threads;

use observed::Limiter;
use sluicegate_server::metrics::{Metrics, Options};

fn watching(limiter: &Limiter) -> Metrics {
    let metrics = Metrics::new(&Options::default());
    metrics.register_rules(&limiter.rules);
    metrics
}

/// Returns the lines of a metric, without its name and without comments.
fn series(metrics: &Metrics, name: &str) -> Vec<String> {
    let text = metrics.render();
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    lines.filter(|rest| rest.starts_with(['{', ' '])).map(|rest| rest.trim().to_owned()).collect()
}

#[track_caller]
fn check(metrics: &Metrics, name: &str, expected: &[&str]) {
    assert_eq!(series(metrics, name), expected, "{name}");
}

const WHO: &[(&str, &str)] = &[("userId", "u1"), ("modelId", "gpt4"), ("tenantId", "acme")];
