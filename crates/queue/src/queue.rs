//! [`Queue`]: a queue on a broker. Sends, receives, counts and purges messages, and adds features
//! that the broker lacks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::future::join_all;
use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Timestamp};

use crate::body_fields::BodyFields;
use crate::broker::{
    Broker, Capabilities, ConsumeOptions, DeliveryDelay, Depth, LeaseKind, OutgoingMessage,
    QueueName, ResumedMessage,
};
use crate::consumer::Consumer;
use crate::dead_letter::{DeadLetterFilter, DeadLetters};
use crate::peek::{self, FoundMessage, SearchCoverage, Visit};
use crate::priority::{self, HoldLimit, PrioritySource};
use crate::stats::{QueueStats, StatsCounters};
use crate::{Delivery, DeliveryTime, Error, JobId, Message, MessageId, WallClock};

/// End of the name of a dead-letter queue that belongs to one queue.
pub const DEAD_SUFFIX: &str = "-dlq";

/// Options of a queue.
#[derive(Clone)]
pub struct Options {
    /// Dead-letter queue. A name that begins with `/` is a subqueue of the queue. Default: the name of
    /// the queue and `-dlq`.
    pub dead_letter: Option<String>,
    /// Lease of a delivery, unless it is extended. Default: 300 s.
    pub visibility: Span,
    /// Member of a foreign body that holds the job id. Default: none; the broker's message id is
    /// used.
    pub job_field: Option<String>,
    /// Member of a foreign body that holds the type of the job. Default: none.
    pub type_field: Option<String>,
    /// True if urgent messages overtake others on brokers without native priorities: there is a
    /// queue for each of three levels. Default: false.
    pub priorities: bool,
    /// Maximum size of a body, in bytes. Default: none; each broker has its own.
    pub size_max: Option<usize>,
    /// Maximum age of a message since it was first sent; an older one becomes a dead letter.
    /// Default: none.
    pub age_max: Option<Span>,
    /// Number of redeliveries since the last retry, after which a message becomes a dead letter instead
    /// of being delivered once more. Default: 20.
    pub redeliveries_max: u32,
    /// Time for which a second message with the same job id is not sent again. Default: zero, which
    /// turns it off.
    pub deduplication: Span,
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
            priorities: false,
            size_max: None,
            age_max: None,
            redeliveries_max: 20,
            deduplication: Span::ZERO,
            clock: Arc::new(WallClock),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dead_letter, visibility, job_field, type_field, .. } = self;
        f.debug_struct("Options")
            .field("dead_letter", dead_letter)
            .field("visibility", visibility)
            .field("job_field", job_field)
            .field("type_field", type_field)
            .field("priorities", &self.priorities)
            .field("size_max", &self.size_max)
            .field("age_max", &self.age_max)
            .field("redeliveries_max", &self.redeliveries_max)
            .field("deduplication", &self.deduplication)
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
    /// Queues of all priority levels, the lowest first. Only `live` if the broker has native
    /// priorities or priorities are off.
    pub(crate) levels: Vec<QueueName>,
    pub(crate) dead: QueueName,
    pub(crate) visibility: Span,
    pub(crate) size_max: Option<usize>,
    pub(crate) age_max: Option<Span>,
    pub(crate) redeliveries_max: u32,
    /// True while consumers can't publish redelivered messages again; they log it once.
    pub(crate) settling_fails: AtomicBool,
    pub(crate) deduplication: Span,
    pub(crate) fields: BodyFields,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stats: StatsCounters,
}

impl Queue {
    /// Creates a handle to a queue. Does not contact the broker: see [`Queue::check`].
    pub fn new(broker: Arc<dyn Broker>, name: &str, options: Options) -> Self {
        let dead = match options.dead_letter {
            Some(subqueue) if subqueue.starts_with('/') => format!("{name}{subqueue}"),
            Some(dead_letter) => dead_letter,
            None => format!("{name}{DEAD_SUFFIX}"),
        };
        let live = QueueName::Live(name.to_owned());
        let levels = match options.priorities && !broker.capabilities().priorities {
            true => priority::level_queues(name),
            false => vec![live.clone()],
        };
        let inner = Inner {
            broker,
            live,
            levels,
            dead: QueueName::Dead(dead),
            visibility: options.visibility,
            size_max: options.size_max,
            age_max: options.age_max,
            redeliveries_max: options.redeliveries_max,
            settling_fails: AtomicBool::new(false),
            deduplication: options.deduplication,
            fields: BodyFields { job: options.job_field, kind: options.type_field },
            clock: options.clock,
            stats: StatsCounters::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the name of the queue.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the name of its dead-letter queue.
    pub fn dead_letter_name(&self) -> &str {
        self.inner.dead.name()
    }

    /// Returns the lease of a delivery, unless it is extended.
    pub fn visibility(&self) -> Span {
        self.inner.visibility
    }

    /// Returns the features that its broker has natively.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.broker.capabilities()
    }

    /// Creates the queue and its dead-letter queue if they do not exist. Returns true if one was
    /// created: it survives a crash of the broker after [`Capabilities::creation_flush`].
    pub async fn create(&self) -> Result<bool, Error> {
        let Inner { broker, levels, dead, .. } = &*self.inner;
        // An existing queue stays as it is.
        let is_missing = |checked: Result<(), Error>| match checked {
            Err(Error::NoQueue { .. }) => Ok(true),
            checked => checked.map(|()| false),
        };
        // Dead letters first: a queue must not be used before failed messages have a place to go.
        let no_dead = is_missing(broker.check(dead).await)?;
        if no_dead {
            broker.create(dead).await?;
        }
        let mut created = no_dead;
        for level in levels {
            if is_missing(broker.check(level).await)? {
                broker.create_with_dead_letters(level, dead).await?;
                created = true;
            }
        }
        Ok(created)
    }

    /// Creates what the broker needs for delays of this queue; see [`Broker::prepare_delays`].
    pub async fn prepare_delays(&self, fixed: &[Span], longest: Span) -> Result<(), Error> {
        for level in &self.inner.levels {
            self.inner.broker.prepare_delays(level, fixed, longest).await?;
        }
        Ok(())
    }

    /// Checks that the queue and its dead-letter queue exist and can be used.
    pub async fn check(&self) -> Result<(), Error> {
        self.check_live().await?;
        self.check_dead().await
    }

    /// Checks that the queue exists and can be used, without its dead-letter queue.
    pub async fn check_live(&self) -> Result<(), Error> {
        for level in &self.inner.levels {
            self.inner.broker.check(level).await?;
        }
        Ok(())
    }

    /// Checks that its dead-letter queue exists and can be used.
    pub async fn check_dead(&self) -> Result<(), Error> {
        self.inner.broker.check(&self.inner.dead).await
    }

    /// Returns the job id in a body, if [`Options::job_field`] names its member.
    pub fn job_in(&self, body: &[u8]) -> Option<JobId> {
        self.inner.fields.find(body).job.and_then(|job| JobId::try_from(job).ok())
    }

    /// Returns the type of the job in a body, if [`Options::type_field`] names its member.
    pub fn type_in(&self, body: &[u8]) -> Option<String> {
        self.inner.fields.find(body).kind
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
        let inner = &self.inner;
        let now = inner.clock.now();
        let mut results = Vec::with_capacity(batch.len());
        let mut levels: Vec<(Vec<usize>, Vec<OutgoingMessage>)> =
            inner.levels.iter().map(|_| Default::default()).collect();
        for (number, (mut message, when)) in batch.into_iter().enumerate() {
            message.meta.sent_at.get_or_insert(now);
            results.push(inner.check_size(&message).map(|()| message.id()));
            if results[number].is_ok() {
                let (numbers, outgoing) = &mut levels[inner.level(message.priority)];
                numbers.push(number);
                outgoing.push(inner.outgoing(message, when));
            }
        }
        for (level, (numbers, outgoing)) in inner.levels.iter().zip(levels) {
            if outgoing.is_empty() {
                continue;
            }
            let published = match inner.deduplication > Span::ZERO {
                true => inner.broker.publish_once(level, outgoing, inner.deduplication).await,
                false => inner.broker.publish(level, outgoing).await,
            };
            for (number, published) in numbers.into_iter().zip(published) {
                if let Err(error) = published {
                    results[number] = Err(error);
                }
            }
        }
        inner.stats.sent(results.iter().filter(|result| result.is_ok()).count());
        results
    }

    /// Acknowledges messages. Brokers that can acknowledge several at once do so. Returns one result
    /// each, in order.
    pub async fn ack_batch(&self, deliveries: Vec<Delivery>) -> Vec<Result<(), Error>> {
        join_all(deliveries.into_iter().map(Delivery::ack)).await
    }

    /// Cancels the messages of a job that are delayed. Returns their number. Fails if the broker
    /// can't cancel.
    pub async fn cancel(&self, job: &JobId) -> Result<u64, Error> {
        let mut cancelled = 0;
        for level in &self.inner.levels {
            cancelled += self.inner.broker.cancel(level, job).await?;
        }
        Ok(cancelled)
    }

    /// Starts receiving, with at most `prefetch` messages in flight.
    pub async fn consume(&self, prefetch: u16) -> Result<Consumer, Error> {
        let visibility = self.inner.visibility;
        self.consume_with(ConsumeOptions { prefetch, visibility, wait: ConsumeOptions::WAIT_MAX })
            .await
    }

    /// Starts receiving with other leases and polls than those of the queue.
    pub(crate) async fn consume_with(&self, options: ConsumeOptions) -> Result<Consumer, Error> {
        let inner = &self.inner;
        let mut sources = Vec::new();
        for level in &inner.levels {
            inner.broker.check_counted(level).await?;
            sources.push(inner.broker.consume(level, options).await?);
        }
        let source = match sources.len() {
            1 => sources.remove(0),
            _ => {
                let is_timed = matches!(self.capabilities().lease, LeaseKind::Timed(_));
                let hold_limit = is_timed.then(|| self.hold_limit(options.visibility));
                Box::new(PrioritySource::new(sources, hold_limit))
            }
        };
        Ok(Consumer::new(self.clone(), source))
    }

    /// Returns messages that waited in the process for half of their lease. They were not handed out,
    /// so that is not counted as a redelivery.
    fn hold_limit(&self, lease: Span) -> HoldLimit {
        let (queue, clock) = (self.clone(), self.inner.clock.clone());
        let give_back = move |received| {
            let delivery = Delivery::new(queue.clone(), received, queue.inner.clock.now());
            tokio::spawn(delivery.requeue());
        };
        let time = Span::from_micros(lease.as_micros() / 2);
        HoldLimit { time, clock, give_back: Box::new(give_back) }
    }

    /// Takes over a delivery that any process received: see [`Broker::resume`].
    pub(crate) async fn resume(&self, token: &str) -> Result<ResumedMessage, Error> {
        self.inner.broker.resume(&self.inner.live, token).await
    }

    /// Returns the number of messages, of all priorities; an error if [`Capabilities::depth`] is
    /// false.
    pub async fn depth(&self) -> Result<Depth, Error> {
        let mut sum = self.inner.broker.depth(&self.inner.live).await?;
        for level in &self.inner.levels[1..] {
            let depth = self.inner.broker.depth(level).await?;
            let add = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
            sum = Depth {
                ready: sum.ready + depth.ready,
                delayed: add(sum.delayed, depth.delayed),
                in_flight: add(sum.in_flight, depth.in_flight),
                oldest: sum.oldest.max(depth.oldest),
            };
        }
        Ok(sum)
    }

    /// Returns the number of dead letters.
    pub async fn dead_depth(&self) -> Result<Depth, Error> {
        self.inner.broker.depth(&self.inner.dead).await
    }

    /// Passes at most `max` messages to `show` and leaves them in the queue. Returns their number.
    ///
    /// If the broker can't browse, messages are received and published again, behind the others. That
    /// is not counted as a redelivery.
    pub async fn peek(&self, max: u64, mut show: impl FnMut(&Message)) -> Result<u64, Error> {
        let mut shown = 0;
        if max == 0 {
            return Ok(shown);
        }
        for level in self.inner.levels.iter().rev() {
            if shown == max {
                break;
            }
            let most = usize::try_from(max - shown).unwrap_or(usize::MAX);
            peek::show(self, level, most, |message| {
                show(&message);
                shown += 1;
                if shown < max { Visit::Continue } else { Visit::Stop }
            })
            .await?;
        }
        Ok(shown)
    }

    /// Passes every message of a job to `found`, and leaves it in the queue.
    ///
    /// If the broker can't browse, messages are received and published again, behind the others. That
    /// is not counted as a redelivery. Messages that another consumer has are not seen.
    pub async fn find(
        &self,
        job: &str,
        mut found: impl FnMut(FoundMessage),
    ) -> Result<SearchCoverage, Error> {
        let mut coverage = SearchCoverage::Whole;
        for level in &self.inner.levels {
            if peek::find(self, level, job, &mut found).await? == SearchCoverage::Part {
                coverage = SearchCoverage::Part;
            }
        }
        Ok(coverage)
    }

    /// Deletes all messages that are not in flight. Returns their number if the broker knows it.
    pub async fn purge(&self) -> Result<Option<u64>, Error> {
        let mut sum = Some(0);
        for level in &self.inner.levels {
            let purged = self.inner.broker.purge(level).await?;
            sum = sum.zip(purged).map(|(sum, purged)| sum + purged);
        }
        Ok(sum)
    }

    /// Returns the number of dead letters of this queue alone. `None` if the broker can't count, or if
    /// other queues may share its dead-letter queue and the broker can't show messages without
    /// receiving them.
    pub async fn own_dead_count(&self) -> Result<Option<u64>, Error> {
        if !self.capabilities().depth {
            return Ok(None);
        }
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
        let is_own = dead == name
            || dead.strip_suffix(DEAD_SUFFIX) == Some(name)
            || dead.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
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
    /// Returns the name of the queue.
    pub(crate) fn name(&self) -> &str {
        self.live.name()
    }

    /// Returns the level of a priority.
    fn level(&self, priority: u8) -> usize {
        priority::level_of(priority).min(self.levels.len() - 1)
    }

    /// Returns the queue that a message of this priority belongs to.
    pub(crate) fn live_for(&self, message: &Message) -> &QueueName {
        &self.levels[self.level(message.priority)]
    }

    /// Checks the size of a body against the maximum of the queue.
    pub(crate) fn check_size(&self, message: &Message) -> Result<(), Error> {
        let size = message.body.len();
        match self.size_max {
            Some(max) if size > max => Err(Error::TooLarge { broker: "this queue", size, max }),
            _ => Ok(()),
        }
    }

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
