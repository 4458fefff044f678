//! [`RabbitMq`]: a broker on RabbitMQ. Every message is persistent, mandatory and confirmed, and
//! delays use queues of the broker.
//!
//! ```text
//! target-delayed-30000ms ─ttl→ target          a fixed delay, in a queue of its own
//! target-rung-512ms ─ttl→ target ─early→ target-rung-256ms ─ttl→ target     any instant
//! ```
//!
//! An instant is reached over delay queues whose lengths are powers of two. Each hop takes the
//! longest that does not end too late, so that all messages in a delay queue wait equally long and
//! none blocks another.

mod connection;
mod delay_queue;
mod failure;
mod properties;
mod publish;
mod receipt;
mod source;
mod watchdog;

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use lapin::options::{QueueDeclareOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldTable};
use sluicegate_core::{Span, Timestamp};

use crate::Error;
use crate::broker::{
    Broker, Capabilities, ConsumeOptions, DeliveryDelay, Depth, LeaseKind, MessageSource,
    OutgoingMessage, QueueName,
};
use connection::RabbitConnection;
use delay_queue::DelayQueue;
pub use delay_queue::delayed_queue;
use source::RabbitSource;

/// Name of the broker in messages.
const NAME: &str = "RabbitMQ";
/// Default maximum message size of RabbitMQ 4; older versions accept more.
const SIZE_MAX: usize = 16 << 20;

/// Options of the RabbitMQ connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// Address and login: `amqp://user:password@host:5672/vhost`, or `amqps://`.
    pub url: String,
    /// Type of the queues that we create. Existing queues stay as they are.
    pub queue_type: QueueType,
    /// True if the queues that we create deliver messages of a higher priority first. Other
    /// programs that declare the same queue need the argument `x-max-priority: 9`, too.
    pub priorities: bool,
    /// Time until a queue that was just created survives a crash of RabbitMQ, which writes the
    /// definition of a queue with a delay. A message in a younger delay queue counts as sent when
    /// this time is over.
    pub creation_flush: Span,
}

impl Options {
    /// Creates options with defaults: classic queues without priorities, so that other programs can
    /// declare them without arguments.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            queue_type: QueueType::Classic,
            priorities: false,
            creation_flush: Span::from_secs(5),
        }
    }
}

/// Omits the address, because it contains a password.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("queue_type", &self.queue_type).finish_non_exhaustive()
    }
}

/// The type of a RabbitMQ queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueType {
    /// Stored on one node.
    Classic,
    /// Replicated on several nodes. Without priorities before RabbitMQ 4.
    Quorum,
}

/// A RabbitMQ broker.
#[derive(Debug)]
pub struct RabbitMq {
    connection: Arc<RabbitConnection>,
    options: Options,
}

impl RabbitMq {
    /// Creates a broker that connects when it is first used, and reconnects when the connection is
    /// lost.
    pub fn new(options: Options) -> Result<Self, Error> {
        let connection = RabbitConnection::new(&options.url, options.creation_flush)?;
        let connection = Arc::new(connection);
        Ok(Self { connection, options })
    }

    /// Creates a broker and connects. Returns an error if the address or the login is wrong.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let broker = Self::new(options)?;
        broker.connection.open().await?;
        Ok(broker)
    }

    /// Returns the arguments for creating a queue. Dead letters get no priorities, because other
    /// programs may declare the same queue.
    fn arguments(&self, queue_name: &QueueName) -> FieldTable {
        let mut arguments = FieldTable::default();
        if self.options.queue_type == QueueType::Quorum {
            let quorum = AMQPValue::LongString("quorum".into());
            arguments.insert("x-queue-type".into(), quorum);
        } else if self.options.priorities && matches!(queue_name, QueueName::Live(_)) {
            let max = AMQPValue::LongInt(i32::from(crate::Message::PRIORITY_MAX));
            arguments.insert("x-max-priority".into(), max);
        }
        arguments
    }

    /// Returns the number of messages in the delay queues that this process has used. RabbitMQ
    /// reports a queue only by its name, so without any known queue the number is unknown.
    async fn delayed_count(&self, queue_name: &QueueName) -> Result<Option<u64>, Error> {
        let mut delayed_count = None;
        for queue in self.connection.delay_queues(queue_name.name()) {
            let found = match self.find_queue(&QueueName::Live(queue)).await {
                Ok(found) => found.message_count(),
                // The queue was deleted.
                Err(Error::NoQueue { .. }) => 0,
                Err(error) => return Err(error),
            };
            delayed_count = Some(delayed_count.unwrap_or(0) + u64::from(found));
        }
        Ok(delayed_count)
    }

    /// Looks up a queue by its name only. A failed lookup closes its channel.
    async fn find_queue(&self, queue_name: &QueueName) -> Result<lapin::Queue, Error> {
        let channel = self.connection.new_channel().await?;
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let name = failure::name(queue_name.name())?;
        let found =
            connection::with_timeout(channel.queue_declare(name, passive, FieldTable::default()))
                .await;
        found.map_err(|error| failure::of_queue(queue_name.name(), error))
    }
}

impl Broker for RabbitMq {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            broker: NAME,
            lease: LeaseKind::Connection,
            delay_max: delay_queue::STEP_MAX,
            delay_min: delay_queue::HOLD_MAX,
            fixed_delays: true,
            browse: false,
            priorities: self.options.priorities,
            size_max: SIZE_MAX,
            counts_redeliveries: true,
            creation_flush: self.options.creation_flush,
            atomic_relay: false,
        }
    }

    fn publish<'a>(
        &'a self,
        queue_name: &'a QueueName,
        batch: Vec<OutgoingMessage>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        let batch = batch.into_iter().map(|outgoing| (outgoing, None)).collect();
        publish::publish(&self.connection, queue_name, batch).boxed()
    }

    fn consume<'a>(
        &'a self,
        queue_name: &'a QueueName,
        options: ConsumeOptions,
    ) -> BoxFuture<'a, Result<Box<dyn MessageSource>, Error>> {
        async move {
            let mut source =
                RabbitSource::new(self.connection.clone(), queue_name.clone(), options);
            source.subscribe().await?;
            let source: Box<dyn MessageSource> = Box::new(source);
            Ok(source)
        }
        .boxed()
    }

    fn depth<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Depth, Error>> {
        async move {
            let ready = u64::from(self.find_queue(queue_name).await?.message_count());
            let delayed = self.delayed_count(queue_name).await?;
            Ok(Depth { ready, delayed, ..Depth::default() })
        }
        .boxed()
    }

    fn check<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move { self.find_queue(queue_name).await.map(drop) }.boxed()
    }

    fn prepare_delays<'a>(
        &'a self,
        queue_name: &'a QueueName,
        fixed: &'a [Span],
        longest: Span,
    ) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let longest = longest.min(delay_queue::STEP_MAX);
            let until = DeliveryDelay::Until { at: Timestamp::MAX, left: longest };
            let delays = fixed.iter().map(|span| DeliveryDelay::Fixed(*span)).chain([until]);
            let delay_queues = delays.filter_map(DelayQueue::of).collect();
            let live = self.connection.open().await?;
            publish::prepare(&self.connection, &live, queue_name, delay_queues).await
        }
        .boxed()
    }

    fn create<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let channel = self.connection.new_channel().await?;
            let durable = QueueDeclareOptions { durable: true, ..Default::default() };
            let name = failure::name(queue_name.name())?;
            let declared = channel.queue_declare(name, durable, self.arguments(queue_name));
            let declared = connection::with_timeout(declared).await;
            declared.map(drop).map_err(|error| failure::of_queue(queue_name.name(), error))
        }
        .boxed()
    }

    fn purge<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        async move {
            let channel = self.connection.new_channel().await?;
            let name = failure::name(queue_name.name())?;
            let purged =
                connection::with_timeout(channel.queue_purge(name, QueuePurgeOptions::default()))
                    .await;
            let purged = purged.map_err(|error| failure::of_queue(queue_name.name(), error))?;
            Ok(Some(u64::from(purged)))
        }
        .boxed()
    }
}
