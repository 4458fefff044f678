//! [`Held`]: the receipt of a delivery, which is the id of the row and the fence of its lease.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;
use sluicegate_core::time::Clock;

use super::operations::{Leased, lease_end};
use super::writer::Writer;
use crate::Error;
use crate::broker::{Outgoing, Place, Receipt};
use crate::step::Step;

pub(super) struct Held {
    pub(super) place: Place,
    /// Taken by the method that settles the delivery.
    pub(super) leased: Option<Leased>,
    pub(super) writer: Writer,
    pub(super) clock: Arc<dyn Clock>,
}

impl Held {
    fn settle(mut self) -> (Leased, Place, Writer, Arc<dyn Clock>) {
        let leased = self.leased.take().unwrap_or_else(|| unreachable!("settled once, by type"));
        (leased, self.place.clone(), self.writer.clone(), self.clock.clone())
    }
}

impl Receipt for Held {
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let (leased, place, writer, _) = (*self).settle();
        settled(writer.run(move |work| work.ack(&place, leased))).boxed()
    }

    fn relay(self: Box<Self>, to: Place, next: Outgoing) -> BoxFuture<'static, Result<(), Error>> {
        let (leased, from, writer, clock) = (*self).settle();
        let now = clock.now();
        settled(writer.run(move |work| work.relay((&from, leased), &to, &next, now))).boxed()
    }

    fn give_back(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let (leased, place, writer, _) = (*self).settle();
        writer.run(move |work| work.give_back(&place, leased)).boxed()
    }

    fn extend(&self, visibility: Span) -> BoxFuture<'_, Result<(), Error>> {
        let Some(leased) = self.leased else { return std::future::ready(Err(Error::Lost)).boxed() };
        let until = lease_end(self.clock.now(), visibility);
        let place = self.place.clone();
        self.writer.run(move |work| work.extend(&place, leased, until)).boxed()
    }
}

async fn settled(work: BoxFuture<'static, Result<(), Error>>) -> Result<(), Error> {
    let outcome = work.await;
    Step::Acknowledged.reached();
    outcome
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(leased) = self.leased.take() {
            let place = self.place.clone();
            self.writer.run_later(move |work| work.give_back(&place, leased));
        }
    }
}
