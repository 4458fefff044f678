//! The reference scenarios of a two-tier dispatch, with their real windows.

use std::collections::BTreeSet;

use simulators::Record;
use sluicegate_core::Span;
use sluicegate_testkit::limit_check::Early;
use sluicegate_testkit::{eventually, eventually_get, eventually_is};

use crate::common::RunningService;
use crate::measured::measured;
use crate::proof;
use crate::support::{TestSetup, early_calls, patient, prove, worked};

/// Configuration with 500 calls per minute and one of three kinds of delay.
fn config(setup: &TestSetup, url: &str, delay: &str) -> String {
    let name = &setup.name;
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

const DELAY: Span = Span::from_secs(30);
const MINUTE: Span = Span::from_secs(60);

/// C10 (i): the dispatcher alone. Half of the messages go at once, half after the delay.
fn half_goes_at_once_and_half_after_the_delay(setup: &TestSetup) {
    setup.produce("raw", 1_000);
    let (url, _) = setup.provider(patient(0));
    let dispatcher = setup.run("dispatch", &config(setup, &url, "delay: 30s"));
    let depth = || setup.ready_and_delayed("gemini", DELAY);
    eventually_is(depth, (500, 500));
    assert_eq!(setup.depth("raw").ready, 0);
    let dispatched = |what: &str| {
        dispatcher.metric(&format!("sluicegate_dispatch_{what}_total{{provider=\"gemini\"}}"))
    };
    // A message is counted after it was sent.
    let counted = || ["checked", "allowed", "delayed"].map(dispatched);
    eventually_is(counted, [1_000, 500, 500]);
    eventually_is(depth, (1_000, 0));
    let admits = proof::admits(&[dispatcher.stop()], |_| true);
    assert_eq!(admits.len(), 500);
    setup.has_each_job_once("gemini", 1_000);
    assert_eq!(setup.dead("raw"), 0);
}

/// C10 (ii): the dispatcher is bypassed; the worker's own counter keeps the limit.
fn a_worker_whose_dispatcher_is_bypassed_keeps_the_limit(setup: &TestSetup) {
    setup.produce("gemini", 1_000);
    let (url, record) = setup.provider(patient(5));
    let worker = setup.run("worker", &config(setup, &url, "delay: 30s"));
    let done = || worked(&worker, "gemini", "done");
    // The counter of a memory store can't be read from outside.
    eventually_is(|| (done(), setup.zcard("worker").unwrap_or(500)), (500, 500));
    eventually_is(done, 1_000);
    assert!(worked(&worker, "gemini", "requeued") > 0);
    all_succeeded(setup, worker, &record);
}

/// C10 (iii): end to end, a fixed delay: all succeed.
fn everything_succeeds_with_a_fixed_delay(setup: &TestSetup) {
    setup.produce("raw", 1_000);
    let (url, record) = setup.provider(patient(5));
    let running = setup.run("dispatch,worker", &config(setup, &url, "delay: 30s"));
    let done = || worked(&running, "gemini", "done");
    eventually_is(done, 1_000);
    all_succeeded(setup, running, &record);
}

/// C10 (iii), booked, with the slack and the timeouts of production: all succeed, and nothing is
/// requeued. On a machine that is busy with other work a job may miss its start, so the best of
/// some measurements counts.
fn everything_succeeds_booked_and_nothing_is_requeued(setup: impl Fn(String) -> TestSetup) {
    let requeued = measured(
        |requeued| *requeued == 0,
        |attempt| {
            let setup = setup(format!("booked{attempt}")).with_default_timeouts();
            setup.produce("raw", 1_000);
            let (url, record) = setup.provider(patient(5));
            let delay = "delay: booked\n  burst: 100";
            let running = setup.run("dispatch,worker", &config(&setup, &url, delay));
            let done = || worked(&running, "gemini", "done");
            eventually_is(done, 1_000);
            let requeued = worked(&running, "gemini", "requeued");
            all_succeeded(&setup, running, &record);
            requeued
        },
    );
    assert_eq!(requeued, 0);
}

/// Asserts that 1,000 jobs succeeded, none failed or is a dead letter, each was called once and has
/// one result, and no minute had more than 500 calls.
fn all_succeeded(setup: &TestSetup, running: RunningService, record: &Record) {
    assert_eq!(worked(&running, "gemini", "failed"), 0);
    assert_eq!(worked(&running, "gemini", "dead"), 0);
    assert_eq!(setup.dead("gemini") + setup.dead("raw"), 0);
    setup.each_was_called_once(1_000, record);
    let results = || setup.depth("results").ready;
    eventually_is(results, record.calls().len() as u64);
    prove(500, MINUTE, &[running.stop()], record);
    assert_eq!(early_calls(500, MINUTE, record), Early::default(), "within a full minute");
    setup.has_each_job_once("results", 1_000);
}

/// C8: without limits, every message goes straight to its queue; a reload is enough.
///
/// The whole first batch is decided before limits are turned off: messages that are decided later
/// rightly go at once.
fn limits_are_turned_off_at_once(setup: &TestSetup) {
    setup.produce("raw", 600);
    let limited = config(setup, "http://127.0.0.1:1", "delay: 1000s");
    let dispatcher = setup.run("dispatch", &limited);
    let found = || setup.ready_and_delayed("gemini", Span::from_secs(1_000));
    eventually_is(found, (500, 100));
    turn_off(setup, &dispatcher, &limited);
    setup.produce("raw", 600);
    eventually_is(found, (1_100, 100));
    assert_eq!(setup.depth("raw").ready, 0);
}

/// Limits are turned off while messages flow: each message is delayed by its limit or goes at once,
/// and none that arrives afterwards is delayed.
fn limits_are_turned_off_in_the_middle_of_a_flow(setup: &TestSetup) {
    setup.produce("raw", 600);
    let limited = config(setup, "http://127.0.0.1:1", "delay: 1000s");
    let dispatcher = setup.run("dispatch", &limited);
    eventually(|| setup.depth("gemini").ready >= 100);
    turn_off(setup, &dispatcher, &limited);
    setup.produce("raw", 600);
    let delayed = eventually_get(|| {
        let (ready, delayed) = setup.ready_and_delayed("gemini", Span::from_secs(1_000));
        if ready + delayed == 1_200 { Ok(delayed) } else { Err((ready, delayed)) }
    });
    assert!(delayed <= 100, "{delayed} of the first 600 were over the limit of 500");
}

/// Writes a configuration without limits, and waits until it is in effect.
fn turn_off(setup: &TestSetup, dispatcher: &RunningService, limited: &str) {
    dispatcher.write(&format!(
        "{}{}",
        setup.config(),
        limited.replace("dispatch:\n", "dispatch:\n  enabled: false\n")
    ));
    eventually(|| {
        dispatcher.logged().iter().any(|line| line["message"] == "configuration reloaded")
    });
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        mod alone {
            $(#[test] fn $name() { super::$name(&super::TestSetup::alone("jobs")); })*

            #[test]
            fn everything_succeeds_booked_and_nothing_is_requeued() {
                super::everything_succeeds_booked_and_nothing_is_requeued(|name| {
                    super::TestSetup::alone(&name)
                });
            }
        }
        mod rabbitmq_and_redis {
            $(#[test] fn $name() { super::$name(&super::TestSetup::shared(stringify!($name))); })*

            #[test]
            fn everything_succeeds_booked_and_nothing_is_requeued() {
                super::everything_succeeds_booked_and_nothing_is_requeued(|name| {
                    super::TestSetup::shared(&name)
                });
            }
        }
    };
}

scenarios!(
    half_goes_at_once_and_half_after_the_delay,
    a_worker_whose_dispatcher_is_bypassed_keeps_the_limit,
    everything_succeeds_with_a_fixed_delay,
    limits_are_turned_off_at_once,
    limits_are_turned_off_in_the_middle_of_a_flow,
);

impl TestSetup {
    /// Asserts that a queue has exactly one message of each of this many jobs, except that a job which
    /// its producer may have sent twice can have two.
    fn has_each_job_once(&self, queue: &str, count: usize) {
        let (mut jobs, mut messages) = (BTreeSet::new(), 0);
        let queue = self.queue(queue);
        let peeked = queue.peek(2 * count as u64, |message| {
            jobs.insert(message.meta.job.to_string());
            messages += 1;
        });
        self.runtime.block_on(peeked).expect("peeked");
        assert_eq!(jobs, self.jobs(count));
        assert!(messages <= count + self.resent(), "{messages} messages");
    }

    /// Returns the counter of a tier as `redis-cli ZCARD` shows it, if the store is Redis.
    fn zcard(&self, tier: &str) -> Option<u64> {
        let crate::support::Backend::Shared(redis) = &self.backend else { return None };
        let key = format!("{}:{tier}:ratelimit:gemini", self.name);
        let reply = redis.command(&["ZCARD", &key]);
        let count = reply.trim().trim_start_matches(':').parse();
        Some(count.unwrap_or_else(|_| panic!("ZCARD {key}: {reply}")))
    }
}
