//! [`RequestReceipt`]: the receipt of a broker that is called by request: an id that is valid until the
//! lease ends.

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;

use crate::Error;
use crate::broker::{OutgoingMessage, QueueName, Receipt, RelayError};
use crate::requeues::PendingRequeues;

/// The requests that settle a delivery.
pub(crate) trait SettleRequests: Send + Sync + 'static {
    /// Acknowledges the delivery.
    fn acknowledge(&self, id: String) -> BoxFuture<'static, Result<(), Error>>;

    /// Sets the lease to this length from now; zero ends it.
    fn lease(&self, id: String, length: Span) -> BoxFuture<'static, Result<(), Error>>;

    /// Publishes the message that follows the received one.
    fn publish(
        &self,
        queue_name: QueueName,
        next: OutgoingMessage,
    ) -> BoxFuture<'_, Result<(), Error>>;

    /// Returns the requeues of dropped receipts.
    fn requeues(&self) -> &PendingRequeues;

    /// Returns the text with which any process can take over the delivery, if there is one.
    fn token(&self, _id: &str) -> Option<String> {
        None
    }
}

/// A receipt that is settled by requests.
pub(crate) struct RequestReceipt<R: SettleRequests> {
    requests: R,
    /// Taken by the method that settles the delivery.
    id: Option<String>,
}

impl<R: SettleRequests> RequestReceipt<R> {
    pub(crate) const fn new(requests: R, id: String) -> Self {
        Self { requests, id: Some(id) }
    }

    fn take(&mut self) -> String {
        self.id.take().unwrap_or_else(|| unreachable!("settled once, by type"))
    }
}

impl<R: SettleRequests> Receipt for RequestReceipt<R> {
    fn ack(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let id = self.take();
        self.requests.acknowledge(id)
    }

    fn relay(
        self: Box<Self>,
        queue_name: QueueName,
        next: OutgoingMessage,
    ) -> BoxFuture<'static, Result<(), RelayError>> {
        async move {
            if let Err(error) = self.requests.publish(queue_name, next).await {
                return Err(RelayError { error, receipt: Some(self) });
            }
            Ok(self.ack().await?)
        }
        .boxed()
    }

    fn requeue(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let id = self.take();
        self.requests.lease(id, Span::ZERO)
    }

    fn extend(&self, visibility: Span) -> BoxFuture<'_, Result<(), Error>> {
        match self.id.clone() {
            Some(id) => self.requests.lease(id, visibility),
            None => std::future::ready(Err(Error::Lost)).boxed(),
        }
    }

    fn token(&self) -> Option<String> {
        self.requests.token(self.id.as_deref()?)
    }

    fn detach(mut self: Box<Self>) {
        if self.token().is_some() {
            self.id = None;
        }
    }
}

impl<R: SettleRequests> Drop for RequestReceipt<R> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.requests.requeues().start(self.requests.lease(id, Span::ZERO));
        }
    }
}
