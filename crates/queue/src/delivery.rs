//! A message in somebody's hands, which is settled exactly once: every way to settle it takes it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Timestamp;
use tokio::runtime::Handle;
use tracing::warn;

use crate::broker::{Capabilities, Lease, Outgoing, Place, Receipt, Received};
use crate::{Error, Message, Queue, When, dead, envelope};

/// How often a copy may come back before it is sent anew. Brokers count deliveries, and some throw
/// a message away that came back too often; a copy that is sent anew begins at nothing.
const RETURNS_MAX: u32 = 1;

/// A message that is ours until we settle it. Dropping it gives it back.
///
/// Settling goes on even if its caller stops waiting for it.
#[must_use = "a delivery that is dropped is given back"]
pub struct Delivery {
    queue: Queue,
    message: Message,
    returns: u32,
    since: Timestamp,
    /// Taken by whatever settles it.
    receipt: Option<Box<dyn Receipt>>,
}

/// Why a message can't be worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What went wrong.
    pub message: String,
    /// Where, if that is known.
    pub stack: Option<String>,
    /// What else whoever reads the letter should know, beside these in its `error`.
    pub details: Vec<(&'static str, serde_json::Value)>,
}

impl Reason {
    /// A reason in words.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), stack: None, details: Vec::new() }
    }

    /// The same, with something else to know.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<serde_json::Value>) -> Self {
        self.details.push((name, value.into()));
        self
    }
}

impl Delivery {
    pub(crate) fn new(queue: Queue, received: Received, since: Timestamp) -> Self {
        let Received { incoming, receipt } = received;
        let returns = incoming.returns;
        let message = envelope::read(incoming, &queue.inner.fields);
        Self { queue, message, returns, since, receipt: Some(receipt) }
    }

    /// The same, handed out now.
    pub(crate) fn received(mut self, now: Timestamp) -> Self {
        self.since = now;
        self
    }

    /// What is to be done.
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// How often somebody had it before and did not settle it, as far as the broker tells.
    pub const fn returns(&self) -> u32 {
        self.returns
    }

    /// Puts down what was booked for it, which travels with it from now on; none forgets it.
    pub fn book(&mut self, booking: Option<String>) {
        self.message.meta.booking = booking;
    }

    /// Notes that it had to wait for a limit, in the hands of who holds it.
    pub const fn waited(&mut self) {
        self.message.meta.deferrals += 1;
    }

    /// The work is done.
    pub async fn ack(mut self) -> Result<(), Error> {
        let receipt = self.take();
        settle(receipt.ack()).await?;
        self.queue.inner.stats.acked(&self.message, self.held_for());
        Ok(())
    }

    /// The work has to wait for a limit. That is no failure: attempts stay as they are.
    pub async fn defer(mut self, when: When) -> Result<(), Error> {
        self.message.meta.deferrals += 1;
        let queue = self.queue.clone();
        self.send_on(when).await?;
        queue.inner.stats.deferred();
        Ok(())
    }

    /// The work has failed and is to be tried once more.
    pub async fn retry(mut self, when: When) -> Result<(), Error> {
        self.message.meta.attempt += 1;
        let queue = self.queue.clone();
        self.send_on(when).await?;
        queue.inner.stats.retried();
        Ok(())
    }

    /// The message goes to another queue, as it is: in one step where the broker can do it, and also
    /// to another broker.
    pub async fn forward(mut self, to: &Queue, when: When) -> Result<(), Error> {
        self.message.meta.hop += 1;
        let receipt = self.take();
        let next = to.inner.outgoing(self.message.clone(), when);
        if Arc::ptr_eq(&self.queue.inner.broker, &to.inner.broker) {
            settle(receipt.relay(to.inner.live.clone(), next)).await?;
        } else {
            settle(publish_then_ack(to.clone(), next, receipt).boxed()).await?;
        }
        to.inner.stats.sent(1);
        self.queue.inner.stats.acked(&self.message, self.held_for());
        Ok(())
    }

    /// The message can't be worked on: it goes to the dead letters, with the reason.
    pub async fn dead_letter(mut self, reason: Reason) -> Result<(), Error> {
        let now = self.queue.inner.clock.now();
        let letter = dead::bury(self.message.clone(), self.queue.name(), reason, now);
        let receipt = self.take();
        let next = self.queue.inner.outgoing(letter, When::Now);
        let place: Place = self.queue.inner.dead.clone();
        settle(receipt.relay(place, next)).await?;
        self.queue.inner.stats.dead_lettered();
        Ok(())
    }

    /// Somebody else may have it, now.
    pub async fn give_back(mut self) -> Result<(), Error> {
        settle(self.give_back_now()).await
    }

    /// Keeps it from others for as long again as the queue's visibility.
    pub async fn extend(&self) -> Result<(), Error> {
        let receipt = self.receipt.as_ref().unwrap_or_else(|| unreachable!("not settled yet"));
        receipt.extend(self.queue.inner.visibility).await
    }

    /// Does the work, and keeps the message from others as long as it takes.
    ///
    /// If that fails the work goes on: what it has done can't be undone, and a second delivery
    /// bears the same name.
    pub async fn while_held<T>(&self, work: impl Future<Output = T>) -> T {
        let Lease::Timed(max) = self.queue.capabilities().lease else { return work.await };
        // Twice more if one prolongation fails.
        let every = Duration::from(self.queue.inner.visibility.min(max)) / 3;
        let prolong = async {
            loop {
                tokio::time::sleep(every.max(Duration::from_millis(10))).await;
                match self.extend().await {
                    Ok(()) => {}
                    Err(Error::Lost) => return std::future::pending().await,
                    Err(error) => warn!(%error, "a lease could not be prolonged"),
                }
            }
        };
        tokio::select! {
            outcome = work => outcome,
            () = prolong => unreachable!("it goes on until the work is done"),
        }
    }

    /// Passes the message on in its own queue.
    pub(crate) async fn send_on(mut self, when: When) -> Result<(), Error> {
        self.message.meta.hop += 1;
        let receipt = self.take();
        let next = self.queue.inner.outgoing(self.message.clone(), when);
        settle(receipt.relay(self.queue.inner.live.clone(), next)).await
    }

    fn give_back_now(&mut self) -> BoxFuture<'static, Result<(), Error>> {
        let receipt = self.take();
        if !is_worn(self.queue.capabilities(), self.returns) {
            return receipt.give_back();
        }
        let mut message = self.message.clone();
        message.meta.hop += 1;
        let not_before = message.meta.not_before;
        let next = self.queue.inner.outgoing(message, not_before.map_or(When::Now, When::At));
        receipt.relay(self.queue.inner.live.clone(), next)
    }

    fn take(&mut self) -> Box<dyn Receipt> {
        self.receipt.take().unwrap_or_else(|| unreachable!("whatever settles a delivery takes it"))
    }

    fn held_for(&self) -> sluicegate_core::Span {
        self.queue.inner.clock.now().since(self.since)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // A receipt gives back by itself. Without a runtime there is no connection either, and the
        // lease ends.
        if self.receipt.is_some()
            && is_worn(self.queue.capabilities(), self.returns)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(self.give_back_now());
        }
    }
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { message, returns, .. } = self;
        f.debug_struct("Delivery")
            .field("id", &message.id())
            .field("returns", returns)
            .finish_non_exhaustive()
    }
}

/// Whether the broker may throw a copy away if it comes back once more.
pub(crate) const fn is_worn(capabilities: Capabilities, returns: u32) -> bool {
    capabilities.counts_returns && returns >= RETURNS_MAX
}

/// From one broker to another. On failure nothing is acknowledged, and dropping the receipt gives
/// the message back.
async fn publish_then_ack(
    to: Queue,
    next: Outgoing,
    receipt: Box<dyn Receipt>,
) -> Result<(), Error> {
    let published = to.inner.broker.publish(&to.inner.live, vec![next]).await;
    published.into_iter().collect::<Result<(), Error>>()?;
    receipt.ack().await
}

/// Runs it to its end, whether or not somebody waits.
async fn settle(mut work: BoxFuture<'static, Result<(), Error>>) -> Result<(), Error> {
    // What needs no waiting needs no task, and what does has got in line before its caller goes on:
    // brokers do together what is asked for together.
    if let Some(outcome) = (&mut work).now_or_never() {
        return outcome;
    }
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => {
            let detail = "the process is stopping".to_owned();
            Err(Error::Unavailable { broker: "the queue", detail })
        }
    }
}
