//! [`EmbeddedReceipt`]: the receipt of a delivery, which is the id of the row and the fence of its
//! lease.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;
use sluicegate_core::time::Clock;

use super::transaction::{LeasedRow, lease_end};
use super::writer::Writer;
use crate::Error;
use crate::broker::{OutgoingMessage, QueueName, Receipt, RelayError};
use crate::step::DeliveryStep;

pub(super) struct EmbeddedReceipt {
    pub(super) queue_name: QueueName,
    /// Taken by the method that settles the delivery.
    pub(super) leased: Option<LeasedRow>,
    pub(super) writer: Writer,
    pub(super) clock: Arc<dyn Clock>,
}

impl EmbeddedReceipt {
    fn settle(mut self) -> (LeasedRow, QueueName, Writer, Arc<dyn Clock>) {
        let leased = self.leased.take().unwrap_or_else(|| unreachable!("settled once, by type"));
        (leased, self.queue_name.clone(), self.writer.clone(), self.clock.clone())
    }
}

impl Receipt for EmbeddedReceipt {
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let (leased, queue_name, writer, _) = (*self).settle();
        settled(writer.run(move |transaction| transaction.ack(&queue_name, leased))).boxed()
    }

    fn relay(
        self: Box<Self>,
        to: QueueName,
        next: OutgoingMessage,
    ) -> BoxFuture<'static, Result<(), RelayError>> {
        let (leased, from, writer, clock) = (*self).settle();
        let (now, unsettled) = (clock.now(), (from.clone(), writer.clone(), clock));
        let relay = settled(
            writer.run(move |transaction| transaction.relay((&from, leased), &to, &next, now)),
        );
        async move {
            let Err(error) = relay.await else { return Ok(()) };
            // A failed transaction changed nothing.
            let (queue_name, writer, clock) = unsettled;
            let receipt = Self { queue_name, leased: Some(leased), writer, clock };
            let is_settled = error == Error::Lost;
            Err(RelayError { error, receipt: (!is_settled).then(|| Box::new(receipt) as _) })
        }
        .boxed()
    }

    fn requeue(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let (leased, queue_name, writer, _) = (*self).settle();
        writer.run(move |transaction| transaction.requeue(&queue_name, leased)).boxed()
    }

    fn extend(&self, visibility: Span) -> BoxFuture<'_, Result<(), Error>> {
        let Some(leased) = self.leased else { return std::future::ready(Err(Error::Lost)).boxed() };
        let until = lease_end(self.clock.now(), visibility);
        let queue_name = self.queue_name.clone();
        self.writer.run(move |transaction| transaction.extend(&queue_name, leased, until)).boxed()
    }

    fn token(&self) -> Option<String> {
        self.leased.map(|leased| leased.to_string())
    }

    fn detach(mut self: Box<Self>) {
        self.leased = None;
    }
}

async fn settled(transaction: BoxFuture<'static, Result<(), Error>>) -> Result<(), Error> {
    let outcome = transaction.await;
    DeliveryStep::Acknowledged.emit();
    outcome
}

impl Drop for EmbeddedReceipt {
    fn drop(&mut self) {
        if let Some(leased) = self.leased.take() {
            let queue_name = self.queue_name.clone();
            self.writer.run_detached(move |transaction| transaction.requeue(&queue_name, leased));
        }
    }
}
