//! [`Consumer`]: receives messages, and settles those itself that must not be handed out now:
//!
//! | message | what happens to it |
//! |---|---|
//! | older than the queue allows | dead letter |
//! | redelivered more often than the queue allows | dead letter; it is never handed out again |
//! | redelivered | published again with the number of its redeliveries, from the third on with a delay; handed out if it has a place in an order |
//! | delivered before it is due | published again with the rest of its delay |
//! | due soon | held until then |

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::{Span, Timestamp};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::backoff::Backoff;
use crate::broker::{MessageSource, ReceivedMessage};
use crate::delivery::{Delivery, Unsettled};
use crate::queue::Inner;
use crate::step::DeliveryStep;
use crate::{DeadLetterReason, DeliveryTime, Error, Message, Queue};

/// Time after which a message that could not be republished is requeued.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of messages that a consumer settles by itself at a time.
const SETTLING_MAX: usize = 100;
/// Delay of a message that nobody settles, from its third redelivery on. It is random, so that messages
/// that lost their consumer together do not stay together: one of them may be the cause.
const REDELIVERY_DELAY: Backoff = Backoff { from: Span::from_secs(1), to: REDELIVERY_DELAY_MAX };

/// Maximum delay of a message that nobody settles.
pub const REDELIVERY_DELAY_MAX: Span = Span::from_secs(60);

/// A stream of deliveries. Dropping it requeues the messages that it has not handed out, which most
/// brokers can't distinguish from a consumer that was killed; see [`Consumer::close`].
pub struct Consumer {
    queue: Queue,
    source: Box<dyn MessageSource>,
    /// Deliveries with the times at which they are handed out.
    held: Vec<(Timestamp, Delivery)>,
    /// Tasks that settle messages, so that others do not wait for the confirmations.
    settling: JoinSet<Settled>,
    observer: Option<Arc<dyn ConsumerObserver>>,
}

/// Receives what a consumer does with messages that it does not hand out.
pub trait ConsumerObserver: Send + Sync {
    /// A message became a dead letter.
    fn on_dead_letter(&self, message: &Message, reason: &DeadLetterReason);

    /// A message could not be published to this queue. It is tried again later.
    fn on_failure(&self, queue: &str, error: &Error);

    /// A message was published to this queue.
    fn on_published(&self, queue: &str);
}

/// The result of settling a message: the delivery if it is handed out after all, and when.
type Settled = Option<(Timestamp, Delivery)>;

impl Consumer {
    pub(crate) fn new(queue: Queue, source: Box<dyn MessageSource>) -> Self {
        Self { queue, source, held: Vec::new(), settling: JoinSet::new(), observer: None }
    }

    /// Reports dead letters and failures to an observer.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn ConsumerObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Waits for messages and returns 1 to `max` of them. Keeps waiting while the broker is
    /// unavailable. Cancelling the wait loses no message.
    pub async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, Error> {
        let max = max.max(1);
        loop {
            let due = self.take_due(max);
            if !due.is_empty() {
                return Ok(due);
            }
            let next_due = self.held.iter().map(|(at, _)| *at).min();
            let wait = next_due.map(|at| {
                let left = Duration::from(at.since(self.queue.inner.clock.now()));
                // At least a millisecond, so that a stopped clock does not cause a busy loop.
                left.max(Duration::from_millis(1))
            });
            let has_room = self.settling.len() < SETTLING_MAX;
            tokio::select! {
                Some(settled) = self.settling.join_next() => self.held.extend(settled.ok().flatten()),
                received = self.source.next(max), if has_room => self.accept(received?),
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
            }
        }
    }

    /// Waits for the next message.
    pub async fn receive_one(&mut self) -> Result<Delivery, Error> {
        loop {
            if let Some(delivery) = self.receive(1).await?.pop() {
                return Ok(delivery);
            }
        }
    }

    /// Ends the subscription, and returns all messages that it has not handed out to their queue. That
    /// is not counted as a redelivery, unlike dropping the consumer.
    pub async fn close(self) {
        let Self { queue, source, held, .. } = self;
        let now = queue.inner.clock.now();
        let unseen = source.close().await.into_iter();
        let unseen = unseen.map(|received| Delivery::new(queue.clone(), received, now));
        let left = held.into_iter().map(|(_, delivery)| delivery).chain(unseen);
        // A message that can't be published again is returned, which counts.
        join_all(left.map(Delivery::requeue)).await;
    }

    /// Takes back deliveries that its caller has no room for: they are handed out again, or requeued
    /// when the consumer is dropped.
    pub(crate) fn put_back(&mut self, deliveries: Vec<Delivery>) {
        let now = self.queue.inner.clock.now();
        self.held.splice(0..0, deliveries.into_iter().map(|delivery| (now, delivery)));
    }

    fn take_due(&mut self, max: usize) -> Vec<Delivery> {
        let now = self.queue.inner.clock.now();
        let due = self.held.extract_if(.., |(at, _)| *at <= now).take(max);
        let due: Vec<_> = due.map(|(_, delivery)| delivery.received(now)).collect();
        self.queue.inner.stats.received(&due, now);
        due
    }

    /// Sorts received messages by the table above.
    fn accept(&mut self, received: Vec<ReceivedMessage>) {
        let now = self.queue.inner.clock.now();
        let delay_min = self.queue.capabilities().delay_min.max(Span::from_micros(1));
        for received in received {
            DeliveryStep::Received.emit();
            let delivery = Delivery::new(self.queue.clone(), received, now);
            let due = delivery.message().meta.not_before.unwrap_or(now);
            let too_old = self.too_old(delivery.message(), now);
            let observer = self.observer.clone();
            // Also if it is not marked as redelivered: it may be a copy that waited because it could not
            // become a dead letter.
            if let Some(reason) = too_old.or_else(|| too_often(&delivery)) {
                self.settling.spawn(dead_letter(delivery, reason, observer));
            } else if delivery.needs_copy() {
                let due = due.max(now + redelivery_delay(delivery.redeliveries()));
                self.settling.spawn(republish_redelivered(delivery, due, observer));
            } else if due.since(now) >= delay_min {
                self.settling.spawn(republish_early(delivery, due));
            } else {
                self.held.push((due, delivery));
            }
        }
    }

    /// Returns the reason of a dead letter if a message is older than the queue allows.
    fn too_old(&self, message: &Message, now: Timestamp) -> Option<DeadLetterReason> {
        let (max, sent_at) = (self.queue.inner.age_max?, message.meta.sent_at?);
        let age = now.since(sent_at);
        let (age, limit, name) = (age.in_words(), max, self.queue.name());
        (now.since(sent_at) > max).then(|| {
            DeadLetterReason::new(format!(
                "the message is {age} old, and the maximum of queue {name} is {limit}"
            ))
        })
    }
}

/// Returns the reason of a dead letter if a message was delivered too often without being settled.
fn too_often(delivery: &Delivery) -> Option<DeadLetterReason> {
    let (redeliveries, max) = (delivery.redeliveries(), delivery.queue().inner.redeliveries_max);
    (redeliveries > max).then(|| {
        DeadLetterReason::new(format!(
            "the message was delivered {} times and nobody settled it: each time, its consumer \
             was killed, lost its connection or let the lease end \
             (queue.redeliveries_max is {max})",
            u64::from(redeliveries) + 1
        ))
    })
}

/// Makes a message a dead letter. If that fails, it waits in the queue for the next attempt: it is not
/// handed out.
async fn dead_letter(
    delivery: Delivery,
    reason: DeadLetterReason,
    observer: Option<Arc<dyn ConsumerObserver>>,
) -> Settled {
    let queue = delivery.queue().clone();
    let (message, name) = (delivery.message().clone(), queue.name());
    let (job, dead_letter_queue) = (&message.meta.job, queue.dead_letter_name());
    let Err(Unsettled { error, delivery }) = delivery.dead_letter(reason.clone()).await else {
        let reason_text = &reason.message;
        warn!(%job, queue = name, reason = reason_text, "message dead-lettered without being processed");
        if let Some(observer) = observer {
            observer.on_published(dead_letter_queue);
            observer.on_dead_letter(&message, &reason);
        }
        return None;
    };
    let delivery = delivery?;
    if error.is_permanent() {
        warn!(%job, queue = name, %error, "message can't become a dead letter: it stays in the queue");
        return hold_and_drop(delivery, REDELIVERY_DELAY_MAX.into()).await;
    }
    match &observer {
        Some(observer) => observer.on_failure(dead_letter_queue, &error),
        None => {
            warn!(queue = name, dead_letter_queue, %error, "message can't become a dead letter yet")
        }
    }
    let due = queue.inner.clock.now() + REDELIVERY_DELAY_MAX;
    let settled = delivery.republish_copy(DeliveryTime::At(due)).await;
    let Unsettled { error, delivery } = settled.err()?;
    let wait = if error.is_permanent() { REDELIVERY_DELAY_MAX.into() } else { RETRY_AFTER };
    hold_and_drop(delivery?, wait).await
}

/// Publishes a redelivered message again, because its metadata has to contain the number of its
/// redeliveries. If that fails, the message is handed out: a worker may succeed, and returning it would
/// only redeliver it once more.
async fn republish_redelivered(
    delivery: Delivery,
    due: Timestamp,
    observer: Option<Arc<dyn ConsumerObserver>>,
) -> Settled {
    let queue = delivery.queue().inner.clone();
    let settled = delivery.republish_copy(DeliveryTime::At(due)).await;
    if !settled.as_ref().is_err_and(|unsettled| unsettled.error.is_permanent()) {
        report(&queue, &settled);
        return settled.err()?.delivery.map(|delivery| (due, *delivery));
    }
    // The body has about the maximum size of the broker, and leaves no room for our count.
    let mut delivery = settled.err()?.delivery?;
    delivery.count_by_broker();
    match too_often(&delivery) {
        Some(reason) => dead_letter(*delivery, reason, observer).await,
        None => Some((queue.clock.now(), *delivery)),
    }
}

/// Publishes a message again that was delivered before it is due.
async fn republish_early(delivery: Delivery, due: Timestamp) -> Settled {
    let queue = delivery.queue().inner.clone();
    let settled = delivery.postpone(DeliveryTime::At(due)).await;
    report(&queue, &settled);
    hold_and_drop(settled.err()?.delivery?, RETRY_AFTER).await
}

/// Drops a delivery later: a message that is requeued now is received again at once.
async fn hold_and_drop(delivery: Box<Delivery>, wait: Duration) -> Settled {
    delivery.with_lease(tokio::time::sleep(wait)).await;
    drop(delivery);
    None
}

/// Logs the first of several failures, and the end of them.
fn report(queue: &Inner, settled: &Result<(), Unsettled>) {
    let (name, has_failed) = (queue.name(), settled.is_err());
    if queue.settling_fails.swap(has_failed, Ordering::Relaxed) == has_failed {
        return;
    }
    match settled {
        Err(unsettled) => {
            let error = &unsettled.error;
            warn!(queue = name, %error, "redelivered, early or expired messages can't be published");
        }
        Ok(()) => {
            info!(queue = name, "redelivered, early and expired messages are published again")
        }
    }
}

/// Returns the delay of a message after this number of redeliveries. The first two have none: most
/// consumers that are killed were not killed by their message.
fn redelivery_delay(redeliveries: u32) -> Span {
    match redeliveries {
        0..=2 => Span::ZERO,
        more => REDELIVERY_DELAY.wait(more - 2),
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("queue", &self.queue).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_nobody_settles_is_delayed_from_its_third_redelivery_on() {
        for redeliveries in 0..=2 {
            assert_eq!(redelivery_delay(redeliveries), Span::ZERO);
        }
        for (redeliveries, most) in [(3, 1), (4, 2), (5, 4), (9, 60), (u32::MAX, 60)] {
            let most = Span::from_secs(most);
            let delays: Vec<_> = (0..200).map(|_| redelivery_delay(redeliveries)).collect();
            assert!(delays.iter().all(|delay| *delay <= most), "after {redeliveries}");
            assert!(delays.iter().any(|delay| delay.as_micros() > most.as_micros() / 2));
        }
    }
}
