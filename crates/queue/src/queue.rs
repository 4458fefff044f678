//! [`Queue`]: a queue on a broker. Sends, receives, counts and purges messages, and adds features
//! that the broker lacks.

use std::fmt;
use std::sync::Arc;

use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Timestamp};

use crate::body_fields::BodyFields;
use crate::broker::{
    Broker, Capabilities, ConsumeOptions, DeliveryDelay, Depth, OutgoingMessage, QueueName,
};
use crate::consumer::Consumer;
use crate::dead_letter::{DeadLetterFilter, DeadLetters};
use crate::peek::{self, Visit};
use crate::stats::{QueueStats, StatsCounters};
use crate::{DeliveryTime, Error, JobId, Message, MessageId, WallClock};

/// End of the name of a dead-letter queue that belongs to one queue.
const DEAD_SUFFIX: &str = "-dlq";

/// Options of a queue.
#[derive(Clone)]
pub struct Options {
    /// Dead-letter queue. Default: the name of the queue and `-dlq`.
    pub dead_letter: Option<String>,
    /// Lease of a delivery, unless it is extended. Default: 300 s.
    pub visibility: Span,
    /// Member of a foreign body that holds the job id. Default: none; the broker's message id is
    /// used.
    pub job_field: Option<String>,
    /// Member of a foreign body that holds the type of the job. Default: none.
    pub type_field: Option<String>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dead_letter: None,
            visibility: Span::from_secs(300),
            job_field: None,
            type_field: None,
            clock: Arc::new(WallClock),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dead_letter, visibility, job_field, type_field, clock: _ } = self;
        f.debug_struct("Options")
            .field("dead_letter", dead_letter)
            .field("visibility", visibility)
            .field("job_field", job_field)
            .field("type_field", type_field)
            .finish_non_exhaustive()
    }
}

/// A queue. Clones share the same queue and the same statistics.
#[derive(Clone)]
pub struct Queue {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) live: QueueName,
    pub(crate) dead: QueueName,
    pub(crate) visibility: Span,
    pub(crate) fields: BodyFields,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stats: StatsCounters,
}

impl Queue {
    /// Creates a handle to a queue. Does not contact the broker: see [`Queue::check`].
    pub fn new(broker: Arc<dyn Broker>, name: &str, options: Options) -> Self {
        let Options { dead_letter, visibility, job_field, type_field, clock } = options;
        let dead = dead_letter.unwrap_or_else(|| format!("{name}{DEAD_SUFFIX}"));
        let inner = Inner {
            broker,
            live: QueueName::Live(name.to_owned()),
            dead: QueueName::Dead(dead),
            visibility,
            fields: BodyFields { job: job_field, kind: type_field },
            clock,
            stats: StatsCounters::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the name of the queue.
    pub fn name(&self) -> &str {
        self.inner.live.name()
    }

    /// Returns the name of its dead-letter queue.
    pub fn dead_letter_name(&self) -> &str {
        self.inner.dead.name()
    }

    /// Returns the features that its broker has natively.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.broker.capabilities()
    }

    /// Creates the queue and its dead-letter queue if they do not exist. Returns true if one was
    /// created: it survives a crash of the broker after [`Capabilities::creation_flush`].
    pub async fn create(&self) -> Result<bool, Error> {
        let mut created = false;
        // Dead letters first: a queue must not be used before failed messages have a place to go.
        for queue_name in [&self.inner.dead, &self.inner.live] {
            match self.inner.broker.check(queue_name).await {
                Err(Error::NoQueue { .. }) => {
                    self.inner.broker.create(queue_name).await?;
                    created = true;
                }
                // An existing queue stays as it is.
                checked => checked?,
            }
        }
        Ok(created)
    }

    /// Creates what the broker needs for delays of this queue; see [`Broker::prepare_delays`].
    pub async fn prepare_delays(&self, fixed: &[Span], longest: Span) -> Result<(), Error> {
        self.inner.broker.prepare_delays(&self.inner.live, fixed, longest).await
    }

    /// Checks that the queue and its dead-letter queue exist and can be used.
    pub async fn check(&self) -> Result<(), Error> {
        self.inner.broker.check(&self.inner.live).await?;
        self.inner.broker.check(&self.inner.dead).await
    }

    /// Returns the job id in a body, if [`Options::job_field`] names its member.
    pub fn job_in(&self, body: &[u8]) -> Option<JobId> {
        self.inner.fields.find(body).job.and_then(|job| JobId::try_from(job).ok())
    }

    /// Sends a message. When this returns, the message survives a crash of the broker.
    pub async fn send(&self, message: Message) -> Result<MessageId, Error> {
        self.send_at(message, DeliveryTime::Now).await
    }

    /// Sends a message that is delivered later.
    pub async fn send_at(&self, message: Message, when: DeliveryTime) -> Result<MessageId, Error> {
        let mut results = self.send_batch(vec![(message, when)]).await;
        results.pop().unwrap_or_else(|| unreachable!("one message has one result"))
    }

    /// Sends messages independently of each other. Returns one result each, in order.
    pub async fn send_batch(
        &self,
        batch: Vec<(Message, DeliveryTime)>,
    ) -> Vec<Result<MessageId, Error>> {
        let now = self.inner.clock.now();
        let mut ids = Vec::with_capacity(batch.len());
        let outgoing = batch.into_iter().map(|(mut message, when)| {
            message.meta.sent_at.get_or_insert(now);
            ids.push(message.id());
            self.inner.outgoing(message, when)
        });
        let outgoing = outgoing.collect();
        let results = self.inner.broker.publish(&self.inner.live, outgoing).await;
        let sent = results.iter().filter(|result| result.is_ok()).count();
        self.inner.stats.sent(sent);
        ids.into_iter().zip(results).map(|(id, result)| result.map(|()| id)).collect()
    }

    /// Starts receiving, with at most `prefetch` messages in flight.
    pub async fn consume(&self, prefetch: u16) -> Result<Consumer, Error> {
        let options = ConsumeOptions {
            prefetch,
            visibility: self.inner.visibility,
            wait: ConsumeOptions::WAIT_MAX,
        };
        let source = self.inner.broker.consume(&self.inner.live, options).await?;
        Ok(Consumer::new(self.clone(), source))
    }

    /// Returns the number of messages.
    pub async fn depth(&self) -> Result<Depth, Error> {
        self.inner.broker.depth(&self.inner.live).await
    }

    /// Returns the number of dead letters.
    pub async fn dead_depth(&self) -> Result<Depth, Error> {
        self.inner.broker.depth(&self.inner.dead).await
    }

    /// Passes at most `max` messages to `show` and leaves them in the queue. Returns their number.
    ///
    /// If the broker can't browse, messages are received and requeued, which it may count as a
    /// delivery.
    pub async fn peek(&self, max: u64, mut show: impl FnMut(&Message)) -> Result<u64, Error> {
        let mut shown = 0;
        if max == 0 {
            return Ok(shown);
        }
        peek::show(self, &self.inner.live, |message| {
            show(&message);
            shown += 1;
            if shown < max { Visit::Continue } else { Visit::Stop }
        })
        .await?;
        Ok(shown)
    }

    /// Deletes all messages that are not in flight. Returns their number if the broker knows it.
    pub async fn purge(&self) -> Result<Option<u64>, Error> {
        self.inner.broker.purge(&self.inner.live).await
    }

    /// Returns the number of dead letters of this queue alone. `None` if other queues may share its
    /// dead-letter queue and the broker can't show messages without receiving them.
    pub async fn own_dead_count(&self) -> Result<Option<u64>, Error> {
        let Some(queue) = self.shared_dead_letters() else {
            return Ok(Some(self.dead_depth().await?.ready));
        };
        if !self.capabilities().browse {
            return Ok(None);
        }
        let filter = DeadLetterFilter { queue: Some(queue), ..DeadLetterFilter::default() };
        self.dead_letters().list(&filter, u64::MAX, |_| {}).await.map(Some)
    }

    /// Returns the name of this queue if its dead-letter queue may contain letters of other queues.
    /// `None` if all letters there are its own, or if it is itself the dead-letter queue.
    pub fn shared_dead_letters(&self) -> Option<String> {
        let (name, dead) = (self.name(), self.dead_letter_name());
        let is_own = dead == name || dead.strip_suffix(DEAD_SUFFIX) == Some(name);
        (!is_own).then(|| name.to_owned())
    }

    /// Returns the dead letters of the queue.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.clone())
    }

    /// Waits until the messages of dropped deliveries are requeued. A process that ends before leaves
    /// them leased.
    pub async fn flush(&self) {
        self.inner.broker.flush().await;
    }

    /// Returns the statistics of this handle and its clones.
    pub fn stats(&self) -> QueueStats {
        self.inner.stats.snapshot()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Inner {
    /// Prepares a message for publishing, with its delay.
    pub(crate) fn outgoing(&self, mut message: Message, when: DeliveryTime) -> OutgoingMessage {
        let now = self.clock.now();
        let capabilities = self.broker.capabilities();
        let delay = match when {
            DeliveryTime::After(span) if capabilities.fixed_delays && span > Span::ZERO => {
                // The broker measures the delay with its own clock, so ours is not needed.
                message.meta.not_before = None;
                DeliveryDelay::Fixed(span)
            }
            when => {
                message.meta.not_before = when.instant(now);
                message
                    .meta
                    .not_before
                    .map_or(DeliveryDelay::None, |at| until(at, now, &capabilities))
            }
        };
        OutgoingMessage { message, delay }
    }
}

/// Returns the delay until an instant, at most as long as the broker supports.
fn until(at: Timestamp, now: Timestamp, capabilities: &Capabilities) -> DeliveryDelay {
    let left = at.since(now).min(capabilities.delay_max);
    if left < capabilities.delay_min || left == Span::ZERO {
        return DeliveryDelay::None;
    }
    DeliveryDelay::Until { at, left }
}
