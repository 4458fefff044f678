//! Reads messages without consuming them. On brokers that can't browse, [`QueueScan`] receives and
//! requeues them.

use std::time::Duration;

use futures_util::future::{FutureExt as _, TryFutureExt as _, join_all};
use sluicegate_core::{Span, Timestamp};

use crate::broker::{ConsumeOptions, MessageSource, QueueName, Receipt, ReceivedMessage};
use crate::{DeliveryTime, Error, Message, Queue, envelope};

/// Maximum number of messages held during a scan.
const HELD_MAX: usize = 10_000;
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

/// Passes messages to `show` until it returns [`Visit::Stop`].
///
/// If the broker can't browse, messages are received and requeued, which it may count as a
/// delivery.
pub(crate) async fn show(
    queue: &Queue,
    queue_name: &QueueName,
    mut show: impl FnMut(Message) -> Visit,
) -> Result<(), Error> {
    let inner = &queue.inner;
    if !inner.broker.capabilities().browse {
        let mut scan = QueueScan::open(queue, queue_name).await?;
        while let Some(scanned) = scan.next().await? {
            let seen = show(scanned.message.clone());
            scan.hold(scanned);
            if seen == Visit::Stop {
                break;
            }
        }
        scan.requeue().await;
        return Ok(());
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
        let mut scan = QueueScan::open(queue, queue_name).await?;
        while let Some(scanned) = scan.next().await? {
            if scanned.message.meta.job.as_str() == job {
                found(FoundMessage { message: scanned.message.clone(), leased_until: None });
            }
            scan.hold(scanned);
        }
        let coverage = if scan.is_full() { SearchCoverage::Part } else { SearchCoverage::Whole };
        scan.requeue().await;
        return Ok(coverage);
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
    held: Vec<(Option<Message>, Box<dyn Receipt>)>,
    /// Total size of the messages that are held with their content.
    held_bytes: usize,
}

/// A message received by a scan.
pub(crate) struct ScannedMessage {
    pub(crate) message: Message,
    pub(crate) receipt: Box<dyn Receipt>,
    /// True if it was delivered before: the broker may drop it at its next redelivery.
    is_redelivered: bool,
}

impl<'q> QueueScan<'q> {
    pub(crate) async fn open(queue: &'q Queue, queue_name: &QueueName) -> Result<Self, Error> {
        let options =
            ConsumeOptions { prefetch: u16::MAX, visibility: SCAN_LEASE, wait: Span::ZERO };
        let source = queue.inner.broker.consume(queue_name, options).await?;
        let (queue_name, waiting) = (queue_name.clone(), Vec::new().into_iter());
        Ok(Self { queue, queue_name, source, waiting, held: Vec::new(), held_bytes: 0 })
    }

    /// Returns the next message, or `None` if there is no further one or too many are held.
    pub(crate) async fn next(&mut self) -> Result<Option<ScannedMessage>, Error> {
        let (mut empty_polls, mut failed_polls) = (0, 0);
        while empty_polls < EMPTY_POLLS_MAX && failed_polls < FAILED_POLLS_MAX {
            if let Some(received) = self.waiting.next() {
                return Ok(Some(self.scanned(received)));
            }
            if self.is_full() {
                return Ok(None);
            }
            match tokio::time::timeout(POLL_TIMEOUT, self.source.next(10)).await {
                Ok(received) => self.waiting = received?.into_iter(),
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

    fn scanned(&self, ReceivedMessage { incoming, receipt }: ReceivedMessage) -> ScannedMessage {
        let is_redelivered = incoming.is_redelivered;
        let message = envelope::read(incoming, &self.queue.inner.fields);
        ScannedMessage { message, receipt, is_redelivered }
    }

    /// Keeps a message that stays in the queue.
    pub(crate) fn hold(
        &mut self,
        ScannedMessage { message, receipt, is_redelivered }: ScannedMessage,
    ) {
        // The content is needed only for messages that have to be republished.
        let message = is_redelivered.then_some(message);
        self.held_bytes += message.as_ref().map_or(0, |message| message.body.len());
        self.held.push((message, receipt));
    }

    /// Requeues all held messages. Those that were redelivered before are republished, so that
    /// repeated scans do not make the broker drop them.
    pub(crate) async fn requeue(mut self) {
        let waiting: Vec<_> = self.waiting.by_ref().collect();
        for received in waiting {
            let scanned = self.scanned(received);
            self.hold(scanned);
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
