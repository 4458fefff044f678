//! The second tier: takes the messages of one provider, waits for the turn of each, and lets a
//! handler do the work.
//!
//! Who has to wait for long goes back to the queue until its moment, and nothing further is taken
//! meanwhile: what is not in hand stays where it is, so that nothing goes round in circles.

use std::sync::Arc;

use sluicegate_config::LearnOptions;
use sluicegate_core::query::Cost;
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_queue::{Delivery, Queue};
use sluicegate_service::Service;
use tokio::sync::{Semaphore, watch};
use tracing::info;

use crate::handler::Handler;
use crate::intake;
use crate::learn::Ear;
use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::retry::Backoff;
use crate::stop::Stop;
use crate::switch::Switch;
use crate::tracker::Tracker;

/// What a worker is told to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whom the work is for.
    pub provider: String,
    /// What a job is taken for by its limits.
    pub estimate: Cost,
    /// How many jobs are in work at the same time.
    pub concurrency: u16,
    /// How many messages are taken beyond these.
    pub prefetch: u16,
    /// How often a job may fail before it goes to the dead letters, at least once.
    pub attempts: u32,
    /// How attempts are spaced.
    pub backoff: Backoff,
    /// How long one attempt may take.
    pub timeout: Span,
    /// Whether limits are asked.
    pub enabled: bool,
    /// Whether work that comes without a booking gets one: where dispatchers book, too.
    pub booked: bool,
    /// What is learned from answers; nothing, without it.
    pub learn: Option<LearnOptions>,
}

/// Where the messages of a worker come from, and where what comes of them goes.
#[derive(Clone, Debug)]
pub struct Queues {
    /// The jobs.
    pub jobs: Queue,
    /// What came of them, if anybody wants to know.
    pub results: Option<Queue>,
    /// Queues for further work, by their names.
    pub further: Vec<Queue>,
}

/// A worker. Any number of them may work side by side.
pub struct Worker {
    pub(crate) options: Options,
    pub(crate) limits: Switch,
    pub(crate) queues: Queues,
    pub(crate) pace: Pace,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) ear: Ear,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) tracker: Tracker,
    /// A job in work holds one.
    pub(crate) slots: Semaphore,
    /// Nothing is taken before this, by the clock of the queue.
    closed_until: watch::Sender<Timestamp>,
}

impl Worker {
    /// A worker for the jobs of a queue. The clock is that of the queues.
    pub fn new(
        options: Options,
        queues: Queues,
        handler: Arc<dyn Handler>,
        service: &Arc<Service>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        tracker: Tracker,
    ) -> Arc<Self> {
        metrics.show_worked(&options.provider);
        let pace = Pace::new(service.clone(), options.provider.clone(), options.estimate);
        let slots = Semaphore::new(options.concurrency.max(1).into());
        let ear = Ear::new(options.learn);
        let closed_until = watch::Sender::default();
        let limits = Switch::new(options.enabled);
        Arc::new(Self {
            options,
            limits,
            queues,
            pace,
            handler,
            ear,
            clock,
            metrics,
            tracker,
            slots,
            closed_until,
        })
    }

    /// Asks limits from now on, or does not: then messages in hand go at once.
    ///
    /// Either way further messages are taken, although a limit had closed the queue: the limit may
    /// be another one by now.
    pub fn enable(&self, enabled: bool) {
        self.limits.turn(enabled);
        self.reopen();
    }

    /// Works until it is told to stop.
    pub async fn run(self: Arc<Self>, stop: Stop) {
        let Options { provider, concurrency, prefetch, .. } = &self.options;
        let queue = &self.queues.jobs;
        info!(provider, queue = queue.name(), concurrency, "working");
        let see_through = |delivery: Delivery| {
            let (worker, stop) = (self.clone(), stop.clone());
            async move { worker.work(delivery, &stop).await }
        };
        let open = || {
            let worker = self.clone();
            async move { worker.open().await }
        };
        let most = concurrency.max(&1).saturating_add(*prefetch);
        intake::run(queue, most, &stop, open, see_through).await;
        info!(provider, queue = queue.name(), "stopped working");
    }

    /// Waits until something may be taken.
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

    /// Takes nothing for so long.
    pub(crate) fn close_for(&self, span: Span) {
        let until = self.clock.now() + span;
        self.closed_until.send_modify(|closed| *closed = until.max(*closed));
    }

    /// Takes nothing for so long, because a limit says so.
    pub(crate) fn limit_for(&self, span: Span) {
        self.close_for(span);
        // Whoever turned limits off has opened the queue after that, which may have been before.
        if !self.limits.is_on() {
            self.reopen();
        }
    }

    fn reopen(&self) {
        self.closed_until.send_replace(Timestamp::default());
    }

    /// Waits for a limit, with a message in hand, until limits are turned off; false if the process
    /// is to come to an end before.
    pub(crate) async fn wait(&self, delivery: &Delivery, stop: &Stop, span: Span) -> bool {
        tokio::select! {
            slept = delivery.with_lease(stop.sleep(span.into())) => slept,
            () = self.limits.is_off() => true,
        }
    }
}
