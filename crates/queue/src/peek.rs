//! Reads messages without consuming them. On brokers that can't browse, [`QueueScan`] receives them,
//! and publishes them again without counting a redelivery.

use std::time::Duration;

use futures_util::future::{FutureExt as _, TryFutureExt as _, join_all};
use sluicegate_core::{Span, Timestamp};

use crate::broker::{
    ConsumeOptions, MessageSource, QueueName, RawMessage, Receipt, ReceivedMessage,
};
use crate::{DeliveryTime, Error, Message, Queue, envelope};

/// Maximum number of messages held during a scan.
const HELD_MAX: usize = 10_000;
/// Maximum number of messages in one receive call.
const RECEIVE_MAX: usize = 10;
/// Maximum size of the held messages that will be republished.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Time to wait for the next message before asking the broker for the depth of the queue.
const POLL_TIMEOUT: Duration = Duration::from_millis(300);
/// Number of consecutive times that the broker must report an empty queue: messages that were
/// requeued a moment ago may still be in transit.
const EMPTY_POLLS_MAX: u32 = 2;
/// Number of times to wait for a message that the broker counts but does not deliver, because
/// another consumer may have it. It is also the number of attempts on brokers that do not report a
/// count.
const FAILED_POLLS_MAX: u32 = 10;
/// Length of the lease during a scan.
const SCAN_LEASE: Span = Span::from_secs(60);
/// Number of messages per page.
const PAGE_SIZE: usize = 500;

/// Passes messages to `show` until it returns [`Visit::Stop`]; at most `most` if the broker can't
/// browse.
pub(crate) async fn show(
    queue: &Queue,
    queue_name: &QueueName,
    most: usize,
    mut show: impl FnMut(Message) -> Visit,
) -> Result<(), Error> {
    let inner = &queue.inner;
    if !inner.broker.capabilities().browse {
        return scan(queue, queue_name, most, show).await.map(drop);
    }
    let mut after = 0;
    loop {
        let page = inner.broker.browse(queue_name, after, PAGE_SIZE).await?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = *last;
        for (_, incoming) in page {
            if show(envelope::read(incoming, &inner.fields)) == Visit::Stop {
                return Ok(());
            }
        }
    }
}

/// Passes every message of a job to `found`, and leaves it in the queue.
pub(crate) async fn find(
    queue: &Queue,
    queue_name: &QueueName,
    job: &str,
    mut found: impl FnMut(FoundMessage),
) -> Result<SearchCoverage, Error> {
    let inner = &queue.inner;
    if !inner.broker.capabilities().browse {
        return scan(queue, queue_name, usize::MAX, |message| {
            if message.meta.job.as_str() == job {
                found(FoundMessage { message, leased_until: None });
            }
            Visit::Continue
        })
        .await;
    }
    let mut after = 0;
    loop {
        let page = inner.broker.browse(queue_name, after, PAGE_SIZE).await?;
        let Some((last, _)) = page.last() else { return Ok(SearchCoverage::Whole) };
        after = *last;
        for (number, incoming) in page {
            let message = envelope::read(incoming, &inner.fields);
            if message.meta.job.as_str() == job {
                let leased_until = inner.broker.lease_end(queue_name, number).await?;
                found(FoundMessage { message, leased_until });
            }
        }
    }
}

/// Passes up to `most` messages of a broker that can't browse to `show` until it returns
/// [`Visit::Stop`].
async fn scan(
    queue: &Queue,
    queue_name: &QueueName,
    most: usize,
    mut show: impl FnMut(Message) -> Visit,
) -> Result<SearchCoverage, Error> {
    let mut scan = QueueScan::open(queue, queue_name, most).await?;
    let outcome = loop {
        let scanned = match scan.next().await {
            Ok(Some(scanned)) => scanned,
            Ok(None) if scan.is_full() => break Ok(SearchCoverage::Part),
            Ok(None) => break Ok(SearchCoverage::Whole),
            Err(error) => break Err(error),
        };
        let seen = show(scanned.message.clone());
        scan.hold(scanned);
        if seen == Visit::Stop {
            break Ok(SearchCoverage::Part);
        }
    };
    scan.requeue().await;
    outcome
}

/// A message that a search found in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundMessage {
    /// The message.
    pub message: Message,
    /// End of the lease of the consumer that has the message. `None` if no consumer has it, or if
    /// the broker can't tell.
    pub leased_until: Option<Timestamp>,
}

/// The part of a queue that a search has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchCoverage {
    /// All messages that the broker shows.
    Whole,
    /// The first messages only: the broker can't browse, and no more can be held at once.
    Part,
}

/// The decision of a visitor to continue or to stop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    Continue,
    Stop,
}

/// A scan that receives every message of a queue once. Messages that stay in the queue are held
/// until the end, so that none is received twice.
pub(crate) struct QueueScan<'q> {
    queue: &'q Queue,
    queue_name: QueueName,
    source: Box<dyn MessageSource>,
    waiting: std::vec::IntoIter<ReceivedMessage>,
    /// Number of messages that may still be received.
    left: usize,
    held: Vec<(Option<Message>, Box<dyn Receipt>)>,
    /// Total size of the messages that are held with their content.
    held_bytes: usize,
}

/// A message received by a scan.
pub(crate) struct ScannedMessage {
    pub(crate) message: Message,
    pub(crate) receipt: Box<dyn Receipt>,
    /// True if it must be published again, because returning it would count as a delivery that nobody
    /// settled, or because the broker may drop it at its next redelivery.
    needs_copy: bool,
}

impl ScannedMessage {
    fn new(
        queue: &Queue,
        queue_name: &QueueName,
        ReceivedMessage { incoming, receipt }: ReceivedMessage,
    ) -> Self {
        let RawMessage { redeliveries, is_ordered, .. } = incoming;
        let is_live = matches!(queue_name, QueueName::Live(_));
        let mut message = envelope::read(incoming, &queue.inner.fields);
        if is_live && redeliveries > 0 {
            // Its last consumer did not settle it.
            message.meta.redeliveries = message.meta.redeliveries.saturating_add(1);
        }
        let needs_copy = (is_live || redeliveries > 0) && !is_ordered;
        Self { message, receipt, needs_copy }
    }

    /// Returns what is needed to return it: the content only if it has to be published again.
    fn into_held(self) -> (Option<Message>, Box<dyn Receipt>) {
        (self.needs_copy.then_some(self.message), self.receipt)
    }
}

impl<'q> QueueScan<'q> {
    /// Starts a scan that receives up to `most` messages.
    pub(crate) async fn open(
        queue: &'q Queue,
        queue_name: &QueueName,
        most: usize,
    ) -> Result<Self, Error> {
        // The broker must not deliver more, because it marks every message that it delivers.
        let prefetch = u16::try_from(most.clamp(1, HELD_MAX)).unwrap_or(u16::MAX);
        let options = ConsumeOptions { prefetch, visibility: SCAN_LEASE, wait: Span::ZERO };
        let source = queue.inner.broker.consume(queue_name, options).await?;
        let (queue_name, waiting) = (queue_name.clone(), Vec::new().into_iter());
        let (held, held_bytes) = (Vec::new(), 0);
        Ok(Self { queue, queue_name, source, waiting, left: most, held, held_bytes })
    }

    /// Returns the next message, or `None` if there is no further one or too many are held.
    pub(crate) async fn next(&mut self) -> Result<Option<ScannedMessage>, Error> {
        let (mut empty_polls, mut failed_polls) = (0, 0);
        while empty_polls < EMPTY_POLLS_MAX && failed_polls < FAILED_POLLS_MAX {
            if let Some(received) = self.waiting.next() {
                return Ok(Some(ScannedMessage::new(self.queue, &self.queue_name, received)));
            }
            if self.left == 0 || self.is_full() {
                return Ok(None);
            }
            let max = self.left.min(RECEIVE_MAX);
            match tokio::time::timeout(POLL_TIMEOUT, self.source.next(max)).await {
                Ok(received) => {
                    self.waiting = received?.into_iter();
                    self.left = self.left.saturating_sub(self.waiting.len());
                }
                Err(_) => {
                    let is_empty = self.queue.capabilities().depth
                        && self.queue.inner.broker.depth(&self.queue_name).await?.ready == 0;
                    empty_polls = if is_empty { empty_polls + 1 } else { 0 };
                    failed_polls += 1;
                }
            }
        }
        Ok(None)
    }

    /// Returns true if no further message can be held.
    pub(crate) const fn is_full(&self) -> bool {
        self.held.len() >= HELD_MAX || self.held_bytes >= HELD_BYTES_MAX
    }

    /// Keeps a message that stays in the queue.
    pub(crate) fn hold(&mut self, scanned: ScannedMessage) {
        let (message, receipt) = scanned.into_held();
        self.held_bytes += message.as_ref().map_or(0, |message| message.body.len());
        self.held.push((message, receipt));
    }

    /// Returns all messages to the queue. Those of a queue that consumers read are published again
    /// instead, so that consumers do not count a scan as a redelivery; so are dead letters that were
    /// redelivered before, so that repeated scans do not make the broker drop them.
    pub(crate) async fn requeue(mut self) {
        for received in self.waiting.chain(self.source.close().await) {
            self.held.push(ScannedMessage::new(self.queue, &self.queue_name, received).into_held());
        }
        let all = self.held.into_iter().map(|(message, receipt)| match message {
            None => receipt.requeue(),
            Some(mut message) => {
                message.meta.copy += 1;
                let when = message.meta.not_before.map_or(DeliveryTime::Now, DeliveryTime::At);
                let next = self.queue.inner.outgoing(message, when);
                receipt.relay(self.queue_name.clone(), next).map_err(Error::from).boxed()
            }
        });
        // A message that can't be requeued is redelivered when its lease ends.
        let _ = join_all(all).await;
    }
}
