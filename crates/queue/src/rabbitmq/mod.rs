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

mod delay;
mod failure;
mod link;
mod nudge;
mod properties;
mod publish;
mod receipt;
mod source;

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use lapin::options::{QueueDeclareOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldTable};

use crate::Error;
use crate::broker::{Broker, Capabilities, Depth, Lease, Outgoing, Place, Source, Terms};
pub use delay::delayed_queue;
use link::Link;
use source::Consuming;

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
}

impl Options {
    /// Creates options with defaults: classic queues without priorities, so that other programs can
    /// declare them without arguments.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), queue_type: QueueType::Classic, priorities: false }
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
    link: Arc<Link>,
    options: Options,
}

impl RabbitMq {
    /// Creates a broker that connects when it is first used, and reconnects when the connection is
    /// lost.
    pub fn new(options: Options) -> Result<Self, Error> {
        let link = Arc::new(Link::new(&options.url)?);
        Ok(Self { link, options })
    }

    /// Creates a broker and connects. Returns an error if the address or the login is wrong.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let broker = Self::new(options)?;
        broker.link.live().await?;
        Ok(broker)
    }

    /// Returns the arguments for creating a queue. Dead letters get no priorities, because other
    /// programs may declare the same queue.
    fn arguments(&self, place: &Place) -> FieldTable {
        let mut arguments = FieldTable::default();
        if self.options.queue_type == QueueType::Quorum {
            let quorum = AMQPValue::LongString("quorum".into());
            arguments.insert("x-queue-type".into(), quorum);
        } else if self.options.priorities && matches!(place, Place::Live(_)) {
            let max = AMQPValue::LongInt(i32::from(crate::Message::PRIORITY_MAX));
            arguments.insert("x-max-priority".into(), max);
        }
        arguments
    }

    /// Returns the number of messages in the delay queues that this process has used. RabbitMQ
    /// reports a queue only by its name, so without any known queue the number is unknown.
    async fn parked(&self, place: &Place) -> Result<Option<u64>, Error> {
        let mut parked = None;
        for queue in self.link.delays(place.name()) {
            let found = match self.look(&Place::Live(queue)).await {
                Ok(found) => found.message_count(),
                // The queue was deleted.
                Err(Error::NoQueue { .. }) => 0,
                Err(error) => return Err(error),
            };
            parked = Some(parked.unwrap_or(0) + u64::from(found));
        }
        Ok(parked)
    }

    /// Looks up a queue by its name only. A failed lookup closes its channel.
    async fn look(&self, place: &Place) -> Result<lapin::Queue, Error> {
        let channel = self.link.throwaway().await?;
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let name = failure::name(place.name())?;
        let found =
            link::in_time(channel.queue_declare(name, passive, FieldTable::default())).await;
        found.map_err(|error| failure::of_queue(place.name(), error))
    }
}

impl Broker for RabbitMq {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            broker: NAME,
            lease: Lease::Connection,
            delay_max: delay::RUNG_MAX,
            delay_min: delay::HELD,
            fixed_delays: true,
            browse: false,
            priorities: self.options.priorities,
            size_max: SIZE_MAX,
            counts_returns: true,
            atomic_relay: false,
        }
    }

    fn publish<'a>(
        &'a self,
        place: &'a Place,
        batch: Vec<Outgoing>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        let batch = batch.into_iter().map(|outgoing| (outgoing, None)).collect();
        publish::publish(&self.link, place, batch).boxed()
    }

    fn consume<'a>(
        &'a self,
        place: &'a Place,
        terms: Terms,
    ) -> BoxFuture<'a, Result<Box<dyn Source>, Error>> {
        async move {
            let mut source = Consuming::new(self.link.clone(), place.clone(), terms);
            source.subscribe().await?;
            let source: Box<dyn Source> = Box::new(source);
            Ok(source)
        }
        .boxed()
    }

    fn depth<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Depth, Error>> {
        async move {
            let ready = u64::from(self.look(place).await?.message_count());
            let delayed = self.parked(place).await?;
            Ok(Depth { ready, delayed, ..Depth::default() })
        }
        .boxed()
    }

    fn check<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), Error>> {
        async move { self.look(place).await.map(drop) }.boxed()
    }

    fn create<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let channel = self.link.throwaway().await?;
            let durable = QueueDeclareOptions { durable: true, ..Default::default() };
            let name = failure::name(place.name())?;
            let declared = channel.queue_declare(name, durable, self.arguments(place));
            let declared = link::in_time(declared).await;
            declared.map(drop).map_err(|error| failure::of_queue(place.name(), error))
        }
        .boxed()
    }

    fn purge<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        async move {
            let channel = self.link.throwaway().await?;
            let name = failure::name(place.name())?;
            let purged =
                link::in_time(channel.queue_purge(name, QueuePurgeOptions::default())).await;
            let purged = purged.map_err(|error| failure::of_queue(place.name(), error))?;
            Ok(Some(u64::from(purged)))
        }
        .boxed()
    }
}
