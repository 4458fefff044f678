//! Looking at messages where they lie, whatever the broker can do.

use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::Span;

use crate::broker::{Place, Receipt, Received, Source, Terms};
use crate::delivery::is_worn;
use crate::{Error, Message, Queue, When, envelope};

/// How many messages are held while others are looked at, where a broker can't show them.
const HELD_MAX: usize = 10_000;
/// How much of them is held, where they are sent anew afterwards.
const HELD_BYTES_MAX: usize = 64 << 20;
/// How long the next message is waited for before the broker is asked whether there is one.
const PAUSE: Duration = Duration::from_millis(300);
/// How often the broker has to say in a row that there is none: what was given back a moment ago
/// may be under way.
const NONE_MAX: u32 = 2;
/// How often it is believed that there is one which does not come: somebody else may have it.
const VAIN_MAX: u32 = 10;
/// How long messages are kept from others while they are looked at.
const LOOKING: Span = Span::from_secs(60);
/// How many are asked for at once.
const PAGE: usize = 500;

/// Shows messages one after the other until `show` has seen enough.
///
/// Where the broker can't show them they are received and given back, which it may count.
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

/// Whether somebody wants to see more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    More,
    Enough,
}

/// Takes every message of a place once: those that stay are held until the end, so that none comes
/// twice.
pub(crate) struct Taking<'q> {
    queue: &'q Queue,
    place: Place,
    source: Box<dyn Source>,
    waiting: std::vec::IntoIter<Received>,
    held: Vec<(Option<Message>, Box<dyn Receipt>)>,
    /// What the messages take that are held whole.
    held_bytes: usize,
}

/// A message that was taken.
pub(crate) struct Taken {
    pub(crate) message: Message,
    pub(crate) receipt: Box<dyn Receipt>,
    /// It has come back before.
    worn: bool,
}

impl<'q> Taking<'q> {
    pub(crate) async fn open(queue: &'q Queue, place: &Place) -> Result<Self, Error> {
        let terms = Terms { prefetch: u16::MAX, visibility: LOOKING, wait: Span::ZERO };
        let source = queue.inner.broker.consume(place, terms).await?;
        let (place, waiting) = (place.clone(), Vec::new().into_iter());
        Ok(Self { queue, place, source, waiting, held: Vec::new(), held_bytes: 0 })
    }

    /// The next message; none if there is no further one, or if too many are held.
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

    /// Keeps a message that is to stay.
    pub(crate) fn hold(&mut self, Taken { message, receipt, worn }: Taken) {
        // Only what has to be sent anew is needed whole.
        let message = worn.then_some(message);
        self.held_bytes += message.as_ref().map_or(0, |message| message.body.len());
        self.held.push((message, receipt));
    }

    /// Lets others have what was held, and what was taken along. What has come back before is sent
    /// anew, or looking at it too often would make the broker throw it away.
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
        // Whatever can't be given back comes back by itself when its lease ends.
        let _ = join_all(all).await;
    }
}
