//! [`ServiceBus`]: a broker on queues of Azure Service Bus, with locks that are renewed, scheduled
//! messages, and settlements that the service confirms.
//!
//! ```text
//! sender link ─confirmed→ queue ─receiver link, locked→ consumer ─management link→ completed, abandoned, suspended
//! ```
//!
//! Messages are settled by management requests and not on the link that they came from: only those
//! requests say if the lock was still valid.

mod admin;
mod connection;
mod credential;
mod failure;
mod lease;
mod management;
mod namespace;
mod properties;
mod publish;
mod queue_handle;
mod receipt;
mod settlement;
mod source;
mod web_client;

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use sluicegate_core::Span;
use tracing::warn;

use crate::body_fields::BodyFields;
use crate::broker::{
    Broker, Capabilities, ConsumeOptions, Depth, LeaseKind, MessageSource, OutgoingMessage,
    QueueName, RawMessage,
};
use crate::requeues::PendingRequeues;
use crate::{Error, JobId, envelope};
use connection::BusConnection;
pub use credential::{Credential, EntraIdentity, EntraProof};
use management::ManagementRequest;
pub use namespace::{Options, Transport};
use properties::NativeMessage;
use queue_handle::{BusQueue, QueueHandle, SUBQUEUE};
use source::BusSource;

/// Name of the broker in messages.
const NAME: &str = "Service Bus";
/// Maximum size of a message in the premium tier. Each queue tells its own maximum, which applies.
const SIZE_MAX: usize = 100 << 20;
/// Longest visibility timeout: locks are renewed as long as a process lives.
const LEASE_MAX: Span = Span::from_secs(43_200);
/// Maximum number of messages per page when a queue is browsed.
const PAGE_MAX: usize = 250;
/// Number of messages at which counting by browsing ends.
const COUNT_MAX: u64 = 10_000;
/// Number of messages that a purge takes at once, and the time without a message after which it ends.
const PURGE_BATCH: u16 = 500;
const PURGE_IDLE: Duration = Duration::from_secs(1);

const CAPABILITIES: Capabilities = Capabilities {
    broker: NAME,
    lease: LeaseKind::Timed(LEASE_MAX),
    delay_max: Span::from_micros(u64::MAX),
    delay_min: Span::from_millis(1),
    fixed_delays: false,
    depth: true,
    browse: true,
    priorities: false,
    size_max: SIZE_MAX,
    counts_returns: true,
    creation_flush: Span::ZERO,
    atomic_relay: false,
};

/// A namespace of Azure Service Bus.
pub struct ServiceBus {
    bus: Arc<BusClient>,
}

/// The connection to a namespace, and its queues.
struct BusClient {
    connection: Arc<BusConnection>,
    queues: Lock<HashMap<String, Arc<QueueHandle>>>,
    requeues: PendingRequeues,
}

impl BusClient {
    /// Returns the handle of a queue.
    fn queue(&self, queue_name: &QueueName) -> Arc<QueueHandle> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let name = queue_name.name();
        if let Some(known) = queues.get(name) {
            return known.clone();
        }
        let handle = Arc::new(QueueHandle::new(self.connection.clone(), queue_name));
        queues.insert(name.to_owned(), handle.clone());
        handle
    }
}

impl ServiceBus {
    /// Creates a broker that connects when it is first used, and reconnects when the connection is
    /// lost.
    pub fn new(options: Options) -> Result<Self, Error> {
        let connection = Arc::new(BusConnection::new(options)?);
        let (queues, requeues) = (Lock::default(), PendingRequeues::new());
        Ok(Self { bus: Arc::new(BusClient { connection, queues, requeues }) })
    }

    /// Creates a broker and connects. Returns an error if the namespace can't be reached; identity and
    /// rights are checked for each queue.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let broker = Self::new(options)?;
        broker.bus.connection.open().await?;
        Ok(broker)
    }

    /// Returns a page of messages after a number, in any state.
    async fn page(
        &self,
        queue: &BusQueue,
        after: u64,
        max: usize,
    ) -> Result<Vec<NativeMessage>, Error> {
        let from = i64::try_from(after.saturating_add(1)).unwrap_or(i64::MAX);
        let max = i32::try_from(max.clamp(1, PAGE_MAX)).unwrap_or(1);
        let response = queue.request(ManagementRequest::peek(from, max)).await?;
        Ok(response.messages().into_iter().map(properties::read).collect())
    }

    /// Counts messages by browsing, for an identity that may not use the management API.
    async fn browsed_counts(&self, queue: &BusQueue) -> Result<admin::Counts, Error> {
        let (mut counts, mut after) = (admin::Counts::default(), 0);
        while counts.active + counts.scheduled < COUNT_MAX {
            let page = self.page(queue, after, PAGE_MAX).await?;
            let Some(last) = page.last() else { break };
            after = last.number;
            let scheduled = page.iter().filter(|message| message.is_scheduled).count() as u64;
            counts.scheduled += scheduled;
            counts.active += page.len() as u64 - scheduled;
        }
        Ok(counts)
    }

    /// Checks that a queue detects duplicates for this time. An identity that may not use the management
    /// API can't check it.
    async fn check_detection(&self, queue: &BusQueue, window: Span) -> Result<(), Error> {
        let name = queue.address();
        match admin::deduplication(&self.bus.connection, name).await {
            Ok(found) if found.as_secs_ceil() == window.as_secs_ceil() => Ok(()),
            Ok(found) => {
                let found = match found {
                    Span::ZERO => "it does not detect duplicates".to_owned(),
                    found => format!("it detects duplicates for {found}"),
                };
                let seconds = window.as_secs_ceil();
                let detail = format!(
                    "{found}, and queue.deduplication is {window}: change that, or create the queue \
                     with `az servicebus queue create --duplicate-detection true \
                     --duplicate-detection-history-time-window PT{seconds}S`"
                );
                Err(Error::Unusable { queue: name.to_owned(), detail })
            }
            Err(Error::Refused { .. }) => {
                warn!(queue = name, "duplicate detection not verified: requires the Manage right");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Cancels the scheduled messages of a job, or of all jobs. Returns their number.
    async fn cancel_scheduled(&self, queue: &BusQueue, job: Option<&JobId>) -> Result<u64, Error> {
        let is_wanted = |message: &NativeMessage| {
            let fields = BodyFields::default();
            message.is_scheduled
                && job.is_none_or(|job| {
                    envelope::read(message.incoming.clone(), &fields).meta.job == *job
                })
        };
        let (mut cancelled, mut after) = (0, 0);
        loop {
            let page = self.page(queue, after, PAGE_MAX).await?;
            let Some(last) = page.last() else { return Ok(cancelled) };
            after = last.number;
            let numbers = page.iter().filter(|message| is_wanted(message));
            let numbers: Vec<_> = numbers.filter_map(|m| i64::try_from(m.number).ok()).collect();
            if !numbers.is_empty() {
                queue.request(ManagementRequest::cancel(&numbers)).await?;
                cancelled += numbers.len() as u64;
            }
        }
    }
}

impl std::fmt::Debug for ServiceBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceBus")
            .field("host", &self.bus.connection.options.host)
            .finish_non_exhaustive()
    }
}

impl Broker for ServiceBus {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn publish<'a>(
        &'a self,
        queue_name: &'a QueueName,
        batch: Vec<OutgoingMessage>,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        let batch = batch.into_iter().map(|outgoing| (outgoing, None)).collect();
        publish::publish(&self.bus, queue_name, batch).boxed()
    }

    /// Service Bus itself drops a message whose id, the job and its hop, it has seen. A retry or a
    /// replayed dead letter has another hop.
    fn publish_once<'a>(
        &'a self,
        queue_name: &'a QueueName,
        batch: Vec<OutgoingMessage>,
        window: Span,
    ) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        async move {
            let queue = &self.bus.queue(queue_name).queue;
            match queue.detection.get_or_try_init(|| self.check_detection(queue, window)).await {
                Ok(()) => self.publish(queue_name, batch).await,
                Err(error) => vec![Err(error); batch.len()],
            }
        }
        .boxed()
    }

    fn consume<'a>(
        &'a self,
        queue_name: &'a QueueName,
        options: ConsumeOptions,
    ) -> BoxFuture<'a, Result<Box<dyn MessageSource>, Error>> {
        async move {
            let handle = self.bus.queue(queue_name);
            let source = BusSource::open(self.bus.clone(), handle, options).await?;
            let source: Box<dyn MessageSource> = Box::new(source);
            Ok(source)
        }
        .boxed()
    }

    fn depth<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Depth, Error>> {
        async move {
            let handle = self.bus.queue(queue_name);
            let name = queue_name.name();
            let of_subqueue = handle.queue.is_subqueue();
            let counted = &name[..name.len() - if of_subqueue { SUBQUEUE.len() } else { 0 }];
            let counts = match admin::counts(&self.bus.connection, counted).await {
                Ok(counts) if of_subqueue => {
                    admin::Counts { active: counts.dead, ..admin::Counts::default() }
                }
                Err(Error::Refused { .. }) => self.browsed_counts(&handle.queue).await?,
                counts => counts?,
            };
            // Service Bus counts locked messages as active. It does not tell those of other processes.
            let ready = counts.active.saturating_sub(handle.leases.count());
            Ok(Depth { ready, delayed: Some(counts.scheduled), ..Depth::default() })
        }
        .boxed()
    }

    fn browse<'a>(
        &'a self,
        queue_name: &'a QueueName,
        after: u64,
        max: usize,
    ) -> BoxFuture<'a, Result<Vec<(u64, RawMessage)>, Error>> {
        async move {
            let page = self.page(&self.bus.queue(queue_name).queue, after, max).await?;
            Ok(page.into_iter().map(|message| (message.number, message.incoming)).collect())
        }
        .boxed()
    }

    fn cancel<'a>(
        &'a self,
        queue_name: &'a QueueName,
        job: &'a JobId,
    ) -> BoxFuture<'a, Result<u64, Error>> {
        async move { self.cancel_scheduled(&self.bus.queue(queue_name).queue, Some(job)).await }
            .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        self.bus.requeues.flush().boxed()
    }

    fn check<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move { self.bus.queue(queue_name).queue.check().await }.boxed()
    }

    fn create<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            // A subqueue is created with its queue.
            if self.bus.queue(queue_name).queue.is_subqueue() {
                return Ok(());
            }
            let deduplication = match queue_name {
                QueueName::Live(_) => self.bus.connection.options.deduplication,
                QueueName::Dead(_) => Span::ZERO,
            };
            admin::create(&self.bus.connection, queue_name.name(), deduplication).await
        }
        .boxed()
    }

    fn purge<'a>(&'a self, queue_name: &'a QueueName) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        async move {
            let handle = self.bus.queue(queue_name);
            let mut purged = self.cancel_scheduled(&handle.queue, None).await?;
            let options = ConsumeOptions {
                prefetch: PURGE_BATCH,
                visibility: LEASE_MAX,
                wait: ConsumeOptions::WAIT_MAX,
            };
            let mut source = BusSource::open(self.bus.clone(), handle, options).await?;
            let batch = usize::from(PURGE_BATCH);
            while let Ok(received) = tokio::time::timeout(PURGE_IDLE, source.next(batch)).await {
                let deleted = received?.into_iter().map(|message| message.receipt.ack());
                let deleted = join_all(deleted.collect::<Vec<_>>()).await;
                purged += deleted.iter().filter(|result| result.is_ok()).count() as u64;
            }
            Ok(Some(purged))
        }
        .boxed()
    }
}
