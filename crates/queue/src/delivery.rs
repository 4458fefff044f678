//! [`Delivery`]: a received message, which is settled exactly once, because every method that
//! settles it consumes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{BoxFuture, FutureExt as _, TryFutureExt as _};
use sluicegate_core::{Span, Timestamp};
use tracing::warn;

use crate::broker::{
    Capabilities, LeaseKind, OutgoingMessage, QueueName, RawMessage, Receipt, ReceivedMessage,
    RelayError,
};
use crate::dead_letter::LetterForm;
use crate::{DeliveryTime, Error, Message, Queue, dead_letter, envelope};

/// A received message that is not settled yet. Dropping it requeues it, which most brokers can't
/// distinguish from a consumer that was killed; [`Delivery::requeue`] is not counted like that.
///
/// Settling completes even if its caller stops waiting for it.
#[must_use = "a dropped delivery is requeued"]
pub struct Delivery {
    queue: Queue,
    message: Message,
    since: Timestamp,
    /// Time of the delivery, or of the last extension of its lease, in microseconds.
    leased_at: AtomicU64,
    /// Number of earlier deliveries that the broker knows of.
    broker_redeliveries: u32,
    /// True if the message has a place in an order, which it would lose if it were published again.
    is_ordered: bool,
    /// Taken by the method that settles the delivery.
    receipt: Option<Box<dyn Receipt>>,
}

/// The reason that a message can't be processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterReason {
    /// Error message.
    pub message: String,
    /// Stack trace or chain of causes. Default: none; the dead letter has the message in its place.
    pub stack: Option<String>,
    /// Additional members of `error` in the dead letter.
    pub details: Vec<(&'static str, serde_json::Value)>,
}

impl DeadLetterReason {
    /// Creates a reason with an error message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), stack: None, details: Vec::new() }
    }

    /// Adds the stack trace, or the chain of causes.
    #[must_use]
    pub fn with_stack(mut self, stack: impl Into<String>) -> Self {
        self.stack = Some(stack.into());
        self
    }

    /// Adds a member to `error` in the dead letter.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<serde_json::Value>) -> Self {
        self.details.push((name, value.into()));
        self
    }
}

impl Delivery {
    pub(crate) fn new(queue: Queue, received: ReceivedMessage, since: Timestamp) -> Self {
        let ReceivedMessage { incoming, receipt } = received;
        let (broker_redeliveries, is_ordered) = (incoming.redeliveries, incoming.is_ordered);
        let mut message = envelope::read(incoming, &queue.inner.fields);
        // A copy is published for each redelivery, so the count of the broker says yes or no.
        let new = if is_ordered { broker_redeliveries } else { broker_redeliveries.min(1) };
        message.meta.redeliveries = message.meta.redeliveries.saturating_add(new);
        let leased_at = AtomicU64::new(since.as_micros());
        let receipt = Some(receipt);
        Self { queue, message, since, leased_at, broker_redeliveries, is_ordered, receipt }
    }

    /// Returns true if the broker delivered the message before and it has no copy that counts that.
    pub(crate) const fn needs_copy(&self) -> bool {
        self.broker_redeliveries > 0 && !self.is_ordered
    }

    /// Counts the redeliveries of a message whose copies can't be published: with the broker's number.
    pub(crate) fn count_by_broker(&mut self) {
        let more = self.broker_redeliveries.saturating_sub(1);
        self.message.meta.redeliveries = self.message.meta.redeliveries.saturating_add(more);
    }

    /// Creates a delivery that another process received.
    pub(crate) fn resumed(queue: Queue, incoming: RawMessage, receipt: Box<dyn Receipt>) -> Self {
        let now = queue.inner.clock.now();
        Self::new(queue, ReceivedMessage { incoming, receipt }, now)
    }

    /// Sets the time at which the delivery was handed out.
    pub(crate) fn received(mut self, now: Timestamp) -> Self {
        self.since = now;
        self
    }

    /// Returns the message.
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// Returns the number of earlier deliveries that nobody settled or returned, as far as is known.
    pub const fn redeliveries(&self) -> u32 {
        self.message.meta.redeliveries
    }

    /// Sets the booking id in the metadata, which travels with the message; `None` removes it.
    pub fn set_booking(&mut self, booking: Option<String>) {
        self.message.meta.booking = booking;
    }

    /// Sets a header, which travels with the message.
    pub fn set_header(&mut self, name: &str, value: String) {
        self.message.headers.insert(name.to_owned(), value);
    }

    /// Counts a deferral of a message that waited for a limit without being requeued.
    pub const fn count_deferral(&mut self) {
        self.message.meta.deferrals += 1;
    }

    /// Acknowledges the message: the work is done.
    pub async fn ack(mut self) -> Result<(), Error> {
        let receipt = self.take();
        settle(receipt.ack()).await?;
        self.queue.inner.stats.acked(&self.message, self.held_for());
        Ok(())
    }

    /// Requeues the message for a later time because of a limit. That is not a failure: the
    /// attempts stay the same.
    pub async fn defer(self, when: DeliveryTime) -> Result<(), Unsettled> {
        let mut next = self.next_hop();
        next.meta.deferrals += 1;
        let settled = self.republish(next, when).await?;
        settled.queue.inner.stats.deferred();
        Ok(())
    }

    /// Requeues the message for a later time without counting it: nothing was tried.
    pub async fn postpone(self, when: DeliveryTime) -> Result<(), Unsettled> {
        let next = self.next_hop();
        self.republish(next, when).await.map(drop)
    }

    /// Publishes another copy of the message, with the same id and the current metadata.
    pub(crate) async fn republish_copy(self, when: DeliveryTime) -> Result<(), Unsettled> {
        let next = self.copy();
        self.republish(next, when).await.map(drop)
    }

    /// Requeues the message for another attempt after a failure.
    pub async fn retry(self, when: DeliveryTime) -> Result<(), Unsettled> {
        let mut next = self.next_hop();
        next.meta.attempt += 1;
        next.meta.redeliveries = 0;
        let settled = self.republish(next, when).await?;
        settled.queue.inner.stats.retried();
        Ok(())
    }

    /// Moves the message to another queue, in one atomic operation if the broker supports it. The
    /// other queue may be on another broker.
    pub async fn forward(mut self, to: &Queue, when: DeliveryTime) -> Result<(), Unsettled> {
        let Capabilities { broker, size_max, .. } = to.capabilities();
        let size = self.message.body.len();
        let fits = match size > size_max {
            true => Err(Error::TooLarge { broker, size, max: size_max }),
            false => to.inner.check_size(&self.message),
        };
        if let Err(error) = fits {
            return Err(Unsettled { error, delivery: Some(Box::new(self)) });
        }
        let mut next = self.next_hop();
        next.meta.redeliveries = 0;
        let next = to.inner.outgoing(next, when);
        let receipt = self.take();
        let relay = if Arc::ptr_eq(&self.queue.inner.broker, &to.inner.broker) {
            receipt.relay(to.inner.live_for(&next.message).clone(), next)
        } else {
            publish_then_ack(to.clone(), next, receipt).boxed()
        };
        let settled = self.relay(relay).await?;
        to.inner.stats.sent(1);
        settled.queue.inner.stats.acked(&settled.message, settled.held_for());
        Ok(())
    }

    /// Returns true if [`Delivery::complete`] is one atomic operation for this queue.
    pub fn completes_atomically(&self, results: &Queue) -> bool {
        self.queue.capabilities().atomic_relay
            && Arc::ptr_eq(&self.queue.inner.broker, &results.inner.broker)
    }

    /// Sends the result of the job and acknowledges the message, in one atomic operation: see
    /// [`Delivery::completes_atomically`].
    pub async fn complete(mut self, results: &Queue, result: Message) -> Result<(), Unsettled> {
        if let Err(error) = results.inner.check_size(&result) {
            return Err(Unsettled { error, delivery: Some(Box::new(self)) });
        }
        let mut result = result;
        result.meta.sent_at.get_or_insert(self.queue.inner.clock.now());
        let next = results.inner.outgoing(result, DeliveryTime::Now);
        let receipt = self.take();
        let relay = receipt.relay(results.inner.live_for(&next.message).clone(), next);
        let settled = self.relay(relay).await?;
        results.inner.stats.sent(1);
        settled.queue.inner.stats.acked(&settled.message, settled.held_for());
        Ok(())
    }

    /// Moves the message to the dead-letter queue, with the reason. If the letter is too large for
    /// the broker, it contains less of the reason, or nothing but the body.
    pub async fn dead_letter(mut self, reason: DeadLetterReason) -> Result<(), Unsettled> {
        let now = self.queue.inner.clock.now();
        let mut failed = None;
        for form in LetterForm::ALL {
            let (message, queue) = (self.message.clone(), self.queue.name());
            let letter = dead_letter::to_dead_letter(message, queue, &reason, now, form);
            let next = self.queue.inner.outgoing(letter, DeliveryTime::Now);
            let queue_name: QueueName = self.queue.inner.dead.clone();
            let receipt = self.take();
            match self.relay(receipt.relay(queue_name, next)).await {
                Ok(settled) => {
                    settled.queue.inner.stats.dead_lettered();
                    if form == LetterForm::Bare {
                        let (job, reason) = (&settled.message.meta.job, &reason.message);
                        let queue = settled.queue.name();
                        warn!(%job, queue, reason, "dead letter is too large for its job id and reason");
                    }
                    return Ok(());
                }
                Err(Unsettled { error: error @ Error::TooLarge { .. }, delivery: Some(same) }) => {
                    self = *same;
                    failed = Some(error);
                }
                Err(unsettled) => return Err(unsettled),
            }
        }
        let error = failed.unwrap_or_else(|| unreachable!("there are several forms"));
        Err(Unsettled { error, delivery: Some(Box::new(self)) })
    }

    /// Makes the message available to other consumers at once. That is not a failure: nothing is
    /// counted, unless the message keeps its place in an order and the broker counts it.
    pub async fn requeue(mut self) -> Result<(), Error> {
        settle(self.requeue_now()).await
    }

    /// Leaves the message to the broker as if its consumer had been killed: it is delivered again,
    /// and that is counted as a redelivery.
    pub fn abandon(mut self) {
        let receipt = self.take();
        if !self.queue.capabilities().counts_returns {
            // A returned message would not be counted; the end of a lease is.
            receipt.detach();
        }
    }

    /// Returns the queue that it was received from.
    pub(crate) const fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Extends the lease by the queue's visibility from now.
    pub async fn extend(&self) -> Result<(), Error> {
        self.extend_for(self.queue.inner.visibility).await
    }

    /// Extends the lease to this length from now, or shortens it.
    pub async fn extend_for(&self, lease: Span) -> Result<(), Error> {
        let now = self.queue.inner.clock.now();
        self.receipt().extend(lease).await?;
        self.leased_at.store(now.as_micros(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns a text with which any process can take over the delivery. `None` if the lease belongs
    /// to a connection of this process.
    pub fn token(&self) -> Option<String> {
        self.receipt().token()
    }

    /// Drops the delivery without requeueing it: its lease ends by itself. A delivery without a
    /// token is requeued.
    pub fn detach(mut self) {
        self.take().detach();
    }

    fn receipt(&self) -> &dyn Receipt {
        self.receipt.as_deref().unwrap_or_else(|| unreachable!("not settled yet"))
    }

    /// Runs the work, and extends the lease until it is done. Several short pieces of work extend it
    /// like one long piece.
    ///
    /// If extending fails, the work goes on: it can't be undone, and a second delivery has the same
    /// message id.
    pub async fn with_lease<T>(&self, work: impl Future<Output = T>) -> T {
        let LeaseKind::Timed(max) = self.queue.capabilities().lease else { return work.await };
        // A third of the lease, so that two more extensions are possible after one fails.
        let every = Span::from_micros(self.queue.inner.visibility.min(max).as_micros() / 3);
        let every = every.max(Span::from_millis(10));
        let extend = async {
            let leased_at = Timestamp::from_micros(self.leased_at.load(Ordering::Relaxed));
            let mut wait = (leased_at + every).since(self.queue.inner.clock.now());
            loop {
                tokio::time::sleep(wait.into()).await;
                match self.extend().await {
                    Ok(()) => {}
                    Err(Error::Lost) => return std::future::pending().await,
                    Err(error) => warn!(%error, "lease not extended"),
                }
                wait = every;
            }
        };
        tokio::select! {
            outcome = work => outcome,
            () = extend => unreachable!("the loop ends with the work only"),
        }
    }

    /// Returns the message with the id of its next step.
    fn next_hop(&self) -> Message {
        let mut next = self.message.clone();
        next.meta.count_hop();
        next
    }

    /// Returns the message as another copy, with the same id.
    fn copy(&self) -> Message {
        let mut next = self.message.clone();
        next.meta.copy += 1;
        next
    }

    /// Publishes a message to its own queue in place of this one.
    async fn republish(mut self, next: Message, when: DeliveryTime) -> Result<Self, Unsettled> {
        let next = self.queue.inner.outgoing(next, when);
        let receipt = self.take();
        let relay = receipt.relay(self.queue.inner.live_for(&next.message).clone(), next);
        self.relay(relay).await
    }

    /// Runs the relay of this delivery to its end. Returns the settled delivery, or the unsettled
    /// one in the error.
    async fn relay(
        mut self,
        relay: BoxFuture<'static, Result<(), RelayError>>,
    ) -> Result<Self, Unsettled> {
        let Err(RelayError { error, receipt }) = settle(relay).await else { return Ok(self) };
        self.receipt = receipt;
        let delivery = self.receipt.is_some().then(|| Box::new(self));
        Err(Unsettled { error, delivery })
    }

    fn requeue_now(&mut self) -> BoxFuture<'static, Result<(), Error>> {
        let receipt = self.take();
        if !self.queue.capabilities().counts_returns || self.is_ordered {
            return receipt.requeue();
        }
        let message = self.copy();
        let not_before = message.meta.not_before;
        let next = self
            .queue
            .inner
            .outgoing(message, not_before.map_or(DeliveryTime::Now, DeliveryTime::At));
        let queue_name = self.queue.inner.live_for(&next.message).clone();
        receipt.relay(queue_name, next).map_err(Error::from).boxed()
    }

    fn take(&mut self) -> Box<dyn Receipt> {
        self.receipt
            .take()
            .unwrap_or_else(|| unreachable!("every method that settles a delivery consumes it"))
    }

    fn held_for(&self) -> Span {
        self.queue.inner.clock.now().since(self.since)
    }
}

/// The failure of settling a delivery.
#[derive(Debug)]
pub struct Unsettled {
    /// Reason of the failure.
    pub error: Error,
    /// The delivery, if it can still be settled. Dropping it requeues the message at once, so
    /// without a delay in between, a message that can't be settled would loop.
    pub delivery: Option<Box<Delivery>>,
}

impl From<Error> for Unsettled {
    fn from(error: Error) -> Self {
        Self { error, delivery: None }
    }
}

impl From<Unsettled> for Error {
    fn from(unsettled: Unsettled) -> Self {
        unsettled.error
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // A dropped receipt requeues by itself. After a panic the lease ends instead, which is
        // counted: the message may be the cause.
        if std::thread::panicking()
            && let Some(receipt) = self.receipt.take()
        {
            receipt.detach();
        }
    }
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.message.id())
            .field("redeliveries", &self.redeliveries())
            .finish_non_exhaustive()
    }
}

/// Moves a message from one broker to another.
async fn publish_then_ack(
    to: Queue,
    next: OutgoingMessage,
    receipt: Box<dyn Receipt>,
) -> Result<(), RelayError> {
    let queue_name = to.inner.live_for(&next.message).clone();
    let published = to.inner.broker.publish(&queue_name, vec![next]).await;
    if let Err(error) = published.into_iter().collect::<Result<(), Error>>() {
        return Err(RelayError { error, receipt: Some(receipt) });
    }
    Ok(receipt.ack().await?)
}

/// Runs an operation to its end, even if the caller stops waiting.
async fn settle<E: From<Error> + Send + 'static>(
    mut work: BoxFuture<'static, Result<(), E>>,
) -> Result<(), E> {
    // An operation that completes at once needs no task. One that does not has already started, so
    // that brokers can batch the operations of one caller.
    if let Some(outcome) = (&mut work).now_or_never() {
        return outcome;
    }
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::stopping().into()),
    }
}
