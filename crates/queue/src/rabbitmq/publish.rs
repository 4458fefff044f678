//! Publishes messages. All messages of a batch are sent before the first confirmation is awaited,
//! so that a batch takes one round trip.

use std::collections::BTreeSet;
use std::sync::Arc;

use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Confirmation, PublisherConfirm};

use super::connection::{OpenConnection, RabbitConnection, with_timeout};
use super::delay_queue::DelayQueue;
use super::properties::ReceivedWith;
use super::watchdog::start_watchdog;
use super::{failure, properties};
use crate::Error;
use crate::broker::{OutgoingMessage, QueueName};
use crate::step::DeliveryStep;

/// A message, and the properties with which it was received, if it is passed on.
pub(super) type PublishRequest = (OutgoingMessage, Option<ReceivedWith>);

/// Publishes messages, and waits until RabbitMQ has confirmed or rejected each of them.
pub(super) async fn publish(
    connection: &Arc<RabbitConnection>,
    queue_name: &QueueName,
    batch: Vec<PublishRequest>,
) -> Vec<Result<(), Error>> {
    let (count, all_fail) = (batch.len(), |error: Error, count| vec![Err(error); count]);
    let live = match connection.open().await {
        Ok(live) => live,
        Err(error) => return all_fail(error, count),
    };
    let waits: BTreeSet<_> =
        batch.iter().filter_map(|(next, _)| DelayQueue::of(next.delay)).collect();
    if !waits.is_empty()
        && let Err(error) = prepare(connection, &live, queue_name, waits).await
    {
        return all_fail(error, count);
    }
    let mut sent = Vec::with_capacity(count);
    for (next, received_with) in &batch {
        sent.push(send(&live, queue_name, next, received_with.as_ref()).await);
    }
    DeliveryStep::Published.emit();
    let mut results = Vec::with_capacity(count);
    for sent in sent {
        results.push(match sent {
            Ok((queue, confirm)) => confirmed(&live, queue, confirm).await,
            Err(error) => Err(error),
        });
    }
    DeliveryStep::Confirmed.emit();
    results
}

/// Checks that the target exists, and declares the delay queues: a message that expires into a
/// missing queue is lost. Shorter delay queues are declared together with a longer one, because a
/// queue that RabbitMQ has just created does not survive a power failure yet.
async fn prepare(
    connection: &Arc<RabbitConnection>,
    live: &OpenConnection,
    target: &QueueName,
    waits: BTreeSet<DelayQueue>,
) -> Result<(), Error> {
    let is_undeclared = |wait: &DelayQueue| live.is_undeclared(&wait.queue(target.name()));
    let waits = waits
        .into_iter()
        .filter(is_undeclared)
        .flat_map(DelayQueue::and_below)
        .filter(is_undeclared);
    let waits: BTreeSet<_> = waits.collect();
    if waits.is_empty() && live.was_found_recently(target.name()) {
        return Ok(());
    }
    let channel = connection.new_channel().await?;
    let name = failure::name(target.name())?;
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    with_timeout(channel.queue_declare(name, passive, FieldTable::default()))
        .await
        .map_err(|error| failure::of_queue(target.name(), error))?;
    live.mark_found(target.name());
    for wait in waits {
        let queue = wait.queue(target.name());
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        let arguments = wait.arguments(target.name());
        with_timeout(channel.queue_declare(failure::name(&queue)?, durable, arguments))
            .await
            .map_err(|error| failure::of_queue(&queue, error))?;
        let is_first = connection.record_delay_queue(target.name(), queue.clone());
        if is_first && matches!(wait, DelayQueue::Step(_)) {
            start_watchdog(connection, target, wait);
        }
        live.mark_declared(queue);
    }
    Ok(())
}

async fn send(
    live: &OpenConnection,
    queue_name: &QueueName,
    OutgoingMessage { message, delay }: &OutgoingMessage,
    received_with: Option<&ReceivedWith>,
) -> Result<(String, PublisherConfirm), Error> {
    let properties = properties::write(message, received_with)?;
    let target = queue_name.name();
    let queue = DelayQueue::of(*delay).map_or_else(|| target.to_owned(), |wait| wait.queue(target));
    let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
    let name = failure::name(&queue)?;
    let publish =
        live.publishing.basic_publish("".into(), name, mandatory, &message.body, properties);
    Ok((queue, with_timeout(publish).await?))
}

/// Waits for the confirmation. Everything except a positive confirmation is an error.
async fn confirmed(
    live: &OpenConnection,
    queue: String,
    confirm: PublisherConfirm,
) -> Result<(), Error> {
    match with_timeout(confirm).await? {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) => {
            // If it is a delay queue that was deleted, the next attempt declares it again.
            live.mark_undeclared(&queue);
            Err(Error::NoQueue { queue })
        }
        Confirmation::Nack(_) => {
            let detail = format!("a message for {queue} was rejected: the queue may be full");
            Err(failure::unavailable(&detail))
        }
        Confirmation::NotRequested => {
            Err(failure::unavailable("the channel has no publisher confirms"))
        }
    }
}
