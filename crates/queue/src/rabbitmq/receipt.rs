//! [`Held`]: the receipt of a delivery, which is valid as long as its channel is open.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::{Acker, BasicProperties, Channel};
use sluicegate_core::Span;

use super::link::{Link, in_time};
use super::publish::publish;
use crate::Error;
use crate::broker::{Outgoing, Place, Receipt};
use crate::step::Step;

const REQUEUE: BasicNackOptions = BasicNackOptions { multiple: false, requeue: true };

pub(super) struct Held {
    pub(super) link: Arc<Link>,
    /// Taken by the method that settles the delivery.
    pub(super) acker: Option<Acker>,
    pub(super) properties: BasicProperties,
    /// Keeps the channel open even if its consumer is dropped.
    pub(super) channel: Channel,
}

impl Held {
    fn acker(&mut self) -> Acker {
        self.acker.take().unwrap_or_else(|| unreachable!("settled once, by type"))
    }
}

impl Receipt for Held {
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
        place: Place,
        next: Outgoing,
    ) -> BoxFuture<'static, Result<(), Error>> {
        async move {
            let came = Some(self.properties.clone());
            let results = publish(&self.link, &place, vec![(next, came)]).await;
            // On failure nothing is acknowledged, and the dropped receipt requeues the message.
            results.into_iter().collect::<Result<(), Error>>()?;
            let acker = self.acker();
            acknowledge(&acker).await
        }
        .boxed()
    }

    fn give_back(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let acker = self.acker();
        async move {
            let _open = self.channel.clone();
            ours(in_time(acker.nack(REQUEUE)).await?)
        }
        .boxed()
    }

    fn extend(&self, _: Span) -> BoxFuture<'_, Result<(), Error>> {
        let usable = self.acker.as_ref().is_some_and(Acker::usable);
        std::future::ready(ours(usable)).boxed()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(acker) = self.acker.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let open = self.channel.clone();
            runtime.spawn(async move {
                let _ = in_time(acker.nack(REQUEUE)).await;
                drop(open);
            });
        }
    }
}

async fn acknowledge(acker: &Acker) -> Result<(), Error> {
    let acknowledged = in_time(acker.ack(BasicAckOptions::default())).await?;
    Step::Acknowledged.reached();
    ours(acknowledged)
}

/// Converts the result of settling. RabbitMQ has redelivered all messages of a closed channel.
const fn ours(settled: bool) -> Result<(), Error> {
    if settled { Ok(()) } else { Err(Error::Lost) }
}
