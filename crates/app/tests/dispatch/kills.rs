//! A RabbitMQ node is killed (SIGKILL) at random moments while six processes dispatch and work.
//! Every confirmed job is done and has a result, and work goes on when the node is back.
//!
//! One round with new queues and two with old ones by default, and 30 each with `SLUICEGATE_LONG`,
//! which prints a table.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use simulators::Record;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{DeliveryTime, JobId, Message, Queue};
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::{eventually, eventually_get};

use crate::common::RunningService;
use crate::faults::collect;
use crate::support::{Backend, TestSetup, lock, long, patient};

/// Number of jobs in a round.
const JOBS: usize = 600;
/// Number of messages in one send call.
const BATCH: usize = 20;
/// Time in which the node is killed.
const KILLED_WITHIN_MS: u64 = 5_000;
/// Number of processes that dispatch, and of processes that work.
const EACH: usize = 3;
/// Maximum time from the restart of the broker to the next job, in seconds.
const RECOVERS_WITHIN_S: f64 = 30.0;

fn config(setup: &TestSetup, url: &str) -> String {
    let name = &setup.name;
    format!(
        "dispatch:
  source: {name}-raw
  prefetch: 20
  delay: booked
  providers:
    p: {{queue: {name}-p, limit: 120/s}}
workers:
  - provider: p
    limit: 120/s
    concurrency: 20
    prefetch: 20
    results: {name}-results
    handler: {{http: {{url: '{url}/v1/analyze'}}}}
"
    )
}

/// Starts the processes. They wait until the queues that they created are stored.
fn start(setup: &TestSetup, url: &str) -> Vec<RunningService> {
    let config = config(setup, url);
    let roles = ["dispatch", "worker"].into_iter().cycle().take(2 * EACH);
    roles.map(|role| setup.run(role, &config)).collect()
}

/// Sends jobs until each is confirmed, also while the node is away.
async fn produce(queue: &Queue, jobs: &BTreeSet<String>) {
    let message = |job: &String| {
        let body = format!("{{\"AnalysisId\":\"{job}\"}}");
        (Message::of_job(JobId::try_from(job.clone()).expect("a job id"), body), DeliveryTime::Now)
    };
    let mut left: Vec<_> = jobs.iter().map(message).collect();
    while !left.is_empty() {
        let batch: Vec<_> = left.drain(..left.len().min(BATCH)).collect();
        let sent = queue.send_batch(batch.clone()).await;
        let failed: Vec<_> =
            batch.into_iter().zip(sent).filter(|(_, sent)| sent.is_err()).collect();
        if !failed.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        left.extend(failed.into_iter().map(|(message, _)| message));
    }
}

/// Returns the number of successful calls of each of these jobs.
fn calls(record: &Record, jobs: &BTreeSet<String>) -> BTreeMap<String, usize> {
    let mut calls = BTreeMap::new();
    for call in record.calls() {
        if call.status == 200 && jobs.contains(&call.job) {
            *calls.entry(call.job).or_default() += 1;
        }
    }
    calls
}

/// Returns the job ids of a round.
fn jobs_of(setup: &TestSetup, round: usize) -> BTreeSet<String> {
    (0..JOBS).map(|job| format!("{}-{round}-{job}", setup.name)).collect()
}

/// Kills the node while jobs are sent, and waits until all of them are done and have a result.
#[expect(clippy::print_stdout, reason = "the table is the result of the test")]
fn round(setup: &TestSetup, record: &Record, number: usize) {
    let Backend::Own(servers) = &setup.backend else { unreachable!("it has its own") };
    let jobs = jobs_of(setup, number);
    let raw = setup.queue("raw");
    let sending = setup.runtime.spawn({
        let (raw, jobs) = (raw, jobs.clone());
        async move { produce(&raw, &jobs).await }
    });
    let killed_after = Duration::from_millis(RandomState::new().hash_one(0) % KILLED_WITHIN_MS);
    let (_nobody, moment) = sync_channel::<()>(1);
    let _ = moment.recv_timeout(killed_after);
    lock(&servers.0).kill_at_once();
    let before = calls(record, &jobs).len();
    lock(&servers.0).restart();
    let clock = MonotonicClock::new();
    let up = clock.now();
    let since_up = || clock.now().since(up).as_micros() as f64 / 1e6;
    let at_restart = calls(record, &jobs).len();
    if at_restart < JOBS {
        eventually(|| calls(record, &jobs).len() > at_restart);
    }
    let first = since_up();
    let done = eventually_get(|| {
        let done = calls(record, &jobs);
        if done.len() == JOBS { Ok(done) } else { Err(format!("{} of {JOBS} done", done.len())) }
    });
    setup.runtime.block_on(sending).expect("no panic");
    let repeated: usize = done.values().map(|times| times - 1).sum();
    println!(
        "| {number} | {:.1} | {before} | {first:.1} | {:.1} | {repeated} |",
        killed_after.as_secs_f64(),
        since_up(),
    );
    let mut results = BTreeMap::new();
    eventually_get(|| {
        collect(setup, &mut results);
        let missing = jobs.iter().filter(|job| !results.contains_key(*job)).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} of {JOBS} without a result")) }
    });
    // A job may run twice, so a result of an earlier round may come in this one.
    let sent: BTreeSet<_> = (0..=number).flat_map(|round| jobs_of(setup, round)).collect();
    assert_eq!(results.keys().find(|job| !sent.contains(*job)), None, "nobody sent it");
    assert_eq!(setup.dead("p") + setup.dead("raw"), 0);
    // The long form runs on a quiet machine; a busy one says nothing about the time.
    assert!(!long() || first <= RECOVERS_WITHIN_S, "no job for {first:.1} s after the restart");
}

#[expect(clippy::print_stdout, reason = "the table is the result of the test")]
fn head(queues: &str) {
    println!("{queues}: {JOBS} jobs, {} processes", 2 * EACH);
    println!("| round | killed after s | done before | first after s | all after s | repeated |");
    println!("|--:|--:|--:|--:|--:|--:|");
}

#[test]
fn no_job_is_lost_in_new_queues_when_the_broker_is_killed() {
    let mut setup = TestSetup::own("new-queues");
    let (url, record) = setup.provider(patient(2));
    head("new queues");
    for number in 0..if long() { 30 } else { 1 } {
        setup.name = format!("new-queues-{number}");
        let _running = start(&setup, &url);
        round(&setup, &record, number);
    }
}

#[test]
fn no_job_is_lost_in_old_queues_when_the_broker_is_killed() {
    let setup = TestSetup::own("old-queues");
    let (url, record) = setup.provider(patient(2));
    head("old queues");
    let _running = start(&setup, &url);
    for number in 0..if long() { 30 } else { 2 } {
        round(&setup, &record, number);
    }
}
