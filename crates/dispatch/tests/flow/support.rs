//! [`FlowBench`]: dispatchers, workers and fake providers in one process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::query::Cost;
use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::time::Clock;
use sluicegate_core::{Decision, Group, Limiter, Rule, Ruleset, Span, Timestamp};
use sluicegate_dispatch::handler::{FailureKind, Output};
use sluicegate_dispatch::{
    DelayMode, Dispatch, Dispatcher, Handler, HandlerResult, Job, JobFailure, JobSuccess,
    JobTracker, LearnOptions, Metrics, PROVIDER, RateLimitInfo, Stop, Strategy, TIER, Tier, Worker,
    worker,
};
use sluicegate_queue::{
    Backoff, DeliveryTime, Embedded, JobId, Message, Options, Queue, WallClock,
};
use sluicegate_service::metrics::Registry;
use sluicegate_service::{ChangeEvent, DecisionEvent, Observer, Operation, Service};
use sluicegate_store::memory::Capacity;
use sluicegate_store::{AnyStore, Memory, MonotonicClock};
use sluicegate_testkit::limit_check::{assert_arrivals, assert_limit, longest_delay};
use sluicegate_testkit::{SwitchableStore, eventually_ok};
use tokio::task::JoinSet;

/// Store, queues, metrics and running tasks of a test.
pub(crate) struct FlowBench {
    pub(crate) store: SwitchableStore<Memory>,
    pub(crate) service: Arc<Service>,
    pub(crate) broker: Arc<Embedded>,
    pub(crate) metrics: Metrics,
    pub(crate) registry: Registry,
    pub(crate) tracker: JobTracker,
    pub(crate) stop: Stop,
    pub(crate) running: JoinSet<()>,
    pub(crate) admits: AdmissionTimes,
    _folder: tempfile::TempDir,
}

/// A limit: provider, tier and limit text.
pub(crate) type TierLimit<'a> = (&'a str, &'a [Tier], &'a str);

pub(crate) const DISPATCH: &[Tier] = &[Tier::Dispatch, Tier::Booked];
pub(crate) const WORKER: &[Tier] = &[Tier::Worker, Tier::Booked];
pub(crate) const BOOKED: &[Tier] = &[Tier::Booked];

impl FlowBench {
    pub(crate) fn new(limits: &[TierLimit<'_>]) -> Self {
        let groups = limits.iter().enumerate().map(|(number, (provider, tiers, limit))| {
            let name = format!("{provider}/{number}");
            let tiers = tiers.iter().map(|tier| tier.name().to_owned()).collect();
            let rule = Rule::new(name.clone(), [limit.parse().expect("a limit")])
                .per(&[PROVIDER])
                .when(PROVIDER, Pattern::exactly(*provider))
                .when(TIER, Pattern::OneOf(tiers))
                .gated();
            Group::new(name, [rule])
        });
        // Slots stay valid longer than by default, because a busy machine may be late.
        let settings = Settings { slack: Some(Span::from_millis(400)), ..Settings::default() };
        let rules = Ruleset::new(groups.collect(), settings).expect("rules");
        let capacity = Capacity { keys_max: 1_000, records_max: 100_000 };
        let store = SwitchableStore::new(Memory::new(capacity));
        let limiter = Limiter::new(rules, AnyStore::custom(store.clone()));
        let admits = AdmissionTimes::default();
        let observers: Vec<Box<dyn Observer>> = vec![Box::new(admits.clone())];
        let registry = Registry::default();
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Embedded::open(&folder.path().join("queue.db")).expect("a file");
        Self {
            store,
            service: Arc::new(Service::new(limiter, MonotonicClock::new(), observers)),
            broker: Arc::new(broker),
            metrics: Metrics::new(&registry, Arc::new(WallClock)),
            registry,
            tracker: JobTracker::default(),
            stop: Stop::default(),
            running: JoinSet::new(),
            admits,
            _folder: folder,
        }
    }

    /// Creates a queue.
    pub(crate) async fn queue(&self, name: &str) -> Queue {
        let options = Options { job_field: Some("id".to_owned()), ..Options::default() };
        let queue = Queue::new(self.broker.clone(), name, options);
        queue.create().await.expect("created");
        queue
    }

    /// Sends `count` jobs to a queue; `body` makes the body from the job's number.
    pub(crate) async fn produce(&self, queue: &str, body: impl Fn(usize) -> String, count: usize) {
        let batch = (0..count).map(|number| {
            let job = JobId::try_from(format!("job-{number}")).expect("a job id");
            (Message::of_job(job, body(number)), DeliveryTime::Now)
        });
        for sent in self.queue(queue).await.send_batch(batch.collect()).await {
            sent.expect("sent");
        }
    }

    /// Starts a dispatcher from `raw` to the queues, which are named after their providers.
    pub(crate) async fn dispatch(
        &mut self,
        strategy: Strategy,
        names: &[&str],
        delay: DelayMode,
    ) -> Arc<Dispatcher> {
        let mut targets = Vec::new();
        for name in names {
            targets.push(self.queue(name).await);
        }
        let options = Dispatch {
            id: "d1".to_owned(),
            enabled: true,
            source: "raw".to_owned(),
            dead_letter: None,
            strategy,
            fixed: None,
            priority: Vec::new(),
            delay,
            prefetch: 50,
            providers: names.iter().map(|name| provider(name)).collect(),
        };
        let source = self.queue("raw").await;
        let (metrics, tracker) = (self.metrics.clone(), self.tracker.clone());
        let clock = Arc::new(WallClock);
        let dispatcher =
            Dispatcher::new(options, source, targets, &self.service, clock, metrics, tracker);
        self.running.spawn(dispatcher.clone().run(self.stop.clone()));
        dispatcher
    }

    /// Starts a worker on the queue that is named after its provider.
    pub(crate) async fn work(
        &mut self,
        options: worker::Options,
        handler: Arc<dyn Handler>,
    ) -> Arc<Worker> {
        let queues = worker::Queues {
            jobs: self.queue(&options.provider).await,
            results: Some(self.queue("results").await),
            follow_ups: vec![self.queue("further").await],
        };
        self.work_with(options, handler, queues)
    }

    /// Starts a worker with these queues.
    pub(crate) fn work_with(
        &mut self,
        options: worker::Options,
        handler: Arc<dyn Handler>,
        queues: worker::Queues,
    ) -> Arc<Worker> {
        let (metrics, tracker) = (self.metrics.clone(), self.tracker.clone());
        let clock = Arc::new(WallClock);
        let worker = Worker::new(options, queues, handler, &self.service, clock, metrics, tracker);
        self.running.spawn(worker.clone().run(self.stop.clone()));
        worker
    }

    /// Waits until a queue has this number of ready and of delayed messages.
    pub(crate) async fn wait_for(&self, queue: &str, ready: u64, delayed: u64) {
        let queue = self.queue(queue).await;
        eventually_ok(async || {
            let depth = queue.depth().await.expect("a depth");
            let found = (depth.ready, depth.delayed.unwrap_or_default());
            (found == (ready, delayed))
                .then_some(())
                .ok_or(format!("{} has {found:?}", queue.name()))
        })
        .await;
    }

    /// Checks that no more than `amount` jobs went in any window: by the times at which the store
    /// admitted them, and at the provider in windows that are shorter by the longest delay between
    /// the two.
    pub(crate) fn proves<F>(&self, amount: usize, window: Span, provider: &Provider<F>) {
        let sorted = |times: &[Timestamp]| {
            let mut times = times.to_vec();
            times.sort_unstable();
            times
        };
        let admits = sorted(&self.admits.0.lock().unwrap_or_else(PoisonError::into_inner));
        let calls: Vec<_> = provider.calls().into_iter().map(|(_, at)| at).collect();
        let calls = sorted(&calls);
        assert_limit(&format!("{amount}/{}us", window.as_micros()), &admits);
        assert_arrivals(amount, window, longest_delay(&admits, &calls), &calls);
    }

    /// Drains all dispatchers and workers.
    pub(crate) async fn finish(&mut self) {
        self.stop.drain.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended.expect("nothing panics");
        }
    }
}

/// Times at which the store admitted messages of workers, by its own clock.
#[derive(Clone, Default)]
pub(crate) struct AdmissionTimes(Arc<Mutex<Vec<Timestamp>>>);

impl AdmissionTimes {
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Observer for AdmissionTimes {
    fn on_decision(&self, decided: &DecisionEvent<'_, '_, '_>) {
        let goes = matches!(decided.operation, Operation::Acquire | Operation::Claim)
            && matches!(decided.answer.decision(), Decision::Allow(_))
            && decided.query.get(TIER) != Some(Tier::Dispatch.name());
        if goes {
            let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            times.push(decided.answer.at());
        }
    }

    fn on_change(&self, _: &ChangeEvent<'_, '_>) {}
}

/// Estimated cost of every job.
const ESTIMATE: Cost =
    Cost { requests: None, input_tokens: Some(700), output_tokens: Some(300), money: None };

fn provider(name: &str) -> sluicegate_dispatch::Provider {
    sluicegate_dispatch::Provider {
        name: name.to_owned(),
        queue: name.to_owned(),
        limits: Vec::new(),
        estimate: ESTIMATE,
        cost: 1.0,
        quality: 1.0,
        weight: 1,
    }
}

pub(crate) fn worker_of(provider: &str) -> worker::Options {
    worker::Options {
        provider: provider.to_owned(),
        estimate: ESTIMATE,
        concurrency: 20,
        prefetch: 5,
        attempts: 3,
        backoff: Backoff { from: Span::from_millis(10), to: Span::from_millis(40) },
        timeout: Span::from_secs(10),
        enabled: true,
        booked: false,
        learn: Some(LearnOptions { below: 1, pause_max: Span::from_secs(60) }),
    }
}

/// A provider that records its calls and responds as `answer` says.
pub(crate) struct Provider<F> {
    pub(crate) calls: Mutex<Vec<(String, Timestamp)>>,
    pub(crate) in_work: AtomicU64,
    answer: F,
}

impl<F> Provider<F> {
    pub(crate) fn calls(&self) -> Vec<(String, Timestamp)> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<F: Fn(&Job, usize) -> HandlerResult + Send + Sync> Provider<F> {
    /// Creates a provider that responds by the job and the number of its previous calls.
    pub(crate) fn new(answer: F) -> Arc<Self> {
        Arc::new(Self { calls: Mutex::default(), in_work: AtomicU64::new(0), answer })
    }

    /// Returns the number of calls for each job.
    pub(crate) fn times(&self) -> HashMap<String, usize> {
        let mut times = HashMap::new();
        for (job, _) in self.calls() {
            *times.entry(job).or_default() += 1;
        }
        times
    }
}

impl<F: Fn(&Job, usize) -> HandlerResult + Send + Sync> Handler for Provider<F> {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, HandlerResult> {
        async move {
            self.in_work.fetch_add(1, Ordering::SeqCst);
            let before = {
                let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
                let before = calls.iter().filter(|(other, _)| other == job.key()).count();
                calls.push((job.key().to_owned(), WallClock.now()));
                before
            };
            tokio::time::sleep(Duration::from_millis(5)).await;
            let handled = (self.answer)(job, before);
            self.in_work.fetch_sub(1, Ordering::SeqCst);
            handled
        }
        .boxed()
    }
}

pub(crate) fn done() -> HandlerResult {
    let result = Output { body: "{\"ok\":true}".into(), content_type: None };
    HandlerResult {
        outcome: Ok(JobSuccess { result: Some(result), ..JobSuccess::default() }),
        rate_limit_info: None,
        usage: None,
    }
}

pub(crate) fn failed(kind: FailureKind, message: &str) -> HandlerResult {
    let response = Some("<html>no</html>".to_owned());
    HandlerResult {
        outcome: Err(JobFailure { kind, response, ..JobFailure::transient(message) }),
        rate_limit_info: None,
        usage: None,
    }
}

pub(crate) fn refused(after_ms: u64) -> HandlerResult {
    let headers = vec![("retry-after-ms".to_owned(), after_ms.to_string())];
    let rate_limit_info = Some(RateLimitInfo { status: 429, headers, ..RateLimitInfo::default() });
    HandlerResult { rate_limit_info, ..failed(FailureKind::Limited, "too many requests") }
}
