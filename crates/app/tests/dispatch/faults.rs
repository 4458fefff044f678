//! Every job ends with a result or a dead letter although processes, brokers and providers fail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use simulators::{Provider, Record};
use sluicegate_core::Span;
use sluicegate_testkit::limit_check::{Early, assert_limit};
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::{eventually, eventually_get, eventually_is};

use crate::common::RunningService;
use crate::hostile::{
    a_misbehaving_provider_loses_no_job, poison_messages_become_dead_letters_unchanged,
};
use crate::measured::measured;
use crate::proof;
use crate::support::{
    Backend, TestSetup, early_calls, goes_to_the_provider, lock, long, patient, prove, worked,
};

/// Number of processes to kill.
const KILLS: usize = 6;
/// Number of jobs that a process runs at the same time.
const CONCURRENCY: usize = 50;
/// Number of messages that its dispatcher prefetches.
const PREFETCH: usize = 20;
/// Window of the limits.
const WINDOW: Span = Span::from_secs(4);

fn config(setup: &TestSetup, url: &str, limit: &str) -> String {
    let name = &setup.name;
    format!(
        "dispatch:
  source: {name}-raw
  prefetch: {PREFETCH}
  delay: booked
  providers:
    p: {{queue: {name}-p, limit: {limit}}}
workers:
  - provider: p
    limit: {limit}
    concurrency: {CONCURRENCY}
    prefetch: 50
    attempts: 2
    backoff: {{from: 20ms, to: 200ms}}
    results: {name}-results
    handler: {{http: {{url: '{url}/v1/analyze'}}}}
"
    )
}

/// Receives the results in the queue, and counts them by job.
pub(crate) fn collect(setup: &TestSetup, results: &mut BTreeMap<String, usize>) {
    let queue = setup.queue("results");
    setup.runtime.block_on(async {
        let mut consumer = queue.consume(500).await.expect("a consumer");
        let moment = Duration::from_millis(500);
        while let Ok(taken) = tokio::time::timeout(moment, consumer.receive(500)).await {
            for delivery in taken.expect("received") {
                *results.entry(delivery.message().meta.job.to_string()).or_default() += 1;
                delivery.ack().await.expect("acknowledged");
            }
        }
    });
}

/// Receives results until each job has a result or a dead letter. Returns both.
///
/// Compares job ids, because a job with both, after a second delivery, must not make up for one with
/// neither.
fn ends(setup: &TestSetup, jobs: usize) -> (BTreeMap<String, usize>, BTreeSet<String>) {
    let (all, mut results) = (setup.jobs(jobs), BTreeMap::new());
    let dead = eventually_get(|| {
        collect(setup, &mut results);
        // Listing dead letters receives and requeues them, so this does it only near the end.
        let enough = results.len() as u64 + setup.dead("p") >= jobs as u64;
        let dead = if enough { setup.dead_jobs("p") } else { BTreeSet::new() };
        let lost = all.iter().filter(|job| !results.contains_key(*job) && !dead.contains(*job));
        let (lost, found) = (lost.count(), results.len());
        if lost == 0 { Ok(dead) } else { Err(format!("{found} results, {lost} jobs with neither")) }
    });
    let foreign = results.keys().chain(&dead).find(|job| !all.contains(*job));
    assert_eq!(foreign, None, "nobody sent it");
    (results, dead)
}

/// Returns the number of failed calls by job, from the record of the provider.
fn failures(record: &Record) -> BTreeMap<String, usize> {
    let mut failures = BTreeMap::new();
    for call in record.calls().into_iter().filter(|call| call.status == 500) {
        *failures.entry(call.job).or_default() += 1;
    }
    failures
}

/// Runs 10,000 jobs, of which one call in twenty fails, while processes are killed.
fn every_job_has_a_result_or_a_dead_letter(setup: &TestSetup, limit: usize, processes: usize) {
    let jobs = if long() { 30_000 } else { 10_000 };
    setup.produce("raw", jobs);
    let provider = Provider { failures_percent: 5, ..patient(10) };
    let (url, record) = setup.provider(provider);
    let config = config(setup, &url, &format!("{limit}/4s"));
    let mut running: Vec<_> =
        (0..processes).map(|_| setup.run("dispatch,worker", &config)).collect();
    let mut logs = Vec::new();
    let (_nobody, moment) = std::sync::mpsc::sync_channel::<()>(1);
    for number in 0..KILLS {
        let _ = moment.recv_timeout(Duration::from_millis(900));
        let next = setup.run("dispatch,worker", &config);
        logs.push(std::mem::replace(&mut running[number % processes], next).kill());
    }
    let (results, dead) = ends(setup, jobs);
    logs.extend(running.into_iter().map(RunningService::stop));
    // Jobs of a killed process may run again.
    let doubled: usize = results.values().map(|times| times - 1).sum();
    let in_hand = KILLS * (CONCURRENCY + PREFETCH);
    assert!(doubled <= in_hand + setup.resent(), "{doubled} results are there twice");
    // A job becomes a dead letter after two failures, which the provider has recorded.
    let failures = failures(&record);
    let early = dead.iter().find(|job| failures.get(*job).is_none_or(|times| *times < 2));
    assert_eq!(early, None, "it is dead, and did not fail twice");
    // By the time of the store; only the last decisions of a killed process are lost.
    let admits = proof::admits(&logs, goes_to_the_provider);
    assert_limit(&format!("{limit}/4s"), &admits);
    // A process may be killed between the admission of a job and its call, or before it logs either.
    let (calls, admits) = (record.calls().len(), admits.len());
    assert!(calls.abs_diff(admits) <= in_hand, "{admits} admissions, {calls} calls");
    let report = record.report(Duration::from_secs(3));
    assert!(report.most_in_window <= limit, "{report:?}");
}

#[test]
fn every_job_has_an_end_in_a_single_process() {
    // Only one process, because its counters are in memory and lost when it is killed.
    let setup = TestSetup::alone("ends");
    setup.produce("raw", 2_000);
    let (url, record) = setup.provider(Provider { failures_percent: 5, ..patient(10) });
    let running = setup.run("dispatch,worker", &config(&setup, &url, "1600/4s"));
    let (results, dead) = ends(&setup, 2_000);
    assert!(results.values().all(|times| *times == 1), "nobody was killed");
    // With two attempts, exactly the jobs that failed twice are dead letters.
    let failures = failures(&record);
    let twice = failures.iter().filter(|(_, times)| **times == 2).map(|(job, _)| job.clone());
    assert_eq!(dead, twice.collect::<BTreeSet<_>>());
    assert_eq!(results.keys().find(|job| dead.contains(*job)), None, "it has both ends");
    let failed = failures.values().sum::<usize>() as u64;
    assert!(failed > 50, "{failed}");
    let counted = || ["done", "failed", "dead"].map(|what| worked(&running, "p", what));
    eventually_is(counted, [results.len() as u64, failed, dead.len() as u64]);
    prove(1_600, WINDOW, &[running.stop()], &record);
}

#[test]
fn every_job_has_an_end_although_processes_are_killed() {
    every_job_has_a_result_or_a_dead_letter(&TestSetup::shared("killed"), 2_400, 2);
}

/// Number of jobs for workers that are stopped and continued.
const STOPPED_JOBS: usize = 400;

/// Workers ask for turns when a window has passed, and are stopped before the answers arrive. A worker
/// that continues must not use such a turn: it belongs to a window that is over.
///
/// Returns the calls that arrived too early for a full window.
fn stop_and_continue(name: &str, delay: &str, first: &str, only: &str) -> Early {
    const LIMIT: usize = 50;
    const ROUNDS: usize = 3;
    let window = Span::from_secs(2);
    let round_trip = Duration::from_millis(200);
    let setup = TestSetup::distant(name, round_trip);
    setup.produce(first, STOPPED_JOBS);
    let (url, record) = setup.provider(patient(5));
    let config = config(&setup, &url, "50/2s").replace("delay: booked", &format!("delay: {delay}"));
    let workers = [(); 2].map(|()| setup.run(only, &config));
    let (_nobody, moment) = std::sync::mpsc::sync_channel::<()>(1);
    for round in 1..=ROUNDS {
        eventually(|| record.arrivals().len() >= round * LIMIT);
        let _ = moment.recv_timeout(Duration::from(window) + round_trip / 2);
        workers.iter().for_each(|worker| worker.signal("-STOP"));
        let _ = moment.recv_timeout(Duration::from(window) + round_trip);
        workers.iter().for_each(|worker| worker.signal("-CONT"));
    }
    let jobs = setup.jobs(STOPPED_JOBS);
    eventually_is(
        || record.calls().into_iter().map(|call| call.job).collect::<BTreeSet<_>>(),
        jobs,
    );
    let done = || workers.iter().map(|worker| worked(worker, "p", "done")).sum::<u64>();
    eventually_is(done, STOPPED_JOBS as u64);
    prove(LIMIT, window, &workers.map(RunningService::stop), &record);
    early_calls(LIMIT, window, &record)
}

/// Runs it until no call was too early, at most five times: a busy machine delays calls on their way
/// to the provider, and not all equally.
fn assert_never_early_after_a_stop(name: &str, delay: &str, first: &str, only: &str) {
    let early = measured(
        |early| *early == Early::default(),
        |attempt| stop_and_continue(&format!("{name}{attempt}"), delay, first, only),
    );
    assert_eq!(early, Early::default(), "{delay}");
}

#[test]
fn workers_that_were_stopped_keep_the_limit_when_they_continue() {
    assert_never_early_after_a_stop("stopped", "30s", "p", "worker");
}

/// When the workers continue, the starts that were booked for them are over.
#[test]
fn booked_workers_that_were_stopped_keep_the_limit_when_they_continue() {
    assert_never_early_after_a_stop("booked-stopped", "booked", "raw", "dispatch,worker");
}

#[test]
fn work_continues_after_a_broker_and_a_redis_come_back() {
    let setup = TestSetup::own("restarted");
    setup.produce("raw", 1_500);
    let (url, record) = setup.provider(patient(5));
    let _running = setup.run("dispatch,worker", &config(&setup, &url, "200/s"));
    let Backend::Own(servers) = &setup.backend else { unreachable!("it has its own") };
    let (_nobody, moment) = std::sync::mpsc::sync_channel::<()>(1);
    let _ = moment.recv_timeout(Duration::from_millis(1_500));
    {
        let mut rabbit = lock(&servers.0);
        rabbit.kill();
        rabbit.restart();
    }
    let _ = moment.recv_timeout(Duration::from_millis(1_000));
    lock(&servers.1).kill_and_restart();
    let all = setup.jobs(1_500);
    eventually_get(|| {
        let calls = record.calls().into_iter().filter(|call| call.status == 200);
        let done: BTreeSet<_> = calls.map(|call| call.job).collect();
        if done == all { Ok(()) } else { Err(done.len()) }
    });
    assert_eq!(setup.dead("p") + setup.dead("raw"), 0);
}

/// A worker waited for the claim of a booking as long as the store was silent, whatever the outage
/// policy.
#[test]
fn jobs_that_are_booked_go_by_the_outage_policy_when_the_store_falls_silent() {
    let setup = TestSetup::alone("silent");
    let redis = RedisServer::start(Version::System, &[]);
    let network = FaultProxy::start(redis.port);
    let (url, record) = setup.provider(patient(0));
    let (port, name) = (network.port, &setup.name);
    let config = format!(
        "store: {{kind: redis, url: 'redis://127.0.0.1:{port}', timeout: 200ms, deadline: 500ms}}
dispatch:
  source: {name}-raw
  prefetch: 20
  delay: booked
  outage: local
  providers: {{p: {{queue: {name}-p, limit: 10/s}}}}
workers:
  - provider: p
    limit: 10/s
    outage: local
    concurrency: 20
    prefetch: 20
    handler: {{http: {{url: '{url}/v1/analyze'}}}}
"
    );
    let running = setup.run("dispatch,worker", &config);
    setup.produce("raw", 60);
    // All are booked, some are done.
    eventually_is(|| setup.depth("raw").ready, 0);
    eventually_get(|| (!record.calls().is_empty()).then_some(()).ok_or("no call"));
    network.set(NetworkState::BlackHole);
    eventually_is(|| worked(&running, "p", "done"), 60);
    setup.each_was_called_once(60, &record);
}

#[test]
fn poison_messages_become_dead_letters_on_the_embedded_queue() {
    poison_messages_become_dead_letters_unchanged(&TestSetup::alone("poison"));
}

#[test]
fn poison_messages_become_dead_letters_on_rabbitmq() {
    poison_messages_become_dead_letters_unchanged(&TestSetup::shared("poison"));
}

#[test]
fn a_misbehaving_provider_loses_no_job_of_the_embedded_queue() {
    a_misbehaving_provider_loses_no_job(&TestSetup::alone("misbehaving"));
}

#[test]
fn a_misbehaving_provider_loses_no_job_of_rabbitmq() {
    a_misbehaving_provider_loses_no_job(&TestSetup::shared("misbehaving"));
}

/// RabbitMQ loses a queue with its messages if it is killed a few seconds after the queue was declared. So
/// a process declares all the delay queues that it may need when it starts.
#[test]
fn a_process_declares_all_its_delay_queues_when_it_starts() {
    const JOBS: usize = 60;
    for (name, delay) in [("declared-fixed", "1s"), ("declared-booked", "booked")] {
        let setup = TestSetup::shared(name);
        for queue in ["raw", "gemini", "results"] {
            setup.queue(queue);
        }
        let (url, _) = setup.provider(Provider { failures_percent: 30, ..patient(5) });
        let config = format!(
            "dispatch:
  source: {name}-raw
  delay: {delay}
  providers:
    gemini: {{queue: {name}-gemini, limit: 20/2s}}
workers:
  - provider: gemini
    limit: 20/2s
    concurrency: 10
    attempts: 20
    backoff: {{from: 300ms, to: 3s}}
    results: {name}-results
    handler: {{http: {{url: '{url}/v1/analyze'}}}}
"
        );
        let running = setup.run("dispatch,worker", &config);
        let declared = setup.queues_on_rabbitmq();
        assert!(declared.contains(&format!("{name}-gemini-rung-2048ms")), "{declared:?}");
        setup.produce("raw", JOBS);
        eventually_is(|| worked(&running, "gemini", "done"), JOBS as u64);
        let delayed = "sluicegate_dispatch_delayed_total{provider=\"gemini\"}";
        assert!(running.metric(delayed) > 0, "no message was delayed");
        assert!(worked(&running, "gemini", "failed") > 0, "no job was retried");
        assert_eq!(setup.queues_on_rabbitmq(), declared);
    }
}
