//! Queues for clients without a connection of their own to the broker, such as those of the HTTP
//! API. A client that receives a message gets a [`LeaseHandle`], and settles the message with it.
//!
//! ```text
//! receive ─Delivery→ LeaseTable ─handle→ client … client ─handle, LeaseAction→ LeaseTable ─Delivery→ broker
//! ```
//!
//! | the request comes to | the broker's receipts have a token | they have none |
//! |---|---|---|
//! | the node that received the message | its table has the delivery | its table has the delivery |
//! | another node, or the same after a restart | the token takes it over: [`Broker::resume`](crate::Broker::resume) | [`LeaseError::OtherNode`] |
//!
//! A lease ends at its time. A message without a token is then requeued by the node; other leases
//! end at the broker, because another node may have extended them.

mod action;
mod error;
mod handle;
mod idle_consumers;
mod lease_table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Timestamp};
use tokio::sync::watch;
use tracing::warn;

pub use action::{LeaseAction, LeaseActionKind};
pub use error::{LeaseEnd, LeaseError};
pub use handle::LeaseHandle;

use crate::broker::{ConsumeOptions, LeaseKind, Receipt, ResumedMessage};
use crate::{
    Consumer, ConsumerObserver, DeadLetterReason, Delivery, DeliveryTime, Depth, Error, JobId,
    Message, MessageId, Queue,
};
use idle_consumers::IdleConsumers;
use lease_table::{LeaseLocation, LeasePermits, LeaseTable};

/// Time that a receive waits beyond the client's wait time, because a broker that pushes messages
/// needs a moment.
const GRACE: Duration = Duration::from_millis(250);
/// Time that a receive waits for further messages after the first, if the broker pushes them.
const GATHER: Duration = Duration::from_millis(10);
/// Maximum time for requeueing leased messages at the end of the process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens queues by their names.
pub trait QueueOpener: Send + Sync + 'static {
    /// Returns a handle to a queue. Does not check that the queue exists.
    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Queue, Error>>;

    /// Creates a queue that an operation did not find. Returns false if missing queues are an error.
    fn create<'a>(&'a self, queue: &'a Queue) -> BoxFuture<'a, Result<bool, Error>>;
}

/// Receives the queues that clients use, and what they do with messages.
pub trait ClientObserver: Send + Sync {
    /// Receives a queue that a client has sent to or received from.
    fn on_queue(&self, queue: &Queue);

    /// Receives an event of one message.
    fn on_event(&self, event: &ClientEvent<'_>);
}

/// An event of a message that a client of this node caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientEvent<'a> {
    /// Name of the queue.
    pub queue: &'a str,
    /// The message.
    pub message: &'a MessageMark,
    /// The event.
    pub kind: ClientEventKind,
}

/// The kind of a [`ClientEvent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEventKind {
    /// The message was sent, for delivery at this time or at once.
    Sent(Option<Timestamp>),
    /// A client has leased it until this time.
    Leased(Timestamp),
    /// The client has settled its lease.
    Settled {
        /// The action.
        action: LeaseActionKind,
        /// Earliest next delivery of a message that is returned; `None`: at once.
        until: Option<Timestamp>,
        /// The error that the client stated.
        error: Option<String>,
    },
}

/// The parts of a message that identify it and count its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageMark {
    /// Job id.
    pub job: JobId,
    /// Number of failed attempts.
    pub attempt: u32,
    /// Number of deferrals.
    pub deferrals: u32,
}

impl MessageMark {
    pub(super) fn of(message: &Message) -> Self {
        let meta = &message.meta;
        Self { job: meta.job.clone(), attempt: meta.attempt, deferrals: meta.deferrals }
    }
}

/// Options of [`RemoteQueues`].
#[derive(Clone)]
pub struct RemoteOptions {
    /// Name of the machine. A handle names it and a random part, which changes with every start.
    pub host: String,
    /// Maximum number of open leases on this node.
    pub leases_max: usize,
    /// Clock.
    pub clock: Arc<dyn Clock>,
}

/// The wishes of a client that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Maximum number of messages.
    pub max: usize,
    /// Time to wait for the first message.
    pub wait: Span,
    /// Length of the lease; `None` for that of the queue.
    pub lease: Option<Span>,
}

/// A message that a client has leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedMessage {
    /// Handle to settle it.
    pub handle: LeaseHandle,
    /// The message.
    pub message: Message,
    /// Number of earlier deliveries that were not settled, as far as the broker knows.
    pub redeliveries: u32,
    /// End of the lease.
    pub until: Timestamp,
}

/// The number of messages in a queue and its dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepths {
    /// Messages of the queue; `None` if the broker can't count them.
    pub depth: Option<Depth>,
    /// Name of its dead-letter queue.
    pub dead_letter_queue: String,
    /// Dead letters of this queue; `None` if the broker can't count them.
    pub dead_letters: Option<u64>,
    /// Leases of this queue that are open on this node.
    pub open_leases: usize,
}

/// The queues of a broker, for clients of this node.
pub struct RemoteQueues {
    opener: Arc<dyn QueueOpener>,
    table: Arc<LeaseTable>,
    idle: IdleConsumers,
    clock: Arc<dyn Clock>,
    stopped: watch::Sender<bool>,
    counts: Arc<Counters>,
    observer: Option<Arc<dyn ClientObserver>>,
}

/// Messages that clients of a node have sent, received and settled since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Settled leases by action, in the order of [`LeaseActionKind::ALL`].
    pub settled: [u64; 5],
    /// Extended leases.
    pub extended: u64,
    /// Leases that were lost or whose time was over when their client used them.
    pub lost: u64,
}

#[derive(Default)]
struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    settled: [AtomicU64; 5],
    extended: AtomicU64,
    lost: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts a lost lease.
    fn result<T>(&self, result: Result<T, LeaseError>) -> Result<T, LeaseError> {
        let is_lost = |error: &LeaseError| {
            matches!(error, LeaseError::Lost { .. } | LeaseError::Expired { .. })
        };
        if result.as_ref().is_err_and(is_lost) {
            Self::add(&self.lost, 1);
        }
        result
    }
}

impl RemoteQueues {
    /// Creates it without contacting the broker. Needs a Tokio runtime.
    pub fn new(opener: Arc<dyn QueueOpener>, options: RemoteOptions) -> Self {
        let RemoteOptions { host, leases_max, clock } = options;
        let table = LeaseTable::start(handle::node_name(&host), leases_max, clock.clone());
        let (stopped, _) = watch::channel(false);
        let (idle, counts) = (IdleConsumers::default(), Counters::default());
        Self { opener, table, idle, clock, stopped, counts: Arc::new(counts), observer: None }
    }

    /// Reports what clients do to an observer.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn ClientObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Returns the name of this node.
    pub fn node(&self) -> &str {
        self.table.node()
    }

    /// Returns the number of open leases.
    pub fn open_leases(&self) -> usize {
        self.table.open()
    }

    /// Returns what clients have done since the start.
    pub fn counts(&self) -> RemoteCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { sent, received, settled, extended, lost } = &*self.counts;
        RemoteCounts {
            sent: read(sent),
            received: read(received),
            settled: std::array::from_fn(|kind| read(&settled[kind])),
            extended: read(extended),
            lost: read(lost),
        }
    }

    /// Returns the delivery time after a delay that a client chose.
    pub fn after(&self, delay: Span) -> DeliveryTime {
        if delay == Span::ZERO {
            DeliveryTime::Now
        } else {
            DeliveryTime::At(self.clock.now() + delay)
        }
    }

    /// Returns the time left until an instant.
    pub fn until(&self, at: Timestamp) -> Span {
        at.since(self.clock.now())
    }

    /// Sends messages independently of each other. Returns one result each, in order.
    ///
    /// `message` creates a message for a queue, which knows where a body contains the job id.
    pub async fn send<T>(
        &self,
        name: &str,
        batch: Vec<T>,
        message: impl Fn(&Queue, T) -> (Message, DeliveryTime),
    ) -> Result<Vec<Result<MessageId, Error>>, Error> {
        let queue = self.opener.open(name).await?;
        let batch: Vec<_> = batch.into_iter().map(|part| message(&queue, part)).collect();
        let marks: Vec<_> = match &self.observer {
            None => Vec::new(),
            Some(_) => batch.iter().map(|(message, at)| (MessageMark::of(message), *at)).collect(),
        };
        let mut sent = queue.send_batch(batch.clone()).await;
        let is_missing =
            |result: &Result<MessageId, Error>| matches!(result, Err(Error::NoQueue { .. }));
        if sent.iter().any(is_missing) && self.opener.create(&queue).await? {
            // A missing queue took none of them.
            sent = queue.send_batch(batch).await;
        }
        Counters::add(&self.counts.sent, sent.iter().filter(|sent| sent.is_ok()).count());
        if let Some(observer) = self.observer.as_ref().filter(|_| sent.iter().any(Result::is_ok)) {
            observer.on_queue(&queue);
            for ((message, at), _) in marks.iter().zip(&sent).filter(|(_, sent)| sent.is_ok()) {
                let kind = ClientEventKind::Sent(later(*at));
                observer.on_event(&ClientEvent { queue: name, message, kind });
            }
        }
        Ok(sent)
    }

    /// Waits for messages and leases them to a client. Returns none if the time is over or this node
    /// is stopping.
    pub async fn receive(
        &self,
        name: &str,
        request: ReceiveRequest,
    ) -> Result<Vec<LeasedMessage>, LeaseError> {
        let mut permits = self.table.reserve()?;
        let queue = self.opener.open(name).await?;
        let lease = request.lease.unwrap_or(queue.visibility());
        let mut stopped = self.stopped.subscribe();
        let received = tokio::select! {
            // A node that is stopping starts no poll, which would lease messages for nobody.
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(Vec::new()),
            received = self.take(&queue, &mut permits, request, lease) => received?,
        };
        let Received { deliveries, since } = received;
        let until = since + lease;
        Counters::add(&self.counts.received, deliveries.len());
        let lease = |delivery| self.table.add(name, delivery, until, permits.take_one());
        let leased: Vec<_> = deliveries.into_iter().map(lease).collect();
        if let Some(observer) = &self.observer {
            observer.on_queue(&queue);
            for leased in &leased {
                let message = &MessageMark::of(&leased.message);
                let kind = ClientEventKind::Leased(until);
                observer.on_event(&ClientEvent { queue: name, message, kind });
            }
        }
        Ok(leased)
    }

    /// Waits for messages, as many as there is room for. Creates the queue if that is configured.
    async fn take(
        &self,
        queue: &Queue,
        permits: &mut LeasePermits,
        ReceiveRequest { max, wait, .. }: ReceiveRequest,
        lease: Span,
    ) -> Result<Received, LeaseError> {
        let max = max.min(self.table.room().saturating_add(1));
        let started = self.clock.now();
        let poll = Span::from_secs(wait.as_micros() / 1_000_000).min(ConsumeOptions::WAIT_MAX);
        let times = (poll, lease);
        let (mut consumer, since) = match self.idle.take(queue.name(), times) {
            // The consumer may have leased messages while it was idle.
            Some((consumer, idle_since)) => (consumer, idle_since),
            None => {
                let prefetch = u16::try_from(max).unwrap_or(u16::MAX);
                let options = ConsumeOptions { prefetch, visibility: lease, wait: poll };
                (self.consumer(queue, options).await?, started)
            }
        };
        let time = Duration::from(wait) + GRACE;
        let mut deliveries = match tokio::time::timeout(time, consumer.receive(max)).await {
            Ok(received) => received?,
            Err(_) => Vec::new(),
        };
        if queue.capabilities().lease == LeaseKind::Connection {
            // The broker pushes messages. Those that arrive later are returned.
            while !deliveries.is_empty() && deliveries.len() < max {
                let more = consumer.receive(max - deliveries.len());
                let Ok(more) = tokio::time::timeout(GATHER, more).await else { break };
                deliveries.extend(more?);
            }
        }
        // Other receives may have taken the room meanwhile.
        let room = permits.grow(deliveries.len());
        if deliveries.len() > room {
            consumer.put_back(deliveries.split_off(room));
        }
        if queue.capabilities().lease != LeaseKind::Connection && !*self.stopped.borrow() {
            self.idle.put(queue.name(), times, consumer, self.clock.now());
        } else {
            tokio::spawn(consumer.close());
        }
        Ok(Received { deliveries, since })
    }

    async fn consumer(&self, queue: &Queue, options: ConsumeOptions) -> Result<Consumer, Error> {
        let consumer = match queue.consume_with(options).await {
            Err(Error::NoQueue { .. }) if self.opener.create(queue).await? => {
                queue.consume_with(options).await
            }
            consumer => consumer,
        }?;
        Ok(match &self.observer {
            None => consumer,
            Some(observer) => {
                let (observer, queue) = (observer.clone(), queue.name().to_owned());
                consumer.with_observer(Arc::new(UnseenMessages { observer, queue }))
            }
        })
    }

    /// Settles a lease. Returns true if the same request has settled it before.
    ///
    /// Completes even if its caller stops waiting.
    pub async fn settle(
        &self,
        name: &str,
        handle: &LeaseHandle,
        action: LeaseAction,
    ) -> Result<bool, LeaseError> {
        let (table, opener, kind) = (self.table.clone(), self.opener.clone(), action.kind());
        let (name, handle) = (name.to_owned(), handle.clone());
        let observer = self.observer.clone();
        let settling = async move {
            let event = ClientEventKind::Settled {
                action: kind,
                until: action.delivery_time().and_then(later),
                error: action.error().map(str::to_owned),
            };
            let (settled, mark) = match table.find(&name, &handle)? {
                LeaseLocation::Here(lease) => {
                    (lease.settle(&table, &handle, action).await, lease.mark().cloned())
                }
                LeaseLocation::Elsewhere(token) => {
                    let queue = opener.open(&name).await?;
                    let lost = |error| LeaseError::of(error, handle.node());
                    let resumed = queue.resume(&token).await.map_err(lost)?;
                    let mark = settle_resumed(&queue, &handle, resumed, action).await?;
                    table.remember(&name, &handle, LeaseEnd::Settled(kind));
                    (Ok(false), mark)
                }
            };
            if let (Some(observer), Some(message), Ok(false)) = (&observer, &mark, &settled) {
                observer.on_event(&ClientEvent { queue: &name, message, kind: event });
            }
            settled
        };
        let settled = tokio::spawn(settling).await.unwrap_or_else(|_| Err(stopping()));
        if settled == Ok(false) {
            Counters::add(&self.counts.settled[kind as usize], 1);
        }
        self.counts.result(settled)
    }

    /// Extends a lease to this length from now; `None` for the length of the queue. Returns its end.
    pub async fn extend(
        &self,
        name: &str,
        handle: &LeaseHandle,
        lease: Option<Span>,
    ) -> Result<Timestamp, LeaseError> {
        let queue = self.opener.open(name).await?;
        let length = lease.unwrap_or(queue.visibility());
        let (table, handle, clock) = (self.table.clone(), handle.clone(), self.clock.clone());
        let name = name.to_owned();
        let extending = async move {
            let until = clock.now() + length;
            match table.find(&name, &handle)? {
                LeaseLocation::Here(lease) => lease.extend(&table, &handle, length, until).await?,
                LeaseLocation::Elsewhere(token) => {
                    let lost = |error| LeaseError::of(error, handle.node());
                    let resumed = queue.resume(&token).await.map_err(lost)?;
                    let extended = resumed.receipt.extend(length).await;
                    resumed.receipt.detach();
                    extended.map_err(lost)?;
                }
            }
            Ok(until)
        };
        let extended = tokio::spawn(extending).await.unwrap_or_else(|_| Err(stopping()));
        if extended.is_ok() {
            Counters::add(&self.counts.extended, 1);
        }
        self.counts.result(extended)
    }

    /// Returns the number of messages in a queue.
    pub async fn depths(&self, name: &str) -> Result<QueueDepths, Error> {
        let queue = self.opener.open(name).await?;
        let depth = if queue.capabilities().depth {
            Some(queue.depth().await?)
        } else {
            queue.check_live().await?;
            None
        };
        let dead_letters = match queue.own_dead_count().await {
            Err(Error::NoQueue { .. }) => Some(0),
            count => count?,
        };
        let dead_letter_queue = queue.dead_letter_name().to_owned();
        Ok(QueueDepths {
            depth,
            dead_letter_queue,
            dead_letters,
            open_leases: self.table.open_of(name),
        })
    }

    /// Ends all waiting receives, which return no message.
    pub fn stop_receiving(&self) {
        self.stopped.send_replace(true);
    }

    /// Requeues all leased messages, so that other consumers get them at once.
    pub async fn close(&self) {
        self.stop_receiving();
        // The consumers of waiting calls would take the messages that are requeued below.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.stopped.closed()).await;
        let idle = self.idle.clear().into_iter().map(Consumer::close);
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, join_all(idle)).await;
        let requeue = self.table.end_all().into_iter().map(Delivery::requeue);
        match tokio::time::timeout(CLOSE_TIMEOUT, join_all(requeue)).await {
            Ok(results) => {
                for error in results.into_iter().filter_map(Result::err) {
                    // A lost lease has returned by itself.
                    if error != Error::Lost {
                        warn!(%error, "leased message not requeued: it returns when its lease ends");
                    }
                }
            }
            Err(_) => {
                warn!("some leased messages were not requeued: they return when their leases end")
            }
        }
    }
}

/// Reports messages that become dead letters before a client gets them.
struct UnseenMessages {
    observer: Arc<dyn ClientObserver>,
    queue: String,
}

impl ConsumerObserver for UnseenMessages {
    fn on_dead_letter(&self, message: &Message, reason: &DeadLetterReason) {
        let (action, error) = (LeaseActionKind::DeadLetter, Some(reason.message.clone()));
        let kind = ClientEventKind::Settled { action, until: None, error };
        let (queue, message) = (self.queue.as_str(), &MessageMark::of(message));
        self.observer.on_event(&ClientEvent { queue, message, kind });
    }

    fn on_failure(&self, queue: &str, error: &Error) {
        let source = self.queue.as_str();
        warn!(queue = source, dead_letter_queue = queue, %error, "message can't become a dead letter yet");
    }

    fn on_published(&self, _: &str) {}
}

/// Received messages, and the earliest time at which their leases may have started.
struct Received {
    deliveries: Vec<Delivery>,
    since: Timestamp,
}

/// Settles a delivery that another node received. Returns its message, if the broker returned it.
async fn settle_resumed(
    queue: &Queue,
    handle: &LeaseHandle,
    resumed: ResumedMessage,
    action: LeaseAction,
) -> Result<Option<MessageMark>, LeaseError> {
    let ResumedMessage { incoming, receipt } = resumed;
    let Some(incoming) = incoming else {
        return settle_receipt(queue, handle, receipt, action).await.map(|()| None);
    };
    let delivery = Delivery::resumed(queue.clone(), incoming, receipt);
    let mark = MessageMark::of(delivery.message());
    match action.run(delivery).await {
        Ok(()) => Ok(Some(mark)),
        Err(unsettled) => {
            if let Some(delivery) = unsettled.delivery {
                delivery.detach();
            }
            Err(LeaseError::of(unsettled.error, handle.node()))
        }
    }
}

/// Settles a delivery whose message the broker does not return.
async fn settle_receipt(
    queue: &Queue,
    handle: &LeaseHandle,
    receipt: Box<dyn Receipt>,
    action: LeaseAction,
) -> Result<(), LeaseError> {
    let settled = match action {
        LeaseAction::Ack => receipt.ack().await,
        LeaseAction::Requeue => receipt.requeue().await,
        LeaseAction::Defer(_) | LeaseAction::Retry(_) | LeaseAction::DeadLetter(_) => {
            receipt.detach();
            let (node, broker) = (handle.node().to_owned(), queue.capabilities().broker);
            return Err(LeaseError::NoMessage { node, broker });
        }
    };
    settled.map_err(|error| LeaseError::of(error, handle.node()))
}

/// Returns the time of a delivery that is not at once.
const fn later(at: DeliveryTime) -> Option<Timestamp> {
    match at {
        DeliveryTime::At(at) => Some(at),
        _ => None,
    }
}

fn stopping() -> LeaseError {
    Error::stopping().into()
}

impl std::fmt::Debug for RemoteQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteQueues").field("node", &self.node()).finish_non_exhaustive()
    }
}
