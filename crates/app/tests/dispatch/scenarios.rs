//! The scenarios that a two-tier dispatch was once measured by, with their real windows.

use std::time::Duration;

use crate::support::{Stand, eventually, metric, patient};

/// 500 a minute, three ways to wait.
fn config(stand: &Stand, url: &str, delay: &str) -> String {
    let name = &stand.name;
    format!(
        "dispatch:
  source: {name}-raw
  {delay}
  providers:
    gemini: {{queue: {name}-gemini, limit: 500/min, key: '{name}:dispatcher:ratelimit:<provider>'}}
workers:
  - provider: gemini
    limit: 500/min
    key: '{name}:worker:ratelimit:<provider>'
    concurrency: 100
    results: {name}-results
    handler: {{http: {{url: '{url}/v1/analyze'}}}}
"
    )
}

/// (i): the dispatcher alone. Half at once, half after the delay.
fn half_goes_at_once_and_half_after_the_delay(stand: &Stand) {
    stand.produce("raw", 1_000);
    let (url, _) = stand.provider(patient(0));
    let dispatcher = stand.run("dispatch", &config(stand, &url, "delay: 30s"));
    let depth = || {
        let depth = stand.depth("gemini");
        (depth.ready, depth.delayed.unwrap_or_default())
    };
    eventually(|| (depth().0 == 500 && metric_delayed(&dispatcher) == 500, depth()));
    if let Some(delayed) = stand.depth("gemini").delayed {
        assert_eq!(delayed, 500);
    }
    assert_eq!(stand.depth("raw").ready, 0);
    eventually(|| (depth().0 == 1_000, depth()));
    assert_eq!(depth().1, 0);
}

fn metric_delayed(running: &crate::common::Running) -> u64 {
    metric(running, "sluicegate_dispatch_delayed_total{provider=\"gemini\"}")
}

/// (ii): the dispatcher is bypassed; the worker's own counter holds.
fn a_worker_whose_dispatcher_is_bypassed_keeps_the_limit(stand: &Stand) {
    stand.produce("gemini", 1_000);
    let (url, record) = stand.provider(patient(5));
    let worker = stand.run("worker", &config(stand, &url, "delay: 30s"));
    let count =
        |what| metric(&worker, &format!("sluicegate_worker_{what}_total{{provider=\"gemini\"}}"));
    let done = || count("done");
    // A call that fails has had its turn, and so has one whose answer of the store was lost.
    let turns = || (done() + count("failed"), stand.zcard("worker").unwrap_or(500));
    eventually(|| ((490..=500).contains(&turns().0) && turns().1 == 500, turns()));
    eventually(|| (done() == 1_000, done()));
    assert!(metric(&worker, "sluicegate_worker_requeued_total{provider=\"gemini\"}") > 0);
    let report = record.report(Duration::from_secs(59));
    assert!(report.most_in_window <= 500, "{report:?}");
    assert_eq!(report.jobs, 1_000, "{report:?}");
    assert_eq!(stand.dead("gemini"), 0);
}

/// (iii): end to end, a fixed delay: all succeed.
fn everything_succeeds_with_a_fixed_delay(stand: &Stand) {
    stand.produce("raw", 1_000);
    let (url, record) = stand.provider(patient(5));
    let running = stand.run("dispatch,worker", &config(stand, &url, "delay: 30s"));
    let results = || stand.depth("results").ready;
    eventually(|| (results() == 1_000, results()));
    let report = record.report(Duration::from_secs(59));
    assert!(report.most_in_window <= 500, "{report:?}");
    assert_eq!(report.jobs, 1_000, "{report:?}");
    assert_eq!(stand.dead("gemini") + stand.dead("raw"), 0);
    assert_eq!(metric(&running, "sluicegate_worker_failed_total{provider=\"gemini\"}"), 0);
}

/// (iii), booked: all succeed, and hardly anything goes back.
fn everything_succeeds_booked_and_hardly_anything_goes_back(stand: &Stand) {
    stand.produce("raw", 1_000);
    let (url, record) = stand.provider(patient(5));
    let delay = "delay: booked\n  burst: 100";
    // Moments are good for longer than they would be: a busy machine may be late for some.
    let config = format!("booking: {{slack: 4s}}\n{}", config(stand, &url, delay));
    let running = stand.run("dispatch,worker", &config);
    let results = || stand.depth("results").ready;
    eventually(|| (results() == 1_000, results()));
    let requeued = metric(&running, "sluicegate_worker_requeued_total{provider=\"gemini\"}");
    // Broker, Redis and four other tests share two cores: in one of five runs Redis was silent for
    // seconds, and two jobs missed their moments.
    let most = if stand.zcard("worker").is_some() { 20 } else { 0 };
    assert!(requeued <= most, "{requeued} went back");
    let report = record.report(Duration::from_secs(59));
    assert!(report.most_in_window <= 500, "{report:?}");
    assert_eq!(report.jobs, 1_000, "{report:?}");
    assert_eq!(stand.dead("gemini") + stand.dead("raw"), 0);
}

/// C8: without limits everything goes straight to its queue; a reload is enough.
fn limits_are_turned_off_at_once(stand: &Stand) {
    stand.produce("raw", 600);
    let limited = config(stand, "http://127.0.0.1:1", "delay: 1000s");
    let dispatcher = stand.run("dispatch", &limited);
    eventually(|| (stand.depth("gemini").ready == 500, stand.depth("gemini")));
    dispatcher.write(&format!(
        "{}{}",
        stand.config(),
        limited.replace("dispatch:\n", "dispatch:\n  enabled: false\n")
    ));
    eventually(|| {
        let log = dispatcher.logged();
        (log.iter().any(|line| line["message"] == "configuration reloaded"), log.len())
    });
    stand.produce("raw", 600);
    eventually(|| (stand.depth("gemini").ready == 1_100, stand.depth("gemini")));
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        mod alone {
            $(#[test] fn $name() { super::$name(&super::Stand::alone("jobs")); })*
        }
        mod rabbitmq_and_redis {
            $(#[test] fn $name() { super::$name(&super::Stand::shared(stringify!($name))); })*
        }
    };
}

scenarios!(
    half_goes_at_once_and_half_after_the_delay,
    a_worker_whose_dispatcher_is_bypassed_keeps_the_limit,
    everything_succeeds_with_a_fixed_delay,
    everything_succeeds_booked_and_hardly_anything_goes_back,
    limits_are_turned_off_at_once,
);

impl Stand {
    /// What `redis-cli ZCARD` shows of a tier, where there is a Redis.
    fn zcard(&self, tier: &str) -> Option<u64> {
        let crate::support::Ground::Shared(redis) = &self.ground else { return None };
        let key = format!("{}:{tier}:ratelimit:gemini", self.name);
        redis.command(&["ZCARD", &key]).trim().trim_start_matches(':').parse().ok()
    }
}
