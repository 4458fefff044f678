//! Reads messages without consuming them, also on brokers that can't browse: there, [`Taking`]
//! receives and requeues them.

use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::Span;

use crate::broker::{Place, Receipt, Received, Source, Terms};
use crate::delivery::is_worn;
use crate::{Error, Message, Queue, When, envelope};

/// Maximum number of messages held during a scan.
const HELD_MAX: usize = 10_000;
/// Maximum size of the held messages that will be republished.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Time to wait for the next message before asking the broker for the depth of the queue.
const PAUSE: Duration = Duration::from_millis(300);
/// Number of consecutive times that the broker must report an empty queue: messages that were
/// requeued a moment ago may still be in transit.
const NONE_MAX: u32 = 2;
/// Number of times to wait for a message that the broker reports but does not deliver: another
/// consumer may have it.
const VAIN_MAX: u32 = 10;
/// Length of the lease during a scan.
const LOOKING: Span = Span::from_secs(60);
/// Number of messages per page.
const PAGE: usize = 500;

/// Passes messages to `show` until it returns [`Seen::Enough`].
///
/// If the broker can't browse, messages are received and requeued, which it may count as a
/// delivery.
pub(crate) async fn show(
    queue: &Queue,
    place: &Place,
    mut show: impl FnMut(Message) -> Seen,
) -> Result<(), Error> {
    let inner = &queue.inner;
    if !inner.broker.capabilities().browse {
        let mut taking = Taking::open(queue, place).await?;
        while let Some(taken) = taking.next().await? {
            let seen = show(taken.message.clone());
            taking.hold(taken);
            if seen == Seen::Enough {
                break;
            }
        }
        taking.give_back().await;
        return Ok(());
    }
    let mut after = 0;
    loop {
        let page = inner.broker.browse(place, after, PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = *last;
        for (_, incoming) in page {
            if show(envelope::read(incoming, &inner.fields)) == Seen::Enough {
                return Ok(());
            }
        }
    }
}

/// The decision of a visitor to continue or to stop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    More,
    Enough,
}

/// A scan that receives every message of a queue once. Messages that stay in the queue are held
/// until the end, so that none is received twice.
pub(crate) struct Taking<'q> {
    queue: &'q Queue,
    place: Place,
    source: Box<dyn Source>,
    waiting: std::vec::IntoIter<Received>,
    held: Vec<(Option<Message>, Box<dyn Receipt>)>,
    /// Total size of the messages that are held with their content.
    held_bytes: usize,
}

/// A message received by a scan.
pub(crate) struct Taken {
    pub(crate) message: Message,
    pub(crate) receipt: Box<dyn Receipt>,
    /// True if the broker may drop it at its next redelivery.
    worn: bool,
}

impl<'q> Taking<'q> {
    pub(crate) async fn open(queue: &'q Queue, place: &Place) -> Result<Self, Error> {
        let terms = Terms { prefetch: u16::MAX, visibility: LOOKING, wait: Span::ZERO };
        let source = queue.inner.broker.consume(place, terms).await?;
        let (place, waiting) = (place.clone(), Vec::new().into_iter());
        Ok(Self { queue, place, source, waiting, held: Vec::new(), held_bytes: 0 })
    }

    /// Returns the next message, or `None` if there is no further one or too many are held.
    pub(crate) async fn next(&mut self) -> Result<Option<Taken>, Error> {
        let (mut none, mut vain) = (0, 0);
        while none < NONE_MAX && vain < VAIN_MAX {
            if let Some(received) = self.waiting.next() {
                return Ok(Some(self.taken(received)));
            }
            if self.held.len() >= HELD_MAX || self.held_bytes >= HELD_BYTES_MAX {
                return Ok(None);
            }
            match tokio::time::timeout(PAUSE, self.source.next(10)).await {
                Ok(received) => self.waiting = received?.into_iter(),
                Err(_) => {
                    let ready = self.queue.inner.broker.depth(&self.place).await?.ready;
                    none = if ready == 0 { none + 1 } else { 0 };
                    vain += 1;
                }
            }
        }
        Ok(None)
    }

    fn taken(&self, Received { incoming, receipt }: Received) -> Taken {
        let worn = is_worn(self.queue.capabilities(), incoming.returns);
        Taken { message: envelope::read(incoming, &self.queue.inner.fields), receipt, worn }
    }

    /// Keeps a message that stays in the queue.
    pub(crate) fn hold(&mut self, Taken { message, receipt, worn }: Taken) {
        // The content is needed only for messages that have to be republished.
        let message = worn.then_some(message);
        self.held_bytes += message.as_ref().map_or(0, |message| message.body.len());
        self.held.push((message, receipt));
    }

    /// Requeues all held messages. Those that were redelivered before are republished, so that
    /// repeated scans do not make the broker drop them.
    pub(crate) async fn give_back(mut self) {
        let waiting: Vec<_> = self.waiting.by_ref().collect();
        for received in waiting {
            let taken = self.taken(received);
            self.hold(taken);
        }
        let all = self.held.into_iter().map(|(message, receipt)| match message {
            None => receipt.give_back(),
            Some(mut message) => {
                message.meta.hop += 1;
                let when = message.meta.not_before.map_or(When::Now, When::At);
                receipt.relay(self.place.clone(), self.queue.inner.outgoing(message, when))
            }
        });
        // A message that can't be requeued is redelivered when its lease ends.
        let _ = join_all(all).await;
    }
}
