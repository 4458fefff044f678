//! [`Consumer`]: receives messages, and republishes those that were delivered before they are due.

use std::time::Duration;

use sluicegate_core::{Span, Timestamp};
use tracing::warn;

use crate::broker::{MessageSource, ReceivedMessage};
use crate::delivery::Delivery;
use crate::step::DeliveryStep;
use crate::{DeadLetterReason, DeliveryTime, Error, Message, Queue};

/// Maximum time before a message that could not be republished is requeued.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A stream of deliveries. Dropping it requeues the messages that it has not handed out.
pub struct Consumer {
    queue: Queue,
    source: Box<dyn MessageSource>,
    /// Deliveries that are due so soon that republishing is not worth it.
    held: Vec<(Timestamp, Delivery)>,
}

impl Consumer {
    pub(crate) const fn new(queue: Queue, source: Box<dyn MessageSource>) -> Self {
        Self { queue, source, held: Vec::new() }
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
            let received = match next_due {
                None => self.source.next(max).await?,
                Some(at) => {
                    let left = at.since(self.queue.inner.clock.now());
                    // At least a millisecond, so that a stopped clock does not cause a busy loop.
                    let left = Duration::from(left).max(Duration::from_millis(1));
                    match tokio::time::timeout(left, self.source.next(max)).await {
                        Ok(received) => received?,
                        Err(_) => continue,
                    }
                }
            };
            self.accept(received);
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

    /// Holds messages that are due now or soon, and republishes the others.
    fn accept(&mut self, received: Vec<ReceivedMessage>) {
        let now = self.queue.inner.clock.now();
        let delay_min = self.queue.capabilities().delay_min;
        for received in received {
            DeliveryStep::Received.emit();
            let delivery = Delivery::new(self.queue.clone(), received, now);
            if let Some(reason) = self.too_old(delivery.message(), now) {
                // In a task of its own, so that other messages do not wait for the confirmation.
                tokio::spawn(async move {
                    if let Err(unsettled) = delivery.dead_letter(reason).await {
                        warn!(error = %unsettled.error, "expired message not dead-lettered");
                        tokio::time::sleep(RETRY_AFTER).await;
                    }
                });
                continue;
            }
            let at = delivery.message().meta.not_before.unwrap_or(now);
            if at > now && at.since(now) >= delay_min.max(Span::from_micros(1)) {
                // In a task of its own, so that other messages do not wait for the confirmation.
                tokio::spawn(async move {
                    if let Err(unsettled) = delivery.postpone(DeliveryTime::At(at)).await {
                        warn!(error = %unsettled.error, "early message not republished");
                        // Dropped later: a requeued message is received again at once.
                        tokio::time::sleep(Duration::from(at.since(now)).min(RETRY_AFTER)).await;
                    }
                });
            } else {
                self.held.push((at, delivery));
            }
        }
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("queue", &self.queue).finish_non_exhaustive()
    }
}
