//! Builds and runs the dispatcher and the workers of a configuration.

mod client_jobs;
pub(crate) mod dead_letters;
mod depth_poller;
pub(crate) mod progress;
pub(crate) mod why;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use sluicegate_config::{self as config, Config};
use sluicegate_core::limit::Unit;
use sluicegate_core::time::Clock;
use sluicegate_core::{Limit, Span};
use sluicegate_dispatch::{DELIVERED_AHEAD, Dispatcher, JobTracker, Metrics, Stop, Worker, worker};
use sluicegate_queue::{
    Backoff, Capabilities, Error, LeaseKind, Queue, REDELIVERY_DELAY_MAX, WallClock,
};
use sluicegate_service::Service;
use sluicegate_service::metrics::Registry;
use tokio::task::JoinSet;
use tracing::{error, warn};

use crate::handlers;
use crate::metrics;
use crate::queue::{LazyQueues, MissingQueue, Queues};
use crate::wire::Role;

pub(crate) use client_jobs::ClientJobs;
pub(crate) use depth_poller::DepthPoller;
use progress::ProviderRates;

/// Default number of messages that a worker fetches beyond those in progress.
const PREFETCH: u16 = 1;
/// Maximum number of booked messages that a worker fetches because they are due soon.
const PREFETCH_MAX: u64 = 2_000;
/// Number of booked messages that a worker fetches to delay them again.
const DELAYED_AGAIN: u16 = 4;
/// Maximum time for requeueing the messages of cancelled jobs.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The dispatcher and the workers of a process; both may be absent.
pub(crate) struct Jobs {
    dispatcher: Option<Arc<Dispatcher>>,
    workers: Vec<Arc<Worker>>,
    /// Metrics and state of the jobs.
    pub(crate) monitor: JobMonitor,
}

/// Metrics and state of the jobs, for the metrics endpoint, `jobs why` and the progress line.
#[derive(Clone)]
pub(crate) struct JobMonitor {
    pub(crate) metrics: Metrics,
    pub(crate) tracker: JobTracker,
    pub(crate) depths: DepthPoller,
    pub(crate) providers: Vec<String>,
    /// Limits of the providers, for the estimate of the time left.
    rates: Arc<Mutex<Vec<ProviderRates>>>,
}

impl JobMonitor {
    pub(crate) fn rates(&self) -> Vec<ProviderRates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Jobs {
    /// Connects to the broker and builds the dispatcher and the workers. Fails if a queue is missing,
    /// the login is wrong or a handler is invalid.
    pub(crate) async fn open(
        config: &Config,
        roles: &[Role],
        queues: &LazyQueues,
        missing: MissingQueue,
        service: &Arc<Service>,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(WallClock);
        let dispatch = config.dispatch.as_ref().filter(|_| roles.contains(&Role::Dispatch));
        let workers = config.workers.iter().filter(|_| roles.contains(&Role::Worker));
        let workers: Vec<_> = workers.collect();
        let is_empty = dispatch.is_none() && workers.is_empty();
        // The metrics of jobs are not shown if there are none.
        let registry = if is_empty { &Registry::default() } else { registry };
        let mut jobs = Self {
            dispatcher: None,
            workers: Vec::new(),
            monitor: JobMonitor {
                metrics: Metrics::new(registry, clock.clone()),
                tracker: JobTracker::default(),
                depths: DepthPoller::default(),
                providers: providers(config),
                rates: Arc::new(Mutex::new(ProviderRates::of(config))),
            },
        };
        if is_empty {
            return Ok(jobs);
        }
        let missing = missing.of(queues.options());
        let queues = queues.get().await?;
        queues.expect_delays(config);
        let mut queues = OpenQueues { queues, missing, open: BTreeMap::new() };
        if let Some(dispatch) = dispatch {
            let horizon = config.settings().horizon;
            let made =
                jobs.dispatcher(dispatch, horizon, &mut queues, service, clock.clone()).await;
            jobs.dispatcher = Some(made.context("dispatch")?);
        }
        for (number, worker) in workers.into_iter().enumerate() {
            let booking = config.dispatch.iter();
            let booking = booking.filter(|dispatch| dispatch.delay == config::DelayMode::Booked);
            let provider = booking
                .flat_map(|dispatch| &dispatch.providers)
                .find(|provider| provider.name == worker.provider);
            let horizon = config.settings().horizon;
            let booked = provider.map(|provider| horizon.max(longest_window(&provider.limits)));
            let made = jobs.worker(worker, booked, &mut queues, service, clock.clone()).await;
            jobs.workers.push(made.with_context(|| format!("workers[{number}]"))?);
        }
        queues.queues.flush_created().await;
        jobs.monitor.depths.add(queues.open.into_values());
        metrics::queues(registry, jobs.monitor.depths.clone());
        Ok(jobs)
    }

    /// Returns true if there is neither a dispatcher nor a worker.
    pub(crate) fn is_empty(&self) -> bool {
        self.dispatcher.is_none() && self.workers.is_empty()
    }

    /// Starts the dispatcher, the workers and the depth poller.
    pub(crate) fn start(&self, stop: &Stop) -> JoinSet<()> {
        let mut running = JoinSet::new();
        if let Some(dispatcher) = self.dispatcher.clone() {
            running.spawn(dispatcher.run(stop.clone()));
        }
        for worker in self.workers.iter().cloned() {
            running.spawn(worker.run(stop.clone()));
        }
        if !self.is_empty() {
            running.spawn(self.monitor.depths.clone().run(stop.drain.clone()));
        }
        running
    }

    /// Returns the maximum time for jobs in progress after the process was asked to stop. `None` if
    /// there are no jobs.
    pub(crate) fn drain_timeout(&self, config: &Config) -> Option<Span> {
        if self.is_empty() {
            return None;
        }
        let timeouts = config.workers.iter().map(|worker| worker.timeout);
        let longest = timeouts.max().filter(|_| !self.workers.is_empty()).unwrap_or_default();
        let timeout = config.server.drain_timeout;
        Some(timeout.unwrap_or(longest + config.server.shutdown_grace))
    }

    /// Applies the options of a new configuration that need no restart: see [`crate::restart`].
    pub(crate) fn reload(&self, config: &Config) {
        if let (Some(dispatcher), Some(dispatch)) = (&self.dispatcher, &config.dispatch) {
            dispatcher.enable(config.enabled && dispatch.enabled);
        }
        for (worker, given) in self.workers.iter().zip(&config.workers) {
            worker.enable(config.enabled && given.enabled);
        }
        let mut rates = self.monitor.rates.lock().unwrap_or_else(PoisonError::into_inner);
        *rates = ProviderRates::of(config);
    }

    async fn dispatcher(
        &self,
        config: &config::Dispatch,
        horizon: Span,
        queues: &mut OpenQueues<'_>,
        service: &Arc<Service>,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Arc<Dispatcher>> {
        let mut targets = Vec::new();
        // Opens the target queues before the source, so that received messages can be sent on.
        let (fixed, longest, unbooked) = match config.delay {
            config::DelayMode::Fixed(delay) => (vec![delay], Span::ZERO, Span::ZERO),
            // A start beyond the horizon can't be booked: the message waits in the source queue.
            config::DelayMode::Booked => {
                let limits = config.providers.iter().flat_map(|provider| &provider.limits);
                (Vec::new(), horizon, longest_window(limits))
            }
        };
        for provider in &config.providers {
            let queue = queues.queue(&provider.queue, None).await?;
            // At the start: a broker may lose a delay queue that it has just created.
            queue.prepare_delays(&fixed, longest).await?;
            targets.push(queue);
        }
        let source = queues.source(&config.source, config.dead_letter.as_deref()).await?;
        let longest = longest.max(unbooked).max(REDELIVERY_DELAY_MAX);
        source.prepare_delays(&[], longest).await?;
        let (metrics, tracker) = (self.monitor.metrics.clone(), self.monitor.tracker.clone());
        Ok(Dispatcher::new(config.clone(), source, targets, service, clock, metrics, tracker))
    }

    async fn worker(
        &self,
        config: &config::WorkerOptions,
        booked: Option<Span>,
        queues: &mut OpenQueues<'_>,
        service: &Arc<Service>,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Arc<Worker>> {
        let results = match &config.results {
            Some(name) => Some(queues.queue(name, None).await?),
            None => None,
        };
        let mut follow_ups = Vec::new();
        for emit in &config.handler.emit {
            follow_ups.push(queues.queue(&emit.queue, None).await?);
        }
        let jobs = queues.source(&config.queue, config.dead_letter.as_deref()).await?;
        let pause = config.learn.map_or(Span::ZERO, |learn| learn.pause_max);
        let limited = booked.unwrap_or_default().max(longest_window(&config.limits));
        let longest = pause.max(limited).max(config.backoff_to).max(REDELIVERY_DELAY_MAX);
        jobs.prepare_delays(&[], longest).await?;
        let options = worker::Options {
            provider: config.provider.clone(),
            estimate: config.estimate,
            concurrency: config.concurrency,
            prefetch: prefetch(config, &jobs, booked.is_some()),
            attempts: config.attempts,
            backoff: Backoff { from: config.backoff_from, to: config.backoff_to },
            timeout: config.timeout,
            enabled: config.enabled,
            booked: booked.is_some(),
            learn: config.learn,
        };
        let queues = worker::Queues { jobs, results, follow_ups };
        let handler = handlers::handler(&config.handler).context("handler")?;
        let (metrics, tracker) = (self.monitor.metrics.clone(), self.monitor.tracker.clone());
        Ok(Worker::new(options, queues, handler, service, clock, metrics, tracker))
    }
}

/// Returns the longest window of limits. A message may have to wait for that long.
fn longest_window<'l>(limits: impl IntoIterator<Item = &'l Limit>) -> Span {
    limits.into_iter().map(Limit::window).max().unwrap_or_default()
}

/// Returns the number of messages that a worker fetches beyond those in progress.
///
/// A booked message is delivered [`DELIVERED_AHEAD`] before its start, and RabbitMQ delivers it up to `delay_min`
/// before that. Until the start, the worker holds it. If held messages were all that it may fetch, it would
/// fetch none of those behind them, some of which start earlier, and these would come too late.
fn prefetch(config: &config::WorkerOptions, jobs: &Queue, is_booked: bool) -> u16 {
    let Capabilities { lease, delay_min, .. } = jobs.capabilities();
    let needed = match lease {
        LeaseKind::Connection if is_booked => {
            booked_prefetch(&config.limits, DELIVERED_AHEAD + delay_min)
        }
        _ => PREFETCH,
    };
    let given = config.prefetch.unwrap_or(needed);
    if given.saturating_add(config.concurrency) < needed {
        warn!(
            queue = jobs.name(),
            prefetch = given,
            needed = needed.saturating_sub(config.concurrency),
            "booked messages can come too late: raise workers[].prefetch, or remove it"
        );
    }
    given
}

/// Returns the number of booked messages that a worker fetches: those that start within `held`, and a few
/// that it delays again.
fn booked_prefetch(limits: &[Limit], held: Span) -> u16 {
    let requests = limits.iter().filter(|limit| limit.unit() == Unit::Requests);
    let due = requests.map(|limit| {
        let window = limit.window().as_micros().max(1);
        limit.rate().saturating_mul(held.as_micros()).div_ceil(window)
    });
    let due = due.min().unwrap_or(0).min(PREFETCH_MAX);
    u16::try_from(due).unwrap_or(u16::MAX).saturating_add(PREFETCH + DELAYED_AGAIN)
}

/// Cancels the jobs that still run a time after the process was asked to stop.
pub(crate) async fn bound_draining(stop: Stop, timeout: Option<Span>) {
    let Some(timeout) = timeout else { return };
    stop.drain.cancelled().await;
    tokio::time::sleep(timeout.into()).await;
    warn!(after = %timeout, "jobs did not finish in time: they are requeued (server.drain_timeout)");
    stop.now.cancel();
}

/// Waits until all tasks have ended.
pub(crate) async fn finish(mut running: JoinSet<()>) {
    while let Some(ended) = running.join_next().await {
        if let Err(panicked) = ended {
            error!(%panicked, "dispatcher or worker task panicked");
        }
    }
}

/// Waits until messages of cancelled jobs are back in their queues, so that they are not leased after
/// this process has ended.
pub(crate) async fn flush(queues: &LazyQueues) {
    if tokio::time::timeout(FLUSH_TIMEOUT, queues.flush()).await.is_err() {
        warn!("some unfinished jobs were not requeued: they are delivered when their lease ends");
    }
}

/// Open queues by name. Each is opened once, so that its users share the statistics.
struct OpenQueues<'q> {
    queues: &'q Queues,
    missing: MissingQueue,
    open: BTreeMap<String, Queue>,
}

impl OpenQueues<'_> {
    async fn queue(&mut self, name: &str, dead_letter: Option<&str>) -> anyhow::Result<Queue> {
        if let Some(queue) = self.open.get(name).filter(|_| dead_letter.is_none()) {
            return Ok(queue.clone());
        }
        let queue = self.queues.queue_with(name, dead_letter, self.missing).await?;
        self.open.insert(name.to_owned(), queue.clone());
        Ok(queue)
    }

    /// Opens a queue to receive from. Checks its dead-letter queue, unless it was created with it.
    async fn source(&mut self, name: &str, dead_letter: Option<&str>) -> anyhow::Result<Queue> {
        let queue = self.queue(name, dead_letter).await?;
        if self.missing == MissingQueue::Create {
            return Ok(queue);
        }
        match queue.check_dead().await {
            // The login may be allowed to send to it only.
            Err(error @ Error::Refused { .. }) => {
                let dead_letter_queue = queue.dead_letter_name();
                warn!(dead_letter_queue, %error, "dead-letter queue not checked");
            }
            checked => checked.with_context(|| format!("dead-letter queue of {name}"))?,
        }
        Ok(queue)
    }
}

/// Returns the names of all providers.
fn providers(config: &Config) -> Vec<String> {
    let dispatched = config.dispatch.iter().flat_map(|dispatch| &dispatch.providers);
    let mut names: Vec<String> = dispatched.map(|provider| provider.name.clone()).collect();
    for worker in &config.workers {
        if !names.contains(&worker.provider) {
            names.push(worker.provider.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_window_of_several_limits_counts() {
        let limits = ["500/min", "10/day", "5 concurrent"];
        let limits = limits.map(|text| text.parse::<Limit>().expect("a limit"));
        assert_eq!(longest_window(&limits), Span::from_secs(86_400));
        assert_eq!(longest_window([]), Span::ZERO);
    }
}
