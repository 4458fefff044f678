//! [`RabbitSource`]: a subscription to a queue on a channel of its own, renewed when it is lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tracing::{info, warn};

use super::connection::{RabbitConnection, with_timeout};
use super::properties::ReceivedWith;
use super::receipt::RabbitReceipt;
use super::{failure, properties};
use crate::Error;
use crate::broker::{ConsumeOptions, MessageSource, QueueName, ReceivedMessage};

/// Backoff between attempts to subscribe; it doubles each time.
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(5);

pub(super) struct RabbitSource {
    connection: Arc<RabbitConnection>,
    queue_name: QueueName,
    options: ConsumeOptions,
    current: Option<(Channel, Consumer)>,
}

impl RabbitSource {
    pub(super) const fn new(
        connection: Arc<RabbitConnection>,
        queue_name: QueueName,
        options: ConsumeOptions,
    ) -> Self {
        Self { connection, queue_name, options, current: None }
    }

    /// Opens a channel and subscribes.
    pub(super) async fn subscribe(&mut self) -> Result<(), Error> {
        let channel = self.connection.new_channel().await?;
        with_timeout(channel.basic_qos(self.options.prefetch.max(1), BasicQosOptions::default()))
            .await?;
        let name = failure::name(self.queue_name.name())?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer =
            with_timeout(channel.basic_consume(name, "".into(), options, arguments)).await;
        let consumer =
            consumer.map_err(|error| failure::of_queue(self.queue_name.name(), error))?;
        self.current = Some((channel, consumer));
        Ok(())
    }

    /// Subscribes with retries. Returns only errors that an operator has to fix.
    async fn resubscribe(&mut self) -> Result<(), Error> {
        let mut wait = WAIT_MIN;
        loop {
            match self.subscribe().await {
                Ok(()) => {
                    info!(queue = %self.queue_name, "subscription renewed");
                    return Ok(());
                }
                Err(error) if !error.is_transient() => return Err(error),
                Err(error) => {
                    warn!(queue = %self.queue_name, %error, "subscription failed, retrying")
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
    }

    fn receive(&self, channel: &Channel, mut delivery: Delivery) -> ReceivedMessage {
        let incoming = properties::read(&mut delivery);
        let size = incoming.body.len();
        let receipt = RabbitReceipt {
            connection: self.connection.clone(),
            acker: Some(delivery.acker),
            received_with: ReceivedWith { properties: delivery.properties, size },
            channel: channel.clone(),
        };
        ReceivedMessage { incoming, receipt: Box::new(receipt) }
    }
}

impl MessageSource for RabbitSource {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>> {
        async move {
            loop {
                let Some((channel, consumer)) = &mut self.current else {
                    self.resubscribe().await?;
                    continue;
                };
                let channel = channel.clone();
                // Messages that are already here are returned together.
                let mut deliveries = Vec::new();
                let mut next = consumer.next().await;
                while let Some(Ok(delivery)) = next {
                    deliveries.push(delivery);
                    if deliveries.len() >= max {
                        break;
                    }
                    match consumer.next().now_or_never() {
                        Some(more) => next = more,
                        None => break,
                    }
                }
                if deliveries.is_empty() {
                    self.current = None;
                    continue;
                }
                let receive = |delivery| self.receive(&channel, delivery);
                return Ok(deliveries.into_iter().map(receive).collect());
            }
        }
        .boxed()
    }

    fn close(mut self: Box<Self>) -> BoxFuture<'static, Vec<ReceivedMessage>> {
        async move {
            let Some((channel, mut consumer)) = self.current.take() else { return Vec::new() };
            let tag = consumer.tag();
            let _ = with_timeout(channel.basic_cancel(tag, BasicCancelOptions::default())).await;
            let mut left = Vec::new();
            while let Some(Some(Ok(delivery))) = consumer.next().now_or_never() {
                left.push(self.receive(&channel, delivery));
            }
            left
        }
        .boxed()
    }
}

impl Drop for RabbitSource {
    /// Ends the subscription and requeues messages that were not handed out. Deliveries that were
    /// handed out keep the channel open until they are settled.
    fn drop(&mut self) {
        let Some((channel, mut consumer)) = self.current.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let tag = consumer.tag();
            let _ = with_timeout(channel.basic_cancel(tag, BasicCancelOptions::default())).await;
            let requeue = BasicNackOptions { requeue: true, ..Default::default() };
            while let Some(Some(Ok(delivery))) = consumer.next().now_or_never() {
                let _ = with_timeout(delivery.acker.nack(requeue)).await;
            }
        });
    }
}
