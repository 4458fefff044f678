//! What can go wrong goes wrong, and every job has its end.

use std::collections::HashMap;
use std::time::Duration;

use simulators::Provider;
use sluicegate_queue::{Filter, Message, When};

use crate::support::{Ground, Stand, eventually_within, lock, long, metric, patient};

fn config(stand: &Stand, url: &str, limit: &str) -> String {
    let name = &stand.name;
    format!(
        "dispatch:
  source: {name}-raw
  delay: booked
  providers:
    p: {{queue: {name}-p, limit: {limit}}}
workers:
  - provider: p
    limit: {limit}
    concurrency: 50
    prefetch: 50
    attempts: 2
    backoff: {{from: 20ms, to: 200ms}}
    results: {name}-results
    handler: {{http: {{url: '{url}/v1/analyze'}}}}
"
    )
}

/// Every job, by how often its result is there; the dead ones apart.
fn outcomes(stand: &Stand) -> (HashMap<String, usize>, u64) {
    let mut results = HashMap::new();
    let queue = stand.queue("results");
    let peeked = queue.peek(1_000_000, |message| {
        *results.entry(message.meta.job.to_string()).or_default() += 1;
    });
    stand.runtime.block_on(peeked).expect("peeked");
    (results, stand.dead("p"))
}

/// 10,000 jobs, of which one in twenty calls fails, while processes are killed.
fn every_job_has_a_result_or_a_dead_letter(stand: &Stand, limit: usize, processes: usize) {
    let jobs = if long() { 30_000 } else { 10_000 };
    stand.produce("raw", jobs);
    let provider = Provider { failures_percent: 5, ..patient(10) };
    let (url, record) = stand.provider(provider);
    let config = config(stand, &url, &format!("{limit}/s"));
    let mut running: Vec<_> =
        (0..processes).map(|_| stand.run("dispatch,worker", &config)).collect();
    let (_nobody, moment) = std::sync::mpsc::sync_channel::<()>(1);
    for number in 0..6 {
        let _ = moment.recv_timeout(Duration::from_millis(900));
        running[number % processes] = stand.run("dispatch,worker", &config);
    }
    let left = || {
        let waiting = |queue: &str| {
            let depth = stand.depth(queue);
            depth.ready + depth.delayed.unwrap_or_default() + depth.in_flight.unwrap_or_default()
        };
        waiting("raw") + waiting("p")
    };
    let patience = Duration::from_secs(240);
    eventually_within(patience, || {
        let left = left();
        if left > 0 {
            return (false, (left, 0, 0));
        }
        let (results, dead) = outcomes(stand);
        (results.len() as u64 + dead >= jobs as u64, (left, results.len(), dead))
    });
    let (results, dead) = outcomes(stand);
    let doubled: usize = results.values().map(|times| times - 1).sum();
    let report = record.report(Duration::from_millis(900));
    // A job may have a result and, from a second delivery, a dead letter: never neither.
    assert!(results.len() as u64 + dead >= jobs as u64, "{} {dead}", results.len());
    assert!(doubled < 400, "{doubled} results are there twice: {report:?}");
    assert!(report.most_in_window <= limit, "{report:?}");
    // Two of a hundred times two of a hundred, and some: nearly all are done.
    assert!(dead < jobs as u64 / 50, "{dead}");
}

#[test]
fn every_job_has_its_end_alone() {
    // One process: what it counts in memory is gone when it is killed.
    let stand = Stand::alone("ends");
    stand.produce("raw", 2_000);
    let (url, record) = stand.provider(Provider { failures_percent: 5, ..patient(10) });
    let running = stand.run("dispatch,worker", &config(&stand, &url, "400/s"));
    let patience = Duration::from_secs(120);
    eventually_within(patience, || {
        let (results, dead) = outcomes(&stand);
        (results.len() as u64 + dead == 2_000, (results.len(), dead))
    });
    let (results, dead) = outcomes(&stand);
    assert!(results.values().all(|times| *times == 1));
    assert!(dead < 40, "{dead}");
    let report = record.report(Duration::from_millis(900));
    assert!(report.most_in_window <= 400, "{report:?}");
    assert!(metric(&running, "sluicegate_worker_failed_total{provider=\"p\"}") > 50);
}

#[test]
fn every_job_has_its_end_although_processes_are_killed() {
    every_job_has_a_result_or_a_dead_letter(&Stand::shared("killed"), 600, 2);
}

#[test]
fn a_broker_and_a_redis_that_come_back_are_gone_on_with() {
    let stand = Stand::own("restarted");
    stand.produce("raw", 1_500);
    let (url, record) = stand.provider(patient(5));
    let _running = stand.run("dispatch,worker", &config(&stand, &url, "200/s"));
    let Ground::Own(servers) = &stand.ground else { unreachable!("it has its own") };
    let (_nobody, moment) = std::sync::mpsc::sync_channel::<()>(1);
    let _ = moment.recv_timeout(Duration::from_millis(1_500));
    {
        let mut rabbit = lock(&servers.0);
        rabbit.kill();
        rabbit.restart();
    }
    let _ = moment.recv_timeout(Duration::from_millis(1_000));
    lock(&servers.1).kill_and_restart();
    let patience = Duration::from_secs(180);
    eventually_within(patience, || {
        let jobs = record.report(Duration::from_secs(1)).jobs;
        (jobs == 1_500, jobs)
    });
    assert_eq!(stand.dead("p") + stand.dead("raw"), 0);
}

#[test]
fn poison_goes_to_the_dead_letters_as_it_came() {
    for stand in [Stand::alone("poison"), Stand::shared("poison")] {
        let (url, _) = stand.provider(patient(0));
        let raw = stand.queue("raw");
        let _running = stand.run("dispatch,worker", &config(&stand, &url, "100/s"));
        let poison = vec![0xff, 0x00, b'{'];
        let batch = vec![
            (Message::new(poison.clone()), When::Now),
            (Message::new("{\"AnalysisId\":\"good\"}"), When::Now),
        ];
        for sent in stand.runtime.block_on(raw.send_batch(batch)) {
            sent.expect("sent");
        }
        eventually_within(Duration::from_secs(60), || {
            let found = (stand.dead("raw"), stand.depth("results").ready);
            (found == (1, 1), found)
        });
        let mut letters = Vec::new();
        let dead = raw.dead_letters();
        let all = Filter::default();
        let listed = dead.list(&all, 10, |letter| letters.push(letter.message.body.clone()));
        stand.runtime.block_on(listed).expect("letters");
        assert_eq!(letters, [poison]);
    }
}
