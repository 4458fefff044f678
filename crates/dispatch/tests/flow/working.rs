//! Tests of the worker, and of dispatcher and worker together.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sluicegate_core::Span;
use sluicegate_core::query::Cost;
use sluicegate_dispatch::handler::{CallUsage, FailureKind, Output};
use sluicegate_dispatch::{
    DelayMode, Handler, HandlerResult, Job, JobEvent, JobSuccess, PreparedCall, Strategy,
    WorkerCounter, worker,
};
use sluicegate_queue::{
    Broker as _, DeadLetterFilter, Embedded, JobId, Message, Options, Queue, QueueName,
};

use sluicegate_testkit::{eventually_is_async, eventually_ok};

use crate::support::{
    AdmissionTimes, BOOKED, DISPATCH, FlowBench, Provider, WORKER, done, failed, refused, worker_of,
};

fn numbered(number: usize) -> String {
    format!("{{\"id\":\"job-{number}\"}}")
}

impl FlowBench {
    async fn wait_for_done(&self, provider: &str, count: u64) {
        eventually_ok(async || {
            let done = self.metrics.worker(provider, WorkerCounter::Done);
            (done == count).then_some(()).ok_or(format!("{done} are done"))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn booked_jobs_run_at_their_start_time_and_none_is_requeued() {
    let limits = [("p", DISPATCH, "30/2s"), ("p", WORKER, "30/2s"), ("p", BOOKED, "30/2s burst 5")];
    let mut bench = FlowBench::new(&limits);
    let provider = Provider::new(|_, _| done());
    bench.produce("raw", numbered, 90).await;
    let options = worker::Options { booked: true, ..worker_of("p") };
    bench.work(options, provider.clone()).await;
    bench.dispatch(Strategy::Fixed, &["p"], DelayMode::Booked).await;
    bench.wait_for_done("p", 90).await;
    assert_eq!(bench.metrics.worker("p", WorkerCounter::Requeued), 0);
    bench.proves(30, Span::from_secs(2), &provider);
    assert_eq!(provider.times().values().copied().max(), Some(1));
    bench.wait_for("results", 90, 0).await;
    bench.finish().await;
}

/// If the store booked or admitted but its reply was late or lost, the call is retried with the
/// same id.
#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_of_the_store_cost_no_booking() {
    let limits = [("p", DISPATCH, "30/2s"), ("p", WORKER, "30/2s"), ("p", BOOKED, "30/2s burst 5")];
    let mut bench = FlowBench::new(&limits);
    bench.store.drop_every_nth(7);
    let provider = Provider::new(|_, _| done());
    bench.produce("raw", numbered, 60).await;
    let options = worker::Options { booked: true, ..worker_of("p") };
    bench.work(options, provider.clone()).await;
    bench.dispatch(Strategy::Fixed, &["p"], DelayMode::Booked).await;
    bench.wait_for_done("p", 60).await;
    assert_eq!(bench.metrics.worker("p", WorkerCounter::Requeued), 0);
    bench.proves(30, Span::from_secs(2), &provider);
    assert_eq!(provider.times().values().copied().max(), Some(1));
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_stalled_never_exceed_the_limit_afterwards() {
    let limits = [("p", DISPATCH, "10/s"), ("p", WORKER, "10/s"), ("p", BOOKED, "10/s burst 5")];
    let mut bench = FlowBench::new(&limits);
    bench.produce("raw", numbered, 40).await;
    bench.dispatch(Strategy::Fixed, &["p"], DelayMode::Booked).await;
    bench.wait_for("raw", 0, 0).await;
    // Half of the booked start times pass before a worker starts.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let provider = Provider::new(|_, _| done());
    let options = worker::Options { booked: true, ..worker_of("p") };
    bench.work(options, provider.clone()).await;
    bench.wait_for_done("p", 40).await;
    bench.proves(10, Span::from_secs(1), &provider);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_over_its_limit_waits_and_loses_nothing() {
    let mut bench = FlowBench::new(&[("p", WORKER, "20/s")]);
    let provider = Provider::new(|_, _| done());
    bench.produce("p", numbered, 60).await;
    bench.work(worker_of("p"), provider.clone()).await;
    bench.wait_for_done("p", 60).await;
    bench.proves(20, Span::from_secs(1), &provider);
    assert_eq!(provider.times().len(), 60);
    assert!(bench.metrics.worker("p", WorkerCounter::Blocked) > 0);
    bench.finish().await;
}

/// Every job has an estimated cost of a thousand tokens.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_limited_by_the_estimated_cost_of_a_job() {
    let tokens = "10000 tokens/s";
    for (delay, booked) in
        [(DelayMode::Fixed(Span::from_millis(300)), false), (DelayMode::Booked, true)]
    {
        let mut bench = FlowBench::new(&[("p", DISPATCH, tokens), ("p", WORKER, tokens)]);
        let provider = Provider::new(|_, _| done());
        bench.produce("raw", numbered, 30).await;
        bench.work(worker::Options { booked, ..worker_of("p") }, provider.clone()).await;
        bench.dispatch(Strategy::Fixed, &["p"], delay).await;
        bench.wait_for_done("p", 30).await;
        bench.proves(10, Span::from_secs(1), &provider);
        assert_eq!(provider.times().len(), 30);
        bench.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_long_is_requeued_and_no_others_are_received() {
    let mut bench = FlowBench::new(&[("p", WORKER, "10/min")]);
    let provider = Provider::new(|_, _| done());
    bench.produce("p", numbered, 200).await;
    bench.work(worker_of("p"), provider.clone()).await;
    bench.wait_for_done("p", 10).await;
    eventually_ok(async || {
        let depth = bench.queue("p").await.depth().await.expect("a depth");
        let all = depth.ready + depth.delayed.unwrap_or_default();
        (all == 190 && depth.in_flight == Some(0)).then_some(()).ok_or(format!("{depth:?}"))
    })
    .await;
    bench.finish().await;
    let requeued = bench.metrics.worker("p", WorkerCounter::Requeued);
    assert!((1..=50).contains(&requeued), "{requeued} went back");
    assert_eq!(provider.calls().len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_retried_and_end_as_dead_letters_with_all_details() {
    let mut bench = FlowBench::new(&[("p", WORKER, "1000/s")]);
    let provider = Provider::new(|job, before| match job.key() {
        "job-0" => failed(FailureKind::Transient, "500 from p"),
        "job-1" => failed(FailureKind::Permanent, "400 from p"),
        "job-2" if before == 0 => failed(FailureKind::Transient, "once"),
        _ => done(),
    });
    bench.produce("p", numbered, 4).await;
    bench.work(worker_of("p"), provider.clone()).await;
    bench.wait_for_done("p", 2).await;
    eventually_ok(async || {
        let dead = bench.metrics.worker("p", WorkerCounter::Dead);
        (dead == 2).then_some(()).ok_or(format!("{dead} are dead"))
    })
    .await;
    let times = provider.times();
    assert_eq!((times["job-0"], times["job-1"], times["job-2"], times["job-3"]), (3, 1, 2, 1));
    let mut letters = Vec::new();
    let dead = bench.queue("p").await.dead_letters();
    dead.list(&Default::default(), 10, |letter| letters.push(letter.message.body.clone()))
        .await
        .expect("letters");
    let letters: Vec<serde_json::Value> =
        letters.iter().map(|body| serde_json::from_slice(body).expect("JSON")).collect();
    let letter = letters.iter().find(|letter| letter["id"] == "job-0").expect("job 0");
    assert_eq!(letter["error"]["message"], "500 from p");
    assert_eq!(letter["error"]["attempts"], 3);
    assert_eq!(letter["error"]["provider"], "p");
    assert_eq!(letter["error"]["response"], "<html>no</html>");
    assert!(letter["error"]["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')));
    // A job is tracked after it was counted.
    let ended = || {
        let seen = bench.tracker.find("job-0").expect("it was there").status;
        (seen.event, seen.error)
    };
    eventually_is_async(ended, (JobEvent::Dead, Some("500 from p".to_owned()))).await;
    let earlier = bench.tracker.find("job-0").expect("it was there").earlier;
    let errors: Vec<_> = earlier.iter().filter_map(|past| past.error.as_deref()).collect();
    assert_eq!(errors, ["500 from p", "500 from p"], "{earlier:?}");
    assert!(earlier.iter().any(|past| past.event == JobEvent::InWork), "{earlier:?}");
    bench.finish().await;
}

/// A worker that was suspended right before a call does not make it. The job gets another turn at
/// once, the unused one is given back, and neither an attempt nor a failure is counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_turn_is_over_before_the_call_gets_another_one() {
    let mut bench = FlowBench::new(&[("p", WORKER, "4/h")]);
    let provider = Provider::new(|job, before| match before {
        0 => {
            assert!(job.latest_start.is_some(), "the turn has an end");
            failed(FailureKind::Late, "the turn ended before the provider was called")
        }
        _ => done(),
    });
    bench.produce("p", numbered, 4).await;
    bench.work(worker_of("p"), provider.clone()).await;
    bench.wait_for_done("p", 4).await;
    assert!(provider.times().values().all(|times| *times == 2), "{:?}", provider.times());
    assert_eq!(bench.metrics.worker("p", WorkerCounter::Failed), 0);
    assert_eq!(bench.metrics.worker("p", WorkerCounter::Dead), 0);
    bench.finish().await;
}

/// A call that connected after its turn would arrive late, and too close to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_prepared_before_the_job_takes_its_turn() {
    /// Notes how many jobs were admitted when a call was prepared, and when it was made.
    struct Connecting(AdmissionTimes, Mutex<Vec<usize>>);
    impl Connecting {
        fn note(&self) {
            self.1.lock().unwrap_or_else(PoisonError::into_inner).push(self.0.count());
        }
    }
    impl Handler for Connecting {
        fn handle<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, HandlerResult> {
            self.note();
            Box::pin(std::future::ready(done()))
        }

        fn prepare<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, PreparedCall> {
            Box::pin(async {
                self.note();
                PreparedCall::default()
            })
        }
    }
    for booked in [false, true] {
        let mut bench = FlowBench::new(&[("p", WORKER, "10/s")]);
        let handler = Arc::new(Connecting(bench.admits.clone(), Mutex::default()));
        bench.produce("p", numbered, 1).await;
        bench.work(worker::Options { booked, ..worker_of("p") }, handler.clone()).await;
        bench.wait_for_done("p", 1).await;
        let noted = handler.1.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert_eq!(noted, [0, 1], "booked: {booked}");
        bench.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_is_a_failure() {
    struct Sleeper;
    impl Handler for Sleeper {
        fn handle<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, HandlerResult> {
            Box::pin(std::future::pending())
        }
    }
    let mut bench = FlowBench::new(&[]);
    bench.produce("p", numbered, 1).await;
    let options = worker::Options { timeout: Span::from_millis(20), attempts: 2, ..worker_of("p") };
    bench.work(options, Arc::new(Sleeper)).await;
    eventually_ok(async || {
        let dead = bench.metrics.worker("p", WorkerCounter::Dead);
        (dead == 1).then_some(()).ok_or(format!("{dead} are dead"))
    })
    .await;
    let ended = || {
        let seen = bench.tracker.find("job-0").expect("it was there").status;
        (seen.event, seen.error)
    };
    eventually_is_async(ended, (JobEvent::Dead, Some("timed out after 20ms".to_owned()))).await;
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_pauses_the_provider_for_all_workers_and_is_no_attempt() {
    for booked in [false, true] {
        let limits = [("p", DISPATCH, "1000/s"), ("p", WORKER, "1000/s")];
        let mut bench = FlowBench::new(&limits);
        let provider = Provider::new(|job, before| match (job.key(), before) {
            ("job-0", 0) => refused(700),
            _ => done(),
        });
        let options = worker::Options { booked, attempts: 1, ..worker_of("p") };
        bench.work(options.clone(), provider.clone()).await;
        bench.work(options, provider.clone()).await;
        bench.produce("p", numbered, 1).await;
        eventually_ok(async || {
            let paused = bench.metrics.worker("p", WorkerCounter::Paused);
            (paused == 1).then_some(()).ok_or(format!("{paused} pauses"))
        })
        .await;
        bench.produce("p", numbered, 20).await;
        bench.wait_for_done("p", 21).await;
        let calls = provider.calls();
        let first = calls[0].1;
        assert!(calls[1..].iter().all(|(_, at)| at.since(first) >= Span::from_millis(690)));
        assert_eq!(bench.metrics.worker("p", WorkerCounter::Dead), 0);
        bench.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_up_messages_are_sent_before_the_job_is_acknowledged() {
    let mut bench = FlowBench::new(&[]);
    let provider = Provider::new(|job, _| {
        let follow_ups = (0..3).map(|n| {
            let id = JobId::try_from(format!("{}.{n}", job.key())).expect("a job id");
            ("further".to_owned(), Message::of_job(id, "{}").of_kind("crawl_repo"))
        });
        let outcome = Ok(JobSuccess { follow_ups: follow_ups.collect(), ..JobSuccess::default() });
        HandlerResult { outcome, rate_limit_info: None, usage: None }
    });
    bench.produce("p", numbered, 5).await;
    bench.work(worker_of("p"), provider).await;
    bench.wait_for_done("p", 5).await;
    let mut seen = HashSet::new();
    let follow_ups = bench.queue("further").await;
    let peeked = follow_ups.peek(100, |message| {
        seen.insert(message.meta.job.clone());
    });
    peeked.await.expect("peeked");
    assert_eq!(seen.len(), 15);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_finishes_running_jobs_and_requeues_the_rest() {
    let mut bench = FlowBench::new(&[("p", WORKER, "10/min")]);
    let provider = Provider::new(|_, _| done());
    bench.produce("p", numbered, 100).await;
    bench.work(worker_of("p"), provider.clone()).await;
    eventually_ok(async || {
        let calls = provider.calls().len();
        (calls > 0).then_some(()).ok_or("nothing is in work".to_owned())
    })
    .await;
    bench.finish().await;
    assert_eq!(provider.in_work.load(Ordering::SeqCst), 0);
    let done = bench.metrics.worker("p", WorkerCounter::Done);
    assert_eq!(done, provider.calls().len() as u64);
    let depth = bench.queue("p").await.depth().await.expect("a depth");
    let left =
        depth.ready + depth.delayed.unwrap_or_default() + depth.in_flight.unwrap_or_default();
    assert_eq!(done + left, 100);
}

/// The third of five jobs meets a limit of one hour: it is requeued, and the worker receives no
/// more messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_limits_are_turned_off_receives_messages_at_once() {
    let mut bench = FlowBench::new(&[("p", WORKER, "2/h")]);
    let provider = Provider::new(|_, _| done());
    bench.produce("p", numbered, 5).await;
    let options = worker::Options { concurrency: 1, prefetch: 0, ..worker_of("p") };
    let worker = bench.work(options, provider.clone()).await;
    bench.wait_for("p", 2, 1).await;
    worker.enable(false);
    bench.wait_for_done("p", 4).await;
    bench.wait_for("p", 0, 1).await;
    bench.finish().await;
}

/// A message that waits for an unavailable store goes on as soon as limits are off.
#[tokio::test(flavor = "multi_thread")]
async fn messages_in_flight_go_as_soon_as_limits_are_turned_off() {
    let limits = [("p", DISPATCH, "2/h"), ("p", WORKER, "2/h")];
    let mut bench = FlowBench::new(&limits);
    let provider = Provider::new(|_, _| done());
    bench.store.set_on(false);
    bench.produce("raw", numbered, 5).await;
    let dispatcher =
        bench.dispatch(Strategy::Fixed, &["p"], DelayMode::Fixed(Span::from_secs(3_600))).await;
    let worker = bench.work(worker_of("p"), provider.clone()).await;
    dispatcher.enable(false);
    worker.enable(false);
    bench.wait_for_done("p", 5).await;
    bench.finish().await;
}

/// The program ran 19 times in 10 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_too_large_is_a_dead_letter_after_one_call() {
    let mut bench = FlowBench::new(&[("p", WORKER, "100/s")]);
    let provider = Provider::new(|_, _| {
        let body = vec![b'x'; 17 << 20].into();
        let result = Some(Output { body, content_type: None });
        let outcome = Ok(JobSuccess { result, ..JobSuccess::default() });
        HandlerResult { outcome, rate_limit_info: None, usage: None }
    });
    bench.produce("p", numbered, 1).await;
    bench.work(worker_of("p"), provider.clone()).await;
    let queue = bench.queue("p").await;
    eventually_ok(async || {
        let dead = queue.dead_depth().await.expect("a depth").ready;
        (dead == 1).then_some(()).ok_or(format!("{dead} dead letters"))
    })
    .await;
    let mut errors = Vec::new();
    let listed = queue
        .dead_letters()
        .list(&DeadLetterFilter::default(), 1, |letter| {
            errors.push(letter.failure().expect("its failure").message.clone());
        })
        .await;
    listed.expect("listed");
    let expected = "the job is done, but results can't take its result: the message has 17";
    assert!(errors[0].starts_with(expected), "{errors:?}");
    assert_eq!(provider.calls().len(), 1);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_have_its_own_maximum_of_attempts() {
    let mut bench = FlowBench::new(&[]);
    let provider = Provider::new(|_, _| failed(FailureKind::Transient, "HTTP 500"));
    let queue = bench.queue("p").await;
    for (job, max_attempts) in [("one", Some(1)), ("four", Some(4)), ("as the worker", None)] {
        let mut message = Message::of_job(JobId::try_from(job.to_owned()).expect("an id"), "{}");
        message.meta.max_attempts = max_attempts;
        queue.send(message).await.expect("sent");
    }
    let options = worker::Options { attempts: 2, ..worker_of("p") };
    bench.work(options, provider.clone()).await;
    eventually_ok(async || {
        let dead = queue.dead_depth().await.expect("a depth").ready;
        (dead == 3).then_some(()).ok_or(dead)
    })
    .await;
    let times = provider.times();
    assert_eq!((times["one"], times["four"], times["as the worker"]), (1, 4, 2));
    bench.finish().await;
}

/// Each job is estimated at 1,000 tokens, so that only two would fit into an hour.
#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_is_settled_with_the_tokens_that_a_call_took() {
    let mut bench = FlowBench::new(&[("p", WORKER, "2000 tokens/h")]);
    let provider = Provider::new(|_, _| {
        let cost = Cost { input_tokens: Some(7), output_tokens: Some(3), ..Cost::default() };
        HandlerResult { usage: Some(CallUsage { cost, model: None }), ..done() }
    });
    bench.produce("p", numbered, 50).await;
    let options = worker::Options { concurrency: 1, prefetch: 0, ..worker_of("p") };
    bench.work(options, provider.clone()).await;
    bench.wait_for_done("p", 50).await;
    assert_eq!(provider.calls().len(), 50);
    bench.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_page_goes_to_the_queue_of_the_job() {
    let mut bench = FlowBench::new(&[]);
    let provider = Provider::new(|job, _| {
        let page: usize = job.key().rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let id = JobId::try_from(format!("page-{}", page + 1)).expect("a job id");
        let next_page = (page < 5).then(|| Message::of_job(id, "{}"));
        HandlerResult::done(JobSuccess { next_page, ..JobSuccess::default() })
    });
    bench.produce("p", numbered, 1).await;
    bench.work(worker_of("p"), provider.clone()).await;
    bench.wait_for_done("p", 6).await;
    bench.wait_for("p", 0, 0).await;
    assert_eq!(provider.times().len(), 6);
    bench.finish().await;
}

/// It was delivered too often before this worker got it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_its_consumer_dead_letters_is_counted_and_known() {
    let mut bench = FlowBench::new(&[]);
    let provider = Provider::new(|_, _| done());
    let mut poison = Message::of_job(JobId::try_from("job-0".to_owned()).expect("an id"), "{}");
    poison.meta.redeliveries = 21;
    bench.queue("p").await.send(poison).await.expect("sent");
    bench.work(worker_of("p"), provider.clone()).await;
    let ended = || {
        let seen = bench.tracker.find("job-0")?.status;
        Some((seen.event, seen.error?.starts_with("the message was delivered 22 times")))
    };
    eventually_is_async(ended, Some((JobEvent::Dead, true))).await;
    assert_eq!(bench.metrics.worker("p", WorkerCounter::Dead), 1);
    assert_eq!(bench.queue("p").await.dead_depth().await.expect("a depth").ready, 1);
    assert_eq!(provider.calls(), []);
    bench.finish().await;
}

/// A worker got the message about every minute, and was killed by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_dead_letter_queue_of_undelivered_messages_is_reported() {
    let mut bench = FlowBench::new(&[]);
    let provider = Provider::new(|_, _| done());
    let options = Options { dead_letter: Some("nowhere".to_owned()), ..Options::default() };
    let jobs = Queue::new(bench.broker.clone(), "p", options);
    bench.broker.create(&QueueName::Live("p".to_owned())).await.expect("created");
    let mut poison = Message::new("{}");
    poison.meta.redeliveries = 21;
    jobs.send(poison).await.expect("sent");
    let queues = worker::Queues { jobs: jobs.clone(), results: None, follow_ups: Vec::new() };
    bench.work_with(worker_of("p"), provider.clone(), queues);
    eventually_is_async(|| bench.metrics.is_paused(), true).await;
    eventually_ok(async || {
        let delayed = jobs.depth().await.expect("a depth").delayed;
        (delayed == Some(1)).then_some(()).ok_or(delayed)
    })
    .await;
    assert_eq!(provider.calls(), []);
    bench.finish().await;
}

/// The outbox of a finished job was dropped when the worker stopped, and the provider called again.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_publishes_the_results_of_finished_jobs() {
    let mut bench = FlowBench::new(&[]);
    let provider = Provider::new(|_, _| done());
    bench.produce("p", numbered, 1).await;
    // On another broker: the job and its result can't be one transaction.
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Embedded::open(&folder.path().join("results.db")).expect("a file");
    let results = Queue::new(Arc::new(broker), "elsewhere", Options::default());
    let queues = worker::Queues {
        jobs: bench.queue("p").await,
        results: Some(results.clone()),
        follow_ups: Vec::new(),
    };
    bench.work_with(worker_of("p"), provider.clone(), queues);
    eventually_is_async(|| bench.metrics.is_paused(), true).await;
    results.create().await.expect("created");
    bench.finish().await;
    assert_eq!(provider.calls().len(), 1);
    assert_eq!(bench.metrics.worker("p", WorkerCounter::Done), 1);
    assert_eq!(results.depth().await.expect("a depth").ready, 1);
    let left = bench.queue("p").await.depth().await.expect("a depth");
    assert_eq!((left.ready, left.in_flight), (0, Some(0)));
}
