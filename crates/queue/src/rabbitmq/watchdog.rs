//! Watchdog for delay queues: moves messages that RabbitMQ has forgotten.
//!
//! A quorum queue may stop checking the time-to-live of its messages: they are overdue, and neither
//! time nor another message moves them (observed in RabbitMQ 3.10 with 956 messages, for a quarter
//! of an hour; its issue 10718 describes the same). The queue checks again when a message is taken.
//! So each process that uses a delay queue takes its first message from time to time, and moves it
//! to its target if it is overdue.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions};
use sluicegate_core::time::Clock as _;
use tracing::{debug, warn};

use super::connection::{RabbitConnection, with_timeout};
use super::delay_queue::DelayQueue;
use super::failure;
use super::properties::{self, ReceivedWith};
use super::publish::publish;
use crate::body_fields::BodyFields;
use crate::broker::{DeliveryDelay, OutgoingMessage, QueueName};
use crate::{Error, WallClock, envelope};

/// Minimum interval.
const INTERVAL_MIN: Duration = Duration::from_secs(2);

/// Starts a watchdog for a delay queue. It ends when the connection is dropped.
pub(super) fn start_watchdog(
    connection: &Arc<RabbitConnection>,
    target: &QueueName,
    delay_queue: DelayQueue,
) {
    let (connection, target, queue) =
        (Arc::downgrade(connection), target.clone(), delay_queue.queue(target.name()));
    // By then, the first message of a healthy queue has left.
    let every = (Duration::from(delay_queue.span()) * 2).max(INTERVAL_MIN);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            let Some(connection) = connection.upgrade() else { return };
            match move_overdue(&connection, &target, &queue).await {
                Ok(0) => {}
                Ok(count) => warn!(queue, count, "overdue messages moved out of a delay queue"),
                Err(error) => debug!(queue, %error, "delay queue not checked"),
            }
        }
    });
}

/// Moves overdue messages from the head of a delay queue to its target. Returns their number.
///
/// Boxed, because publishing starts watchdogs, which publish.
fn move_overdue<'a>(
    connection: &'a Arc<RabbitConnection>,
    target: &'a QueueName,
    queue: &'a str,
) -> BoxFuture<'a, Result<u64, Error>> {
    async move {
        let channel = connection.new_channel().await?;
        let mut count = 0;
        loop {
            let first = channel.basic_get(failure::name(queue)?, BasicGetOptions::default());
            let first =
                with_timeout(first).await.map_err(|error| failure::of_queue(queue, error))?;
            let Some(BasicGetMessage { mut delivery, .. }) = first else { break };
            let (acker, properties) = (delivery.acker.clone(), delivery.properties.clone());
            let received_with = ReceivedWith { properties, size: delivery.data.len() };
            let message = envelope::read(properties::read(&mut delivery), &BodyFields::default());
            if message.meta.not_before.is_some_and(|at| at > WallClock.now()) {
                with_timeout(acker.nack(BasicNackOptions { multiple: false, requeue: true }))
                    .await?;
                break;
            }
            // A message is acknowledged only after its target has it.
            let next = OutgoingMessage { message, delay: DeliveryDelay::None };
            let sent = publish(connection, target, vec![(next, Some(received_with))]).await;
            sent.into_iter().collect::<Result<(), Error>>()?;
            with_timeout(acker.ack(BasicAckOptions::default())).await?;
            count += 1;
        }
        with_timeout(channel.close(200, "seen".into())).await?;
        Ok(count)
    }
    .boxed()
}
