//! [`DelayTopic`]: a topic in which messages wait until they are due, and the task that moves them.
//!
//! Pub/Sub has no delays, but it delivers a message again when its lease ends. So a message that is
//! not due is leased until then, for at most ten minutes at a time, and not kept in memory. The
//! process that receives it next publishes it to its target or leases it again. No message is lost
//! if a process dies.
//!
//! There is a delay topic for each power of four, in seconds. So a backlog of messages that wait
//! for hours does not hold up messages that wait for seconds.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use tracing::warn;

use super::LEASE_MAX;
use super::attributes;
use super::client::QueueHandle;
use super::proto::ReceivedMessage;
use super::publish::PublishEntry;
use super::receipt::{AckEntry, LeaseEntry};
use super::topic::SubscriptionSettings;
use crate::body_fields::BodyFields;
use crate::broker::{DeliveryDelay, QueueName};
use crate::{Error, WallClock, envelope};

/// Messages that are due sooner wait at their consumer.
pub(super) const HOLD_MAX: Span = Span::from_secs(1);
/// Number of delay topics of a target, and the factor between their lengths.
const TOPICS: u32 = 9;
const FACTOR: u64 = 4;
/// Maximum delay of a message, three days: Pub/Sub drops messages after a week.
pub(super) const DELAY_MAX: Span = Span::from_secs(FACTOR.pow(TOPICS));
/// Maximum number of messages per poll.
const BATCH_MAX: usize = 500;
/// Time until a delay topic that does not exist is looked for again.
const MISSING_WAIT: Duration = Duration::from_secs(30);
/// Time until the next poll after a failure.
const RETRY_WAIT: Duration = Duration::from_secs(2);

/// A delay topic, by its number: the messages in it are delayed by at least `4^number` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DelayTopic(u32);

impl DelayTopic {
    /// Returns the topic for a delay; `None` if the message goes to its target.
    pub(super) fn of(delay: DeliveryDelay) -> Option<Self> {
        let seconds = delay.span().as_micros() / 1_000_000;
        let number = seconds.checked_ilog(FACTOR)?;
        Some(Self(number.min(TOPICS - 1)))
    }

    /// Returns all delay topics.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..TOPICS).map(Self)
    }

    /// Returns the name of the topic for a target.
    pub(super) fn queue(self, target: &str) -> QueueName {
        QueueName::Live(format!("{target}-delay-{}s", FACTOR.pow(self.0)))
    }
}

/// Moves due messages from a delay topic to its target. Never returns.
pub(super) async fn run_mover(delayed: Arc<QueueHandle>, target: Arc<QueueHandle>) {
    let queue = delayed.topic.name.clone();
    loop {
        match move_due(&delayed, &target).await {
            Ok(()) => {}
            // Nobody has used it yet.
            Err(Error::NoQueue { queue: missing }) if missing == queue.name() => {
                let appeared = delayed.topic.appeared.notified();
                let _ = tokio::time::timeout(MISSING_WAIT, appeared).await;
            }
            Err(error) => {
                warn!(%queue, %error, "can't move due messages from the delay topic, retrying");
                tokio::time::sleep(RETRY_WAIT).await;
            }
        }
    }
}

/// Waits for messages of a delay topic. Publishes those that are due to the target, and leases the
/// others until they are.
async fn move_due(delayed: &QueueHandle, target: &QueueHandle) -> Result<(), Error> {
    let received =
        delayed.topic.pull(BATCH_MAX, SubscriptionSettings::OF_DELAYS.visibility, None).await?;
    let now = WallClock.now();
    let (mut due, mut leases) = (Vec::new(), Vec::new());
    for message in received {
        let meta = envelope::read(attributes::read(&message), &BodyFields::default()).meta;
        let left = meta.not_before.map_or(Span::ZERO, |at| at.since(now));
        if left < HOLD_MAX {
            due.push(message);
        } else {
            let seconds = left.min(LEASE_MAX).as_micros() / 1_000_000;
            let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
            let lease = LeaseEntry { ack_id: message.ack_id, seconds };
            leases.push(delayed.leases.submit(lease));
        }
    }
    // If changing a lease fails, the old lease ends soon, and the message is delivered again.
    join_all(leases).await;
    if due.is_empty() {
        return Ok(());
    }
    target.topic.verify().await?;
    let moved = due.into_iter().map(|message| publish_then_ack(delayed, target, message));
    join_all(moved).await.into_iter().collect()
}

/// Moves a message as it is: an acknowledgement that fails causes a duplicate with the same id.
fn publish_then_ack(
    delayed: &QueueHandle,
    target: &QueueHandle,
    ReceivedMessage { ack_id, message, .. }: ReceivedMessage,
) -> impl Future<Output = Result<(), Error>> {
    let mut message = message.unwrap_or_default();
    message.message_id.clear();
    message.publish_time = None;
    let published = target.publishes.submit(PublishEntry(message));
    async move {
        published.await?;
        delayed.acks.submit(AckEntry(ack_id)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::Timestamp;

    #[test]
    fn a_delay_waits_in_the_longest_topic_that_is_not_longer() {
        let name = |seconds: u64| {
            let left = Span::from_secs(seconds);
            let delay = DeliveryDelay::Until { at: Timestamp::MAX, left };
            DelayTopic::of(delay).map(|topic| topic.queue("jobs").name().to_owned())
        };
        assert_eq!(name(0), None);
        assert_eq!(DelayTopic::of(DeliveryDelay::None), None);
        for (seconds, length) in
            [(1, 1), (3, 1), (4, 4), (30, 16), (64, 64), (300, 256), (86_400, 65_536)]
        {
            assert_eq!(name(seconds), Some(format!("jobs-delay-{length}s")), "{seconds}");
        }
        let longest = name(DELAY_MAX.as_secs_ceil());
        assert_eq!(longest.as_deref(), Some("jobs-delay-65536s"));
        assert_eq!(DelayTopic::all().count(), 9);
    }
}
