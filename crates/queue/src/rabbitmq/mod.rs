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
    /// Time until a queue that was just created survives a crash of RabbitMQ, which writes the
    /// definition of a queue with a delay. A message in a younger delay queue counts as sent when
    /// this time is over.
    pub creation_flush: Span,
}

impl Options {
    /// Creates options with defaults: classic queues, which other programs can declare without
    /// arguments.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), queue_type: QueueType::Classic, creation_flush: Span::from_secs(5) }
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
    /// Replicated on several nodes.
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

    /// Returns the arguments for creating a queue.
    fn arguments(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        if self.options.queue_type == QueueType::Quorum {
            let quorum = AMQPValue::LongString("quorum".into());
            arguments.insert("x-queue-type".into(), quorum);
        }
        arguments
    }

    /// Finds the delay queues of a target by their names: another process may have declared them, or
    /// this one before it was restarted. They are counted and watched from then on.
    async fn search_delays(&self, target: &QueueName) -> Result<(), Error> {
        if !self.connection.is_search_due(target.name()) {
            return Ok(());
        }
        // A delay queue is always declared together with all shorter ones.
        for step in DelayQueue::steps() {
            if !self.has_delay_queue(target, step).await? {
                break;
            }
        }
        for span in self.connection.expected_delays() {
            self.has_delay_queue(target, DelayQueue::Fixed(span)).await?;
        }
        self.connection.mark_searched(target.name());
        Ok(())
    }

    async fn has_delay_queue(
        &self,
        target: &QueueName,
        delay_queue: DelayQueue,
    ) -> Result<bool, Error> {
        let queue = delay_queue.queue(target.name());
        if self.connection.delay_queues(target.name()).contains(&queue) {
            return Ok(true);
        }
        match self.find_queue(&QueueName::Live(queue)).await {
            Ok(_) => {
                publish::look_after(&self.connection, target, delay_queue);
                Ok(true)
            }
            // An invalid name is too long.
            Err(Error::NoQueue { .. } | Error::Invalid(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of messages in the delay queues of a target.
    async fn delayed_count(&self, queue_name: &QueueName) -> Result<Option<u64>, Error> {
        if matches!(queue_name, QueueName::Dead(_)) {
            return Ok(None);
        }
        self.search_delays(queue_name).await?;
        let mut delayed_count = 0;
        for queue in self.connection.delay_queues(queue_name.name()) {
            let found = match self.find_queue(&QueueName::Live(queue)).await {
                Ok(found) => found.message_count(),
                // The queue was deleted.
                Err(Error::NoQueue { .. }) => 0,
                Err(error) => return Err(error),
            };
            delayed_count += u64::from(found);
        }
        Ok(Some(delayed_count))
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
            depth: true,
            priorities: false,
            size_max: SIZE_MAX,
            counts_returns: true,
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

    fn expect_delays(&self, fixed: &[Span]) {
        self.connection.expect_delays(fixed);
    }

    fn create<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let channel = self.connection.new_channel().await?;
            let durable = QueueDeclareOptions { durable: true, ..Default::default() };
            let name = failure::name(queue_name.name())?;
            let declared = channel.queue_declare(name, durable, self.arguments());
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
