//! [`Broker`]: the interface that every message broker implements. Each operation does only what
//! the server does natively; everything above is written once, in [`Queue`](crate::Queue).

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::{Span, Timestamp};

use crate::{Error, JobId, Message};

/// A connection to a broker, which reconnects by itself.
pub trait Broker: Send + Sync + 'static {
    /// Returns the features that the broker has natively.
    fn capabilities(&self) -> Capabilities;

    /// Publishes messages independently of each other. Returns one result each, in order. A message
    /// whose result is `Ok` survives a crash of the broker; one whose result is an error may have
    /// been published all the same.
    fn publish<'a>(
        &'a self,
        queue_name: &'a QueueName,
        batch: Vec<OutgoingMessage>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>>;

    /// Publishes messages like [`Broker::publish`], but skips jobs that this method has published
    /// to the queue less than `window` ago. The result of a skipped message is `Ok`.
    ///
    /// Returns errors if the broker can't remember jobs.
    fn publish_once<'a>(
        &'a self,
        _queue_name: &'a QueueName,
        batch: Vec<OutgoingMessage>,
        _window: Span,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        let broker = self.capabilities().broker;
        let cant = Error::Invalid(format!(
            "{broker} can't remember the jobs that were sent: remove queue.deduplication; handlers \
             get the job id as an idempotency key"
        ));
        std::future::ready(vec![Err(cant); batch.len()]).boxed()
    }

    /// Deletes the delayed messages of a job. Returns their number.
    ///
    /// Returns an error if the broker can't find delayed messages.
    fn cancel<'a>(
        &'a self,
        _queue_name: &'a QueueName,
        _job: &'a JobId,
    ) -> BoxFuture<'a, Result<u64, Error>> {
        let broker = self.capabilities().broker;
        let cant = Error::Invalid(format!(
            "{broker} can't find a delayed message before it is due: only the embedded queue and \
             Service Bus cancel delayed messages"
        ));
        std::future::ready(Err(cant)).boxed()
    }

    /// Opens a stream of deliveries.
    fn consume<'a>(
        &'a self,
        queue_name: &'a QueueName,
        options: ConsumeOptions,
    ) -> BoxFuture<'a, Result<Box<dyn MessageSource>, Error>>;

    /// Returns the number of messages in a queue.
    ///
    /// Returns an error unless [`Capabilities::depth`] is true.
    fn depth<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Depth, Error>>;

    /// Returns messages without consuming them, in the order of their numbers, after the given
    /// number.
    ///
    /// Returns an error unless [`Capabilities::browse`] is true; messages then have to be received
    /// and requeued.
    fn browse<'a>(
        &'a self,
        _queue_name: &'a QueueName,
        _after: u64,
        _max: usize,
    ) -> BoxFuture<'a, Result<Vec<(u64, RawMessage)>, Error>> {
        let broker = self.capabilities().broker;
        let cant = Error::Invalid(format!("{broker} can't show messages without receiving them"));
        std::future::ready(Err(cant)).boxed()
    }

    /// Returns the end of the lease on a message, by its number in [`Broker::browse`]. Returns
    /// `None` if no consumer has the message, or if the broker does not know.
    fn lease_end<'a>(
        &'a self,
        _queue_name: &'a QueueName,
        _number: u64,
    ) -> BoxFuture<'a, Result<Option<Timestamp>, Error>> {
        std::future::ready(Ok(None)).boxed()
    }

    /// Waits until the messages of dropped receipts are requeued.
    fn flush(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    /// Checks that a queue exists and can be used.
    fn check<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>>;

    /// Checks that the broker tells if a message of a queue was delivered before, which has to be counted.
    fn check_counted<'a>(&'a self, _queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        std::future::ready(Ok(())).boxed()
    }

    /// Creates the delay queues or topics of a queue, for the fixed delays and for instants that
    /// are at most `longest` away. For other delays they are created when the first message is
    /// published, which then waits for it. Does nothing if delays are native.
    fn prepare_delays<'a>(
        &'a self,
        _queue_name: &'a QueueName,
        _fixed: &'a [Span],
        _longest: Span,
    ) -> BoxFuture<'a, Result<(), Error>> {
        std::future::ready(Ok(())).boxed()
    }

    /// Registers fixed delays that other processes may use, so that [`Broker::depth`] counts the
    /// messages that wait for them. Does nothing if delays are native.
    fn expect_delays(&self, _fixed: &[Span]) {}

    /// Creates a queue that [`Broker::check`] did not find.
    fn create<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>>;

    /// Creates a queue whose dead-letter queue exists, and connects them if the broker itself moves
    /// messages that were delivered too often.
    fn create_with_dead_letters<'a>(
        &'a self,
        queue_name: &'a QueueName,
        _dead: &'a QueueName,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.create(queue_name)
    }

    /// Deletes all messages that are not in flight. Returns their number if the broker knows it.
    fn purge<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Option<u64>, Error>>;

    /// Takes over a delivery that any process received, by [`Receipt::token`]. The lease is not
    /// checked if that would take a request: settling the delivery reports that it is lost.
    ///
    /// Only for brokers whose receipts have a token.
    fn resume<'a>(
        &'a self,
        _queue_name: &'a QueueName,
        _token: &'a str,
    ) -> BoxFuture<'a, Result<ResumedMessage, Error>> {
        std::future::ready(Err(Error::Lost)).boxed()
    }
}

/// A queue on a broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QueueName {
    /// A queue of messages to process.
    Live(String),
    /// A dead-letter queue.
    Dead(String),
}

impl QueueName {
    /// Returns the name of the queue on the broker.
    pub fn name(&self) -> &str {
        match self {
            Self::Live(name) | Self::Dead(name) => name,
        }
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The features that a broker has natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the broker in messages.
    pub broker: &'static str,
    /// Kind of lease on a delivery.
    pub lease: LeaseKind,
    /// Maximum delay of a message; longer delays take several hops. Zero: the broker has no delays.
    pub delay_max: Span,
    /// Minimum delay of a message: the consumer holds messages that are due sooner.
    pub delay_min: Span,
    /// True if the broker has native delays for the few values of [`DeliveryDelay::Fixed`], exact
    /// to the millisecond; otherwise these are treated like any other delay.
    pub fixed_delays: bool,
    /// True if messages can be read without receiving them.
    pub browse: bool,
    /// True if the broker tells the number of messages in a queue.
    pub depth: bool,
    /// True if messages of a higher priority are delivered first, and others still get a share.
    /// Otherwise [`Options::priorities`](crate::Options::priorities) uses several queues.
    pub priorities: bool,
    /// Maximum size of a message, in bytes.
    pub size_max: usize,
    /// True if a message that its consumer returned looks like one that nobody settled, and the
    /// server may drop a message that was delivered too often.
    pub counts_returns: bool,
    /// Time until a queue that was just created survives a crash of the broker.
    pub creation_flush: Span,
    /// True if relaying a message is one atomic operation, so that not even a crash creates a
    /// duplicate.
    pub atomic_relay: bool,
}

/// The kind of lease on a delivery, which keeps it from other consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// For a time of at most this length, which its holder can extend.
    Timed(Span),
    /// Until the connection closes: there is nothing to extend.
    Connection,
}

/// A message to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// The message.
    pub message: Message,
    /// Delay of the delivery. A broker may deliver the message sooner: the consumer compares
    /// `not_before` with the clock and republishes it.
    pub delay: DeliveryDelay,
}

/// The delay of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryDelay {
    /// No delay.
    None,
    /// One of a few delays: see [`DeliveryTime::After`](crate::DeliveryTime::After).
    Fixed(Span),
    /// Until an instant.
    Until {
        /// The instant.
        at: Timestamp,
        /// Time left until the instant.
        left: Span,
    },
}

impl DeliveryDelay {
    /// Returns the length of the delay.
    pub const fn span(self) -> Span {
        match self {
            Self::None => Span::ZERO,
            Self::Fixed(span) | Self::Until { left: span, .. } => span,
        }
    }
}

/// Options of a stream of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumeOptions {
    /// Maximum number of deliveries in flight, if the broker enforces one.
    pub prefetch: u16,
    /// Length of the lease, if leases are timed.
    pub visibility: Span,
    /// Maximum time that one poll waits for messages, if the broker has to be polled. A cancelled
    /// receive leaves one poll in flight; its messages are requeued.
    pub wait: Span,
}

impl ConsumeOptions {
    /// The longest wait that any broker supports.
    pub const WAIT_MAX: Span = Span::from_secs(20);
}

/// A stream of deliveries. It reconnects by itself.
pub trait MessageSource: Send {
    /// Waits for deliveries and returns 1 to `max` of them. Cancelling the wait loses no message.
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>>;

    /// Ends the stream. Returns the deliveries that it has received and not handed out: dropping them
    /// would count as a delivery that nobody settled.
    fn close(self: Box<Self>) -> BoxFuture<'static, Vec<ReceivedMessage>> {
        drop(self);
        std::future::ready(Vec::new()).boxed()
    }
}

/// A delivery of a broker.
pub struct ReceivedMessage {
    /// The message.
    pub incoming: RawMessage,
    /// The right to settle the delivery.
    pub receipt: Box<dyn Receipt>,
}

/// A delivery that another process received.
pub struct ResumedMessage {
    /// The message, if the broker still has it. Without it, the delivery can be acknowledged,
    /// requeued and extended, but not republished.
    pub incoming: Option<RawMessage>,
    /// The right to settle the delivery.
    pub receipt: Box<dyn Receipt>,
}

/// A message as the broker delivers it, not yet parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawMessage {
    /// Body, as its producer sent it.
    pub body: Bytes,
    /// See [`Message`].
    pub content_type: Option<String>,
    /// See [`Message`].
    pub kind: Option<String>,
    /// See [`Message`].
    pub priority: u8,
    /// Headers of type text, without ours.
    pub headers: BTreeMap<String, String>,
    /// Our metadata, as it was written.
    pub envelope: Option<String>,
    /// Message id of the producer or the broker, the same at every delivery.
    pub foreign_id: Option<String>,
    /// Number of earlier deliveries that nobody settled, as far as the broker knows: some only know
    /// that there was one. Zero for the first delivery.
    pub redeliveries: u32,
    /// True if the broker delivers it in an order with others, so that it must not be published again
    /// because it was redelivered.
    pub is_ordered: bool,
}

/// The right to settle one delivery, once.
///
/// Dropping a receipt requeues the message without waiting for the result. If that fails, the
/// broker redelivers the message when the lease ends.
pub trait Receipt: Send + Sync {
    /// Acknowledges the message: the work is done.
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>>;

    /// Publishes the next message, and acknowledges this one when the broker has confirmed the
    /// next. If the next message was not published, the error contains the receipt.
    fn relay(
        self: Box<Self>,
        queue_name: QueueName,
        next: OutgoingMessage,
    ) -> BoxFuture<'static, Result<(), RelayError>>;

    /// Makes the message available to other consumers at once.
    fn requeue(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>>;

    /// Extends the lease to this length from now. Does nothing if leases are not timed.
    fn extend(&self, visibility: Span) -> BoxFuture<'_, Result<(), Error>>;

    /// Returns a text with which any process can take over the delivery: see [`Broker::resume`].
    /// `None` if the lease belongs to a connection of this process.
    fn token(&self) -> Option<String> {
        None
    }

    /// Drops the receipt without requeueing the message: its lease ends by itself. A lease without a
    /// token is requeued.
    fn detach(self: Box<Self>) {
        drop(self);
    }
}

/// The failure of [`Receipt::relay`].
pub struct RelayError {
    /// Reason of the failure.
    pub error: Error,
    /// The receipt, if the delivery can still be settled.
    pub receipt: Option<Box<dyn Receipt>>,
}

impl From<Error> for RelayError {
    fn from(error: Error) -> Self {
        Self { error, receipt: None }
    }
}

impl From<RelayError> for Error {
    fn from(failed: RelayError) -> Self {
        failed.error
    }
}

/// The number of messages in a queue. Values that a broker can't provide are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Messages that can be delivered now.
    pub ready: u64,
    /// Messages whose delay is not over.
    pub delayed: Option<u64>,
    /// Messages that were delivered and are not settled.
    pub in_flight: Option<u64>,
    /// Age of the oldest ready message.
    pub oldest: Option<Span>,
}
