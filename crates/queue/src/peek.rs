//! Looking at messages where they lie, whatever the broker can do.

use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::Span;

use crate::broker::{Place, Receipt, Received, Source, Terms};
use crate::{Error, Message, Queue, envelope};

/// How many messages are held while others are looked at, where a broker can't show them.
const HELD_MAX: usize = 10_000;
/// How long the next message is waited for before there is none.
const IDLE: Duration = Duration::from_secs(2);
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
        while let Some((message, receipt)) = taking.next().await? {
            taking.held.push(receipt);
            if show(message) == Seen::Enough {
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
    source: Box<dyn Source>,
    waiting: std::vec::IntoIter<Received>,
    pub(crate) held: Vec<Box<dyn Receipt>>,
}

impl<'q> Taking<'q> {
    pub(crate) async fn open(queue: &'q Queue, place: &Place) -> Result<Self, Error> {
        let terms = Terms { prefetch: u16::MAX, visibility: LOOKING, wait: Span::ZERO };
        let source = queue.inner.broker.consume(place, terms).await?;
        Ok(Self { queue, source, waiting: Vec::new().into_iter(), held: Vec::new() })
    }

    /// The next message; none if there is no further one, or if too many are held.
    pub(crate) async fn next(&mut self) -> Result<Option<(Message, Box<dyn Receipt>)>, Error> {
        loop {
            if let Some(Received { incoming, receipt }) = self.waiting.next() {
                let message = envelope::read(incoming, &self.queue.inner.fields);
                return Ok(Some((message, receipt)));
            }
            if self.held.len() >= HELD_MAX {
                return Ok(None);
            }
            match tokio::time::timeout(IDLE, self.source.next(10)).await {
                Ok(received) => self.waiting = received?.into_iter(),
                Err(_) => return Ok(None),
            }
        }
    }

    /// Lets others have what was held, and what was taken along.
    pub(crate) async fn give_back(self) {
        let waiting = self.waiting.map(|received| received.receipt);
        let all = self.held.into_iter().chain(waiting).map(|receipt| receipt.give_back());
        // Whatever can't be given back comes back by itself when its lease ends.
        let _ = join_all(all).await;
    }
}
