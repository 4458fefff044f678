//! One attempt at one message by a worker: wait for the limit, run the handler, settle the message.
//!
//! ```text
//! turn ─→ work ─→ done:      publish results and follow-up messages, each confirmed, then ack
//!   │               failed:    retry after a backoff; after the last attempt, dead letter
//!   │               permanent: dead letter
//!   │               limited:   back to the queue until the provider accepts calls; no attempt
//!   └─ long wait: back to the queue until the limit admits it; no attempt
//! ```

use std::time::Duration;

use sluicegate_core::time::{Clock, Span};
use sluicegate_queue::{DeadLetterReason, Delivery, DeliveryTime, Error, Message};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::handler::{Done, Failure, FailureKind, Handled, Job};
use crate::metrics::Count;
use crate::pace::{Claimed, Turn};
use crate::stop::Stop;
use crate::tier::{Booking, Tier, turn};
use crate::tracker::{Event, Sighting};
use crate::worker::Worker;

/// Maximum time a worker holds a message that waits for its limit; longer waits go back to the
/// queue.
const HOLD: Span = Span::from_secs(5);
/// Minimum delay of a message that goes back to the queue.
const BACK: Span = Span::from_millis(10);

/// The next step for a message.
enum Next {
    /// Run the handler.
    Go,
    /// Ask the limiter again after this time.
    Wait(Span),
    /// Return the message to the queue for this time.
    Back(Span),
    /// The limits of this rule can never admit the message.
    Never(String),
}

impl Worker {
    /// Processes a message until it is settled.
    pub(crate) async fn work(&self, mut delivery: Delivery, stop: &Stop) -> Result<(), Error> {
        // A booked message waits for its start time before it takes a concurrency slot.
        if let Some(booking) = Booking::of(delivery.message()).filter(|_| self.limits.is_on()) {
            let wait = booking.wait(self.clock.now());
            if wait > HOLD {
                return self.send_back(delivery, wait).await;
            }
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
        let provider = self.options.provider.as_str();
        let mut first = true;
        // Checked in each round: limits may be turned off while the message waits for them.
        while self.limits.is_on() {
            if first {
                self.metrics.count(provider, Count::Checked);
            }
            let next = self.turn(&mut delivery).await;
            if first && !matches!(next, Next::Go) {
                self.metrics.count(provider, Count::Blocked);
            }
            first = false;
            match next {
                Next::Go => {
                    self.metrics.count(provider, Count::Allowed);
                    break;
                }
                Next::Wait(span) => {
                    self.saw(&delivery, Event::Waiting, |seen| seen.until(self.clock.now() + span));
                    if !self.wait(&delivery, stop, span).await {
                        return delivery.requeue().await;
                    }
                }
                Next::Back(_) if !self.limits.is_on() => {}
                Next::Back(span) => return self.send_back(delivery, span).await,
                Next::Never(rule) => {
                    let reason = format!("the limits of rule {rule} can never admit it");
                    return self.bury(delivery, DeadLetterReason::new(reason)).await;
                }
            }
        }
        self.saw(&delivery, Event::InWork, |seen| seen);
        self.metrics.busy(provider, 1);
        let busy = Busy(|| self.metrics.busy(provider, -1));
        let job = Job { message: delivery.message().clone(), provider: provider.to_owned() };
        let handled = delivery.with_lease(self.call(&job)).await;
        drop(busy);
        let pause = self.learn(&handled).await;
        match handled.outcome {
            Ok(done) => self.done(delivery, done).await,
            Err(failure) => self.failed(delivery, failure, pause).await,
        }
    }

    /// Asks the limiter if a message may go.
    async fn turn(&self, delivery: &mut Delivery) -> Next {
        if self.options.booked {
            return self.claim(delivery).await;
        }
        // Not under the id of the job: a redelivered message may have been processed before, and
        // two calls to the provider have to be counted twice.
        match self.pace.acquire(Tier::Worker, None).await {
            Turn::Now => Next::Go,
            Turn::Later(span) if span > HOLD => {
                // The other messages in the queue would have to wait as well.
                self.limit_for(span);
                Next::Back(span)
            }
            Turn::Later(span) | Turn::Closed(span) => Next::Wait(span),
            Turn::Never(rule) => Next::Never(rule),
        }
    }

    /// Claims the booking of a message, or makes one.
    async fn claim(&self, delivery: &mut Delivery) -> Next {
        let Some(booking) = Booking::of(delivery.message()) else {
            let id = turn(delivery.message(), Tier::Booked);
            let asked = self.clock.now();
            return match self.pace.book(id, Tier::Worker).await {
                Ok((id, wait)) => {
                    let start = asked + wait;
                    delivery.set_booking(Some(Booking { id, start }.to_string()));
                    soon(wait)
                }
                Err(Turn::Now) => Next::Go,
                Err(Turn::Later(span)) => soon(span),
                Err(Turn::Closed(span)) => Next::Wait(span),
                Err(Turn::Never(rule)) => Next::Never(rule),
            };
        };
        let asked = self.clock.now();
        match self.pace.claim(booking.id).await {
            Claimed::Go => Next::Go,
            Claimed::Later(span) => {
                delivery.set_booking(Some(Booking { start: asked + span, ..booking }.to_string()));
                soon(span)
            }
            // Counting a deferral gives the message a new id: the id of this turn may have been
            // used.
            Claimed::Gone(span) => {
                delivery.set_booking(None);
                delivery.count_deferral();
                soon(span)
            }
        }
    }

    /// Runs the handler with the attempt's timeout.
    async fn call(&self, job: &Job) -> Handled {
        let patience = Duration::from(self.options.timeout);
        match timeout(patience, self.handler.handle(job)).await {
            Ok(handled) => handled,
            Err(_) => Handled {
                outcome: Err(Failure {
                    kind: FailureKind::Transient,
                    message: format!("timed out after {}", self.options.timeout),
                    response: None,
                }),
                heard: None,
            },
        }
    }

    /// Pauses the provider for all workers if its response asks for that; returns the length of the
    /// pause.
    async fn learn(&self, handled: &Handled) -> Option<Span> {
        let heard = handled.heard.as_ref()?;
        let pause = self.ear.pause(heard, self.clock.now())?;
        let provider = self.options.provider.as_str();
        self.pace.close(pause).await;
        self.metrics.count(provider, Count::Paused);
        info!(provider, status = heard.status, pause = %pause, "provider asked for a pause");
        if !self.options.booked && pause > HOLD {
            self.close_for(pause);
        }
        Some(pause)
    }

    async fn done(&self, delivery: Delivery, done: Done) -> Result<(), Error> {
        let message = delivery.message().clone();
        let Done { result, further } = done;
        if let (Some(output), Some(results)) = (result, &self.queues.results) {
            let mut result = Message::of_job(message.meta.job.clone(), output.body);
            result.content_type = output.content_type;
            result.kind.clone_from(&message.kind);
            result.headers.clone_from(&message.headers);
            result.headers.insert("provider".to_owned(), self.options.provider.clone());
            result.meta.hop = message.meta.hop + 1;
            delivery.with_lease(results.send(result)).await?;
        }
        for (queue, batch) in by_queue(further) {
            let Some(queue) = self.queues.further.iter().find(|other| other.name() == queue) else {
                let reason = format!(
                    "follow-up message to undeclared queue {queue:?}: declare it in the configuration"
                );
                return self.bury(delivery, DeadLetterReason::new(reason)).await;
            };
            let batch = batch.into_iter().map(|message| (message, DeliveryTime::Now)).collect();
            let sent = delivery.with_lease(queue.send_batch(batch)).await;
            sent.into_iter().try_for_each(|sent| sent.map(drop))?;
        }
        delivery.ack().await?;
        self.metrics.count(&self.options.provider, Count::Done);
        self.saw_message(&message, Event::Done, |seen| seen);
        Ok(())
    }

    async fn failed(
        &self,
        mut delivery: Delivery,
        failure: Failure,
        pause: Option<Span>,
    ) -> Result<(), Error> {
        let provider = self.options.provider.as_str();
        let failures = delivery.message().meta.attempt + 1;
        if failure.kind == FailureKind::Limited {
            let wait = pause.unwrap_or_else(|| self.options.backoff.most(1));
            delivery.set_booking(None);
            return self.send_back(delivery, wait).await;
        }
        self.metrics.count(provider, Count::Failed);
        let Failure { kind, message: error, response } = failure;
        if kind == FailureKind::Permanent || failures >= self.options.attempts.max(1) {
            let reason = DeadLetterReason::new(error)
                .with("attempts", failures)
                .with("provider", provider)
                .with("response", response);
            return self.bury(delivery, reason).await;
        }
        let wait = self.options.backoff.wait(failures);
        let until = self.clock.now() + wait;
        let message = delivery.message().clone();
        warn!(job = %message.meta.job, provider, failures, error, "attempt failed: retrying");
        delivery.set_booking(None);
        delivery.retry(DeliveryTime::At(until)).await?;
        self.saw_message(&message, Event::Retried, |seen| seen.until(until).because(&error));
        Ok(())
    }

    /// Returns a message to the queue until its limit admits it.
    async fn send_back(&self, delivery: Delivery, wait: Span) -> Result<(), Error> {
        let message = delivery.message().clone();
        let until = self.clock.now() + wait.max(BACK);
        delivery.defer(DeliveryTime::At(until)).await?;
        self.metrics.count(&self.options.provider, Count::Requeued);
        self.saw_message(&message, Event::Deferred, |seen| seen.until(until));
        Ok(())
    }

    async fn bury(&self, delivery: Delivery, reason: DeadLetterReason) -> Result<(), Error> {
        let message = delivery.message().clone();
        let provider = self.options.provider.as_str();
        let error = reason.message.clone();
        warn!(job = %message.meta.job, provider, error, "job dead-lettered");
        delivery.dead_letter(reason).await?;
        self.metrics.count(provider, Count::Dead);
        self.saw_message(&message, Event::Dead, |seen| seen.because(&error));
        Ok(())
    }

    fn saw(&self, delivery: &Delivery, event: Event, with: impl FnOnce(Sighting) -> Sighting) {
        self.saw_message(delivery.message(), event, with);
    }

    fn saw_message(
        &self,
        message: &Message,
        event: Event,
        with: impl FnOnce(Sighting) -> Sighting,
    ) {
        let seen = Sighting::new(message, event, self.queues.jobs.name(), self.clock.now());
        self.tracker.saw(&message.meta.job, with(seen.of(&self.options.provider)));
    }
}

/// Holds the message for a short wait and returns it to the queue for a long one.
fn soon(span: Span) -> Next {
    if span > HOLD { Next::Back(span) } else { Next::Wait(span) }
}

/// Groups messages into one batch per queue, in the order in which the queues first appear.
fn by_queue(further: Vec<(String, Message)>) -> Vec<(String, Vec<Message>)> {
    let mut batches: Vec<(String, Vec<Message>)> = Vec::new();
    for (queue, message) in further {
        match batches.iter_mut().find(|(other, _)| *other == queue) {
            Some((_, batch)) => batch.push(message),
            None => batches.push((queue, vec![message])),
        }
    }
    batches
}

/// A guard that calls a function when it is dropped, also if the work is cancelled.
struct Busy<F: Fn()>(F);

impl<F: Fn()> Drop for Busy<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
