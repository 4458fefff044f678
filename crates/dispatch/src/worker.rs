//! [`Worker`], the second tier: receives the messages of one provider, waits until the limit admits
//! each, and runs the handler.
//!
//! A message that has to wait long goes back to the queue, and the worker receives no further
//! messages meanwhile: otherwise each of them would be received and requeued over and over.

use std::sync::Arc;

use sluicegate_config::LearnOptions;
use sluicegate_core::query::Cost;
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_queue::{
    Backoff, ConsumerObserver, DeadLetterReason, Delivery, Error, Message, Queue,
};
use sluicegate_service::Service;
use sluicegate_service::trace::{SpanKind, Tracer};
use tokio::sync::{Semaphore, watch};
use tracing::info;

use crate::finished::FinishedJobs;
use crate::handler::Handler;
use crate::learn::LimitObserver;
use crate::limit_switch::LimitSwitch;
use crate::limits::ProviderLimits;
use crate::metrics::{Metrics, WorkerCounter};
use crate::receive;
use crate::stop::Stop;
use crate::tier::Tier;
use crate::trace;
use crate::tracker::{JobEvent, JobTracker};

/// Configuration of a worker.
#[derive(Clone, Debug)]
pub struct Options {
    /// Provider that the jobs are for.
    pub provider: String,
    /// Estimated cost of a job, charged to the limits.
    pub estimate: Cost,
    /// Maximum number of jobs running at the same time.
    pub concurrency: u16,
    /// Number of messages received in advance of these.
    pub prefetch: u16,
    /// Maximum number of failed attempts before a job is dead-lettered; 0 counts as 1.
    pub attempts: u32,
    /// Backoff between attempts.
    pub backoff: Backoff,
    /// Timeout of one attempt.
    pub timeout: Span,
    /// True if limits are enforced.
    pub enabled: bool,
    /// True if a message without a booking gets one; used where dispatchers book, too.
    pub booked: bool,
    /// Learning of limits from provider responses; `None` turns it off.
    pub learn: Option<LearnOptions>,
}

/// The queues of a worker.
#[derive(Clone, Debug)]
pub struct Queues {
    /// Queue of jobs.
    pub jobs: Queue,
    /// Queue for results, if they are wanted.
    pub results: Option<Queue>,
    /// Queues for follow-up messages.
    pub follow_ups: Vec<Queue>,
}

/// A worker. Several may run side by side.
pub struct Worker {
    pub(crate) options: Options,
    pub(crate) limits: LimitSwitch,
    pub(crate) queues: Queues,
    pub(crate) provider_limits: Arc<ProviderLimits>,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) limit_observer: LimitObserver,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) tracker: JobTracker,
    pub(crate) tracer: Tracer,
    /// Jobs whose work is done, but whose message could not be acknowledged.
    pub(crate) finished: FinishedJobs,
    /// Permits for running jobs.
    pub(crate) slots: Semaphore,
    /// Time before which no message is received, by the clock of the queue.
    closed_until: watch::Sender<Timestamp>,
}

impl Worker {
    /// Creates a worker for a queue of jobs. `clock` must be the clock of the queues.
    pub fn new(
        options: Options,
        queues: Queues,
        handler: Arc<dyn Handler>,
        service: &Arc<Service>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        tracker: JobTracker,
    ) -> Arc<Self> {
        metrics.show_worked(&options.provider);
        let (name, estimate) = (options.provider.clone(), options.estimate);
        let provider_limits = ProviderLimits::new(service.clone(), name, estimate, options.timeout);
        provider_limits.show_pacing(&metrics, Tier::Worker);
        let provider_limits = Arc::new(provider_limits);
        tracker.add_provider(&provider_limits);
        let slots = Semaphore::new(options.concurrency.max(1).into());
        let limit_observer = LimitObserver::new(options.learn);
        let closed_until = watch::Sender::default();
        let limits = LimitSwitch::new(options.enabled);
        Arc::new(Self {
            options,
            limits,
            queues,
            provider_limits,
            handler,
            limit_observer,
            clock,
            metrics,
            tracker,
            tracer: service.tracer().clone(),
            finished: FinishedJobs::default(),
            slots,
            closed_until,
        })
    }

    /// Turns limits on or off. When off, messages in flight go at once.
    ///
    /// Either way the worker receives messages again even if a limit had closed the queue: the
    /// limit may have changed.
    pub fn enable(&self, enabled: bool) {
        self.limits.set(enabled);
        self.reopen();
    }

    /// Processes messages until `stop` asks to drain.
    pub async fn run(self: Arc<Self>, stop: Stop) {
        let Options { provider, concurrency, prefetch, .. } = &self.options;
        let queue = &self.queues.jobs;
        info!(provider, queue = queue.name(), concurrency, "worker started");
        let process = |delivery: Delivery| {
            let (worker, stop) = (self.clone(), stop.clone());
            async move {
                let (tracer, jobs) = (&worker.tracer, &worker.queues.jobs);
                let span = trace::received(tracer, "process", jobs, delivery.message());
                span.set("sluicegate.provider", || worker.options.provider.clone());
                trace::receive(span, worker.work(delivery, &stop)).await
            }
        };
        let open = || {
            let worker = self.clone();
            async move { worker.open().await }
        };
        let most = concurrency.max(&1).saturating_add(*prefetch);
        let states = (&self.metrics.queues, &*self.clock);
        receive::run(queue, most, self.clone(), states, &stop, open, process).await;
        info!(provider, queue = queue.name(), "worker stopped");
    }

    /// Waits until messages may be received.
    async fn open(&self) {
        let mut closed = self.closed_until.subscribe();
        loop {
            let left = closed.borrow_and_update().since(self.clock.now());
            if left == Span::ZERO {
                return;
            }
            let _ = tokio::time::timeout(left.into(), closed.changed()).await;
        }
    }

    /// Receives no messages for this time.
    pub(crate) fn close_for(&self, span: Span) {
        let until = self.clock.now() + span;
        self.closed_until.send_modify(|closed| *closed = until.max(*closed));
    }

    /// Receives no messages for this time because of a limit.
    pub(crate) fn limit_for(&self, span: Span) {
        self.close_for(span);
        // Limits may have been turned off, and the queue reopened, just before it was closed here.
        if !self.limits.is_on() {
            self.reopen();
        }
    }

    fn reopen(&self) {
        self.closed_until.send_replace(Timestamp::default());
    }

    /// Waits for a limit with a message in flight, or until limits are turned off. Returns false if
    /// a drain was signalled before.
    pub(crate) async fn wait(&self, delivery: &Delivery, stop: &Stop, span: Span) -> bool {
        let _span = self.tracer.child("wait", SpanKind::Internal);
        tokio::select! {
            slept = delivery.with_lease(stop.sleep(span.into())) => slept,
            () = self.limits.turned_off() => true,
        }
    }
}

/// Messages that the consumer of the worker does not hand out.
impl ConsumerObserver for Worker {
    fn on_dead_letter(&self, message: &Message, reason: &DeadLetterReason) {
        self.metrics.count(&self.options.provider, WorkerCounter::Dead);
        self.track_message(message, JobEvent::Dead, |status| status.because(&reason.message));
    }

    fn on_failure(&self, queue: &str, error: &Error) {
        self.metrics.queues.failed(queue, error, self.clock.now());
    }

    fn on_published(&self, queue: &str) {
        self.metrics.queues.works(queue);
    }
}
