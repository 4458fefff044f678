//! [`RabbitReceipt`]: the receipt of a delivery, which is valid as long as its channel is open.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::{Acker, Channel};
use sluicegate_core::Span;

use super::connection::{RabbitConnection, with_timeout};
use super::properties::ReceivedWith;
use super::publish::publish;
use crate::Error;
use crate::broker::{OutgoingMessage, QueueName, Receipt, RelayError};
use crate::step::DeliveryStep;

const REQUEUE: BasicNackOptions = BasicNackOptions { multiple: false, requeue: true };

pub(super) struct RabbitReceipt {
    pub(super) connection: Arc<RabbitConnection>,
    /// Taken by the method that settles the delivery.
    pub(super) acker: Option<Acker>,
    pub(super) received_with: ReceivedWith,
    /// Keeps the channel open even if its consumer is dropped.
    pub(super) channel: Channel,
}

impl RabbitReceipt {
    fn acker(&mut self) -> Acker {
        self.acker.take().unwrap_or_else(|| unreachable!("settled once, by type"))
    }
}

impl Receipt for RabbitReceipt {
    fn ack(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let acker = self.acker();
        async move {
            let _open = self.channel.clone();
            acknowledge(&acker).await
        }
        .boxed()
    }

    fn relay(
        mut self: Box<Self>,
        queue_name: QueueName,
        next: OutgoingMessage,
    ) -> BoxFuture<'static, Result<(), RelayError>> {
        async move {
            let received_with = Some(self.received_with.clone());
            let results = publish(&self.connection, &queue_name, vec![(next, received_with)]).await;
            if let Err(error) = results.into_iter().collect::<Result<(), Error>>() {
                return Err(RelayError { error, receipt: Some(self) });
            }
            let acker = self.acker();
            Ok(acknowledge(&acker).await?)
        }
        .boxed()
    }

    fn requeue(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let acker = self.acker();
        async move {
            let _open = self.channel.clone();
            settled_or_lost(with_timeout(acker.nack(REQUEUE)).await?)
        }
        .boxed()
    }

    fn extend(&self, _: Span) -> BoxFuture<'_, Result<(), Error>> {
        let usable = self.acker.as_ref().is_some_and(Acker::usable);
        std::future::ready(settled_or_lost(usable)).boxed()
    }
}

impl Drop for RabbitReceipt {
    fn drop(&mut self) {
        if let Some(acker) = self.acker.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let open = self.channel.clone();
            runtime.spawn(async move {
                let _ = with_timeout(acker.nack(REQUEUE)).await;
                drop(open);
            });
        }
    }
}

async fn acknowledge(acker: &Acker) -> Result<(), Error> {
    let acknowledged = with_timeout(acker.ack(BasicAckOptions::default())).await?;
    DeliveryStep::Acknowledged.emit();
    settled_or_lost(acknowledged)
}

/// Converts the result of settling. RabbitMQ has redelivered all messages of a closed channel.
const fn settled_or_lost(settled: bool) -> Result<(), Error> {
    if settled { Ok(()) } else { Err(Error::Lost) }
}
