//! One attempt at one message by a worker: wait for the limit, run the handler, settle the message.
//!
//! ```text
//! turn ─→ work ─→ done:      publish results and follow-up messages, each confirmed, then ack;
//!   │                          if a queue fails, keep them and publish them later
//!   │               failed:    retry after a backoff; after the last attempt, dead letter
//!   │               permanent: dead letter
//!   │               limited:   back to the queue until the provider accepts calls; no attempt
//!   └─ long wait: back to the queue until the limit admits it; no attempt
//! ```

use std::time::Duration;

use sluicegate_core::plan::Handle;
use sluicegate_core::time::{Clock, Span};
use sluicegate_pace::StartWindow;
use sluicegate_queue::{DeadLetterReason, Delivery, DeliveryTime, Error, Message, Unsettled};
use sluicegate_service::trace::{SpanKind, TraceSpan};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::finished::Outbox;
use crate::handler::{
    self, FailureKind, HandlerResult, Job, JobFailure, JobSuccess, LatestStart, PreparedCall,
};
use crate::limits::Turn;
use crate::metrics::WorkerCounter;
use crate::settle::{hold_if_unsettled, until_settled};
use crate::stop::Stop;
use crate::tier::{Booking, Tier, admission_id};
use crate::trace;
use crate::tracker::{JobEvent, JobStatus};
use crate::worker::Worker;

/// Maximum time a worker holds a message that waits for its limit; longer waits go back to the
/// queue.
const HOLD_MAX: Span = Span::from_secs(5);
/// Time before its start at which the call of a booked message is prepared. It is longer than a
/// login and a connection take.
const PREPARE_AHEAD: Span = Span::from_secs(1);
/// Timeout of the last attempt to publish the results of a job when the worker stops.
const LAST_PUBLISH: Duration = Duration::from_secs(5);
/// Last part of the wait for a start. A stop of the worker does not interrupt it.
const EXACT: Span = Span::from_millis(3);
/// Minimum delay of a message that goes back to the queue.
const DEFER_MIN: Span = Span::from_millis(10);

/// The next step for a message.
enum NextStep {
    /// Run the handler in this window. The handle gives the turn back.
    Go(Option<Handle>, StartWindow),
    /// Ask the limiter again after this time.
    Wait(Span),
    /// Return the message to the queue for this time.
    Defer(Span),
    /// The limits of this rule can never admit the message.
    Never(String),
}

impl Worker {
    /// Processes a message until it is settled.
    pub(crate) async fn work(&self, mut delivery: Delivery, stop: &Stop) -> Result<(), Error> {
        if let Some(outbox) = self.finished.take(&delivery.message().id()) {
            // The work is done; only its end was not recorded.
            return self.publish(delivery, outbox, stop).await;
        }
        let provider = self.options.provider.as_str();
        let mut job = Job::new(delivery.message().clone(), self.options.provider.clone());
        let mut prepared = None;
        // A booked message waits for its start before it takes a concurrency slot of the worker.
        if let Some(booking) = Booking::of(delivery.message()).filter(|_| self.limits.is_on()) {
            let wait = booking.wait(self.clock.now());
            if wait > HOLD_MAX {
                return self.defer(delivery, wait, None, stop).await;
            }
            let early = wait.saturating_sub(self.provider_limits.lead() + PREPARE_AHEAD);
            if early > Span::ZERO && !self.wait(&delivery, stop, early).await {
                return delivery.requeue().await;
            }
            prepared = Some(delivery.with_lease(self.handler.prepare(&job)).await);
            let wait = booking.wait(self.clock.now());
            let wait = wait.saturating_sub(self.provider_limits.lead());
            if wait > Span::ZERO && !self.wait(&delivery, stop, wait).await {
                return delivery.requeue().await;
            }
        }
        let slot = tokio::select! {
            biased;
            () = stop.drain.cancelled() => return delivery.requeue().await,
            slot = delivery.with_lease(self.slots.acquire()) => slot,
        };
        let _slot = slot.unwrap_or_else(|_| unreachable!("the semaphore is never closed"));
        let mut first = true;
        let mut admission = None;
        let handled = loop {
            job.latest_start = None;
            // Checked in each round: limits may be turned off while the message waits for them.
            while self.limits.is_on() {
                if first {
                    self.metrics.count(provider, WorkerCounter::Checked);
                }
                if !prepared.as_ref().is_some_and(PreparedCall::is_ready) {
                    prepared = Some(delivery.with_lease(self.handler.prepare(&job)).await);
                }
                let next = self.turn(&mut delivery).await;
                if first && !matches!(next, NextStep::Go(..)) {
                    self.metrics.count(provider, WorkerCounter::Blocked);
                }
                first = false;
                match next {
                    NextStep::Go(handle, window) => {
                        // `window.start` waits for the last few milliseconds, more exactly than a
                        // timer.
                        let wait = window.wait(self.provider_limits.now()).saturating_sub(EXACT);
                        if wait > Span::ZERO && !self.wait(&delivery, stop, wait).await {
                            self.provider_limits.cancel(handle).await;
                            return delivery.requeue().await;
                        }
                        if let Some(late) = window.start(|| self.provider_limits.now()).await {
                            self.provider_limits.started_after(late);
                            self.metrics.count(provider, WorkerCounter::Allowed);
                            admission = handle;
                            job.latest_start = self.latest_start(window);
                            break;
                        }
                        // The process was suspended or is overloaded. Starting now could exceed the
                        // limit.
                        self.provider_limits.started_after(window.late(self.provider_limits.now()));
                        self.provider_limits.cancel(handle).await;
                    }
                    NextStep::Wait(span) => {
                        self.track(&delivery, JobEvent::Waiting, |status| {
                            status.until(self.clock.now() + span)
                        });
                        if !self.wait(&delivery, stop, span).await {
                            return delivery.requeue().await;
                        }
                    }
                    NextStep::Defer(_) if !self.limits.is_on() => {}
                    NextStep::Defer(span) => return self.defer(delivery, span, None, stop).await,
                    NextStep::Never(rule) => {
                        let reason = format!("the limits of rule {rule} can never admit it");
                        let reason = DeadLetterReason::new(reason.clone()).with_stack(reason);
                        return self.dead_letter(delivery, reason, stop).await;
                    }
                }
            }
            self.track(&delivery, JobEvent::InWork, |status| status);
            self.metrics.busy(provider, 1);
            let busy = DropGuard(|| self.metrics.busy(provider, -1));
            drop(prepared.take());
            let handled = delivery.with_lease(self.handle(&mut job)).await;
            drop(busy);
            if handled.is_late() {
                // The process was suspended between the start of the turn and the call.
                self.provider_limits.cancel(admission.take()).await;
                continue;
            }
            break handled;
        };
        if let Some(usage) = &handled.usage {
            self.provider_limits.settle(admission, usage).await;
        }
        let pause = self.learn(&handled).await;
        match handled.outcome {
            Ok(done) => self.done(delivery, done, stop).await,
            Err(failure) => self.failed(delivery, failure, pause, stop).await,
        }
    }

    /// Returns the end of the interval in which the provider may be called, if it has one.
    fn latest_start(&self, window: StartWindow) -> Option<LatestStart> {
        let limits = self.provider_limits.clone();
        window.has_end().then(|| LatestStart::new(move || window.is_over(limits.now())))
    }

    /// Asks the limiter if a message may go.
    async fn turn(&self, delivery: &mut Delivery) -> NextStep {
        // A store that does not answer must not cost the lease.
        let turn = delivery.with_lease(self.ask(delivery.message())).await;
        self.next_step(delivery, turn)
    }

    async fn ask(&self, message: &Message) -> Turn {
        if self.options.booked {
            return self.claim(message).await;
        }
        // The id of the job is not used: a redelivered message may have been processed before, and
        // two calls to the provider have to be counted twice.
        let turn = self.provider_limits.acquire(Tier::Worker, None).await;
        if let Turn::Later(span) = &turn
            && *span > HOLD_MAX
        {
            // The other messages in the queue would have to wait as well.
            self.limit_for(*span);
        }
        turn
    }

    /// Claims the booking of a message, or makes one.
    async fn claim(&self, message: &Message) -> Turn {
        match Booking::of(message) {
            Some(booking) => self.provider_limits.claim(booking.id).await,
            None => {
                let id = admission_id(message, Tier::Booked);
                self.provider_limits.book(id, Tier::Worker).await
            }
        }
    }

    fn next_step(&self, delivery: &mut Delivery, turn: Turn) -> NextStep {
        match turn {
            Turn::Go(handle, window) => NextStep::Go(handle, window),
            Turn::Booked(booked) => {
                let wait = booked.start.since(self.provider_limits.now());
                let booking = Booking { id: booked.id.id, start: self.clock.now() + wait };
                delivery.set_booking(Some(booking.to_string()));
                match wait > HOLD_MAX {
                    true => NextStep::Defer(wait),
                    false => NextStep::Wait(wait.saturating_sub(self.provider_limits.lead())),
                }
            }
            Turn::Later(span) | Turn::Busy(span) => wait_or_defer(span),
            // Counting a deferral gives the message a new id: the id of this turn may have been
            // used.
            Turn::Gone => {
                delivery.set_booking(None);
                delivery.count_deferral();
                NextStep::Wait(Span::ZERO)
            }
            // A claim is not decided by the outage policy. A new booking under the same id is.
            Turn::Unanswered(span) => {
                delivery.set_booking(None);
                NextStep::Wait(span)
            }
            Turn::Never(rule) => NextStep::Never(rule),
        }
    }

    /// Runs the handler as a span; calls and follow-up messages of the handler continue it.
    async fn handle(&self, job: &mut Job) -> HandlerResult {
        let span = self.tracer.child("handler", SpanKind::Internal);
        trace::stamp(&mut job.message, &span);
        let handled = span.run(self.call(job)).await;
        if let Err(failure) = &handled.outcome {
            span.fail(|| failure.message.clone());
        }
        handled
    }

    /// Runs the handler with the attempt's timeout.
    async fn call(&self, job: &Job) -> HandlerResult {
        let timeout_after = Duration::from(self.options.timeout);
        match timeout(timeout_after, self.handler.handle(job)).await {
            Ok(handled) => handled,
            Err(_) => {
                let message = format!("timed out after {}", self.options.timeout);
                JobFailure::transient(message).into()
            }
        }
    }

    /// Pauses the provider for all workers if its response asks for that; returns the length of the
    /// pause.
    async fn learn(&self, handled: &HandlerResult) -> Option<Span> {
        let rate_limit_info = handled.rate_limit_info.as_ref()?;
        let pause = self.limit_observer.pause(rate_limit_info, self.clock.now())?;
        let provider = self.options.provider.as_str();
        self.provider_limits.close(pause).await;
        self.metrics.count(provider, WorkerCounter::Paused);
        info!(provider, status = rate_limit_info.status, pause = %pause.in_words(), "provider asked for a pause");
        if !self.options.booked && pause > HOLD_MAX {
            self.close_for(pause);
        }
        Some(pause)
    }

    async fn done(&self, delivery: Delivery, done: JobSuccess, stop: &Stop) -> Result<(), Error> {
        let message = delivery.message();
        let JobSuccess { result, follow_ups, next_page, unchanged: _ } = done;
        let mut outbox = Outbox::new();
        if let (Some(output), Some(results)) = (result, &self.queues.results) {
            let mut result = Message::of_job(message.meta.job.clone(), output.body);
            result.content_type = output.content_type;
            result.kind.clone_from(&message.kind);
            result.headers.clone_from(&message.headers);
            result.headers.insert("provider".to_owned(), self.options.provider.clone());
            result.meta.hop = message.meta.hop + 1;
            outbox.push((results.clone(), vec![result]));
        }
        for (queue, batch) in by_queue(follow_ups) {
            let Some(queue) = self.queues.follow_ups.iter().find(|other| other.name() == queue)
            else {
                let reason = format!(
                    "follow-up message to undeclared queue {queue:?}: declare it in the configuration"
                );
                let reason = DeadLetterReason::new(reason.clone()).with_stack(reason);
                return self.dead_letter(delivery, reason, stop).await;
            };
            outbox.push((queue.clone(), batch));
        }
        if let Some(next) = next_page {
            outbox.push((self.queues.jobs.clone(), vec![next]));
        }
        let spans = self.stamp(&mut outbox);
        let published = self.publish(delivery, outbox, stop).await;
        if let Err(error) = &published {
            spans.iter().for_each(|span| span.fail(|| error.to_string()));
        }
        published
    }

    /// Starts a span for each queue that messages are sent to; their receivers continue it.
    fn stamp(&self, outbox: &mut Outbox) -> Vec<TraceSpan> {
        if !self.tracer.is_on() {
            return Vec::new();
        }
        let sending = outbox.iter_mut().map(|(queue, batch)| {
            let span = trace::sending(&self.tracer, queue);
            batch.iter_mut().for_each(|message| trace::stamp(message, &span));
            span
        });
        sending.collect()
    }

    /// Publishes the messages of a finished job and acknowledges it. If a queue fails, the messages
    /// are kept and published later: the work is not repeated.
    async fn publish(
        &self,
        mut delivery: Delivery,
        mut outbox: Outbox,
        stop: &Stop,
    ) -> Result<(), Error> {
        let message = delivery.message().clone();
        if let [(queue, batch)] = &outbox[..]
            && let [result] = &batch[..]
            && delivery.completes_atomically(queue)
        {
            match delivery.complete(queue, result.clone()).await {
                Ok(()) => {
                    self.metrics.queues.works(queue.name());
                    self.finish(&message);
                    return Ok(());
                }
                // Tried again below, where failures of the queue are handled.
                Err(Unsettled { delivery: Some(unsettled), .. }) => delivery = *unsettled,
                Err(Unsettled { error, delivery: None }) => {
                    self.finished.insert(message.id(), outbox);
                    return Err(error);
                }
            }
        }
        while let Some(wait) = match self.publish_once(&delivery, &mut outbox).await {
            Ok(wait) => wait,
            Err((queue, error)) => {
                let reason = format!("the job is done, but {queue} can't take its result: {error}");
                let stack = handler::stack(&reason, &[error.to_string()]);
                let reason = DeadLetterReason::new(reason)
                    .with_stack(stack)
                    .with("attempts", message.meta.attempt + 1)
                    .with("provider", self.options.provider.as_str());
                return self.dead_letter(delivery, reason, stop).await;
            }
        } {
            if !delivery.with_lease(stop.sleep(wait.into())).await {
                let last = timeout(LAST_PUBLISH, self.publish_once(&delivery, &mut outbox)).await;
                if matches!(last, Ok(Ok(None))) {
                    break;
                }
                let job = &message.meta.job;
                warn!(%job, "job done, but its results are not published: it will be done again");
                return delivery.requeue().await;
            }
            if delivery.extend().await == Err(Error::Lost) {
                // The broker delivers the message again, and this process need not repeat the work.
                self.finished.insert(message.id(), outbox);
                return Err(Error::Lost);
            }
        }
        if let Err(error) = delivery.ack().await {
            self.finished.insert(message.id(), outbox);
            return Err(error);
        }
        self.finish(&message);
        Ok(())
    }

    /// Records that a job is done.
    fn finish(&self, message: &Message) {
        self.metrics.count(&self.options.provider, WorkerCounter::Done);
        self.track_message(message, JobEvent::Done, |status| status);
    }

    /// Publishes what is in the outbox and removes it from there. Returns the time to wait if a
    /// queue failed, or the queue and the error if a message can never be published.
    async fn publish_once(
        &self,
        delivery: &Delivery,
        outbox: &mut Outbox,
    ) -> Result<Option<Span>, (String, Error)> {
        let mut wait = None;
        for (queue, batch) in outbox.iter_mut().filter(|(_, batch)| !batch.is_empty()) {
            let sending = batch.iter().map(|message| (message.clone(), DeliveryTime::Now));
            let sent = delivery.with_lease(queue.send_batch(sending.collect())).await;
            let mut failure = None;
            let mut sent = sent.into_iter();
            batch.retain(|_| match sent.next() {
                Some(Err(error)) => {
                    failure = Some(error);
                    true
                }
                _ => false,
            });
            match failure {
                None => self.metrics.queues.works(queue.name()),
                Some(error) if error.is_permanent() => {
                    return Err((queue.name().to_owned(), error));
                }
                Some(error) => {
                    let again = self.metrics.queues.failed(queue.name(), &error, self.clock.now());
                    wait = wait.max(Some(again.max(DEFER_MIN)));
                }
            }
        }
        Ok(wait)
    }

    async fn failed(
        &self,
        mut delivery: Delivery,
        failure: JobFailure,
        pause: Option<Span>,
        stop: &Stop,
    ) -> Result<(), Error> {
        let provider = self.options.provider.as_str();
        let failures = delivery.message().meta.attempt + 1;
        if failure.kind == FailureKind::Limited {
            let wait = pause.unwrap_or_else(|| self.options.backoff.most(1));
            delivery.set_booking(None);
            return self.defer(delivery, wait, Some(&failure.message), stop).await;
        }
        self.metrics.count(provider, WorkerCounter::Failed);
        let stack = failure.stack();
        let JobFailure { kind, message: error, response, .. } = failure;
        let attempts = delivery.message().meta.max_attempts.unwrap_or(self.options.attempts);
        if kind == FailureKind::Permanent || failures >= attempts.max(1) {
            let reason = DeadLetterReason::new(error)
                .with_stack(stack)
                .with("attempts", failures)
                .with("provider", provider)
                .with("response", response);
            return self.dead_letter(delivery, reason, stop).await;
        }
        let wait = self.options.backoff.wait(failures);
        let until = self.clock.now() + wait;
        let message = delivery.message().clone();
        warn!(job = %message.meta.job, provider, failures, error, "attempt failed: retrying");
        delivery.set_booking(None);
        let retry = |delivery: Delivery| delivery.retry(DeliveryTime::At(until));
        match self.try_settle(delivery, self.queues.jobs.name(), stop, retry).await {
            Ok(()) => {}
            // Its body has about the maximum size of the broker. A worker that gets it again would call
            // the provider without counting the attempts.
            Err(Unsettled { error: unpublished, delivery: Some(unsettled) }) => {
                let reason = format!("{error}; it can't be sent again: {unpublished}");
                let reason = DeadLetterReason::new(reason)
                    .with_stack(stack)
                    .with("attempts", failures)
                    .with("provider", provider)
                    .with("response", response);
                return self.dead_letter(*unsettled, reason, stop).await;
            }
            Err(unsettled) => return Err(unsettled.error),
        }
        self.track_message(&message, JobEvent::Retried, |status| {
            status.until(until).because(&error)
        });
        Ok(())
    }

    /// Returns a message to the queue until its limit admits it. `refusal` is the provider's, if it
    /// refused the job.
    async fn defer(
        &self,
        delivery: Delivery,
        wait: Span,
        refusal: Option<&str>,
        stop: &Stop,
    ) -> Result<(), Error> {
        let message = delivery.message().clone();
        let until = self.clock.now() + wait.max(DEFER_MIN);
        let defer = |delivery: Delivery| delivery.defer(DeliveryTime::At(until));
        self.settle(delivery, self.queues.jobs.name(), stop, defer).await?;
        self.metrics.count(&self.options.provider, WorkerCounter::Requeued);
        self.track_message(&message, JobEvent::Deferred, |status| {
            let status = status.until(until);
            refusal.into_iter().fold(status, JobStatus::because)
        });
        Ok(())
    }

    async fn dead_letter(
        &self,
        delivery: Delivery,
        reason: DeadLetterReason,
        stop: &Stop,
    ) -> Result<(), Error> {
        let message = delivery.message().clone();
        let provider = self.options.provider.as_str();
        let error = reason.message.clone();
        warn!(job = %message.meta.job, provider, error, "job dead-lettered");
        let dead_letter = |delivery: Delivery| delivery.dead_letter(reason.clone());
        self.settle(delivery, self.queues.jobs.dead_letter_name(), stop, dead_letter).await?;
        self.metrics.count(provider, WorkerCounter::Dead);
        self.track_message(&message, JobEvent::Dead, |status| status.because(&error));
        Ok(())
    }

    /// Repeats an operation that publishes to `queue` until it has settled the delivery.
    async fn settle<F>(
        &self,
        delivery: Delivery,
        queue: &str,
        stop: &Stop,
        operation: impl Fn(Delivery) -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Unsettled>> + Send,
    {
        let settled = self.try_settle(delivery, queue, stop, operation).await;
        hold_if_unsettled(settled, stop).await
    }

    /// Like [`Worker::settle`], but returns the delivery if the message can never be published.
    async fn try_settle<F>(
        &self,
        delivery: Delivery,
        queue: &str,
        stop: &Stop,
        operation: impl Fn(Delivery) -> F,
    ) -> Result<(), Unsettled>
    where
        F: Future<Output = Result<(), Unsettled>> + Send,
    {
        let states = (&self.metrics.queues, &*self.clock);
        until_settled(delivery, queue, states, stop, operation).await
    }

    fn track(
        &self,
        delivery: &Delivery,
        event: JobEvent,
        with: impl FnOnce(JobStatus) -> JobStatus,
    ) {
        self.track_message(delivery.message(), event, with);
    }

    pub(crate) fn track_message(
        &self,
        message: &Message,
        event: JobEvent,
        with: impl FnOnce(JobStatus) -> JobStatus,
    ) {
        let status = JobStatus::new(message, event, self.queues.jobs.name(), self.clock.now());
        self.tracker.record(&message.meta.job, with(status.of(&self.options.provider)));
    }
}

/// Holds the message for a short wait and returns it to the queue for a long one.
fn wait_or_defer(span: Span) -> NextStep {
    if span > HOLD_MAX { NextStep::Defer(span) } else { NextStep::Wait(span) }
}

/// Groups messages into one batch per queue, in the order in which the queues first appear.
fn by_queue(follow_ups: Vec<(String, Message)>) -> Vec<(String, Vec<Message>)> {
    let mut batches: Vec<(String, Vec<Message>)> = Vec::new();
    for (queue, message) in follow_ups {
        match batches.iter_mut().find(|(other, _)| *other == queue) {
            Some((_, batch)) => batch.push(message),
            None => batches.push((queue, vec![message])),
        }
    }
    batches
}

/// A guard that calls a function when it is dropped, also if the work is cancelled.
struct DropGuard<F: Fn()>(F);

impl<F: Fn()> Drop for DropGuard<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
