//! Publishes messages. All messages of a batch are sent before the first confirmation is awaited,
//! so that a batch takes one round trip.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Confirmation, PublisherConfirm};
use sluicegate_core::Span;

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
    let mut stuck: HashMap<String, Error> = HashMap::new();
    for (next, received_with) in &batch {
        let queue = destination(queue_name, next);
        let result = match stuck.get(&queue) {
            // A time limit for each message would add up.
            Some(error) => Err(error.clone()),
            None => send(&live, &queue, next, received_with.as_ref()).await,
        };
        if let Err(error) = &result
            && error.is_transient()
        {
            stuck.insert(queue, error.clone());
        }
        sent.push(result);
    }
    DeliveryStep::Published.emit();
    // Confirmations are awaited concurrently, so that the whole batch has one timeout.
    let confirmations = sent.into_iter().map(async |sent| confirmed(&live, sent?).await);
    let confirmations = join_all(confirmations).await;
    let results = flushed(connection, &live, confirmations).await;
    DeliveryStep::Confirmed.emit();
    results
}

/// Waits until the delay queues of confirmed messages are old enough to survive a crash of
/// RabbitMQ. If the connection is lost before that, the queues and their messages may be gone.
async fn flushed(
    connection: &RabbitConnection,
    live: &OpenConnection,
    confirmations: Vec<Result<String, Error>>,
) -> Vec<Result<(), Error>> {
    let is_young = |queue: &String| {
        let age = live.declared_for(queue)?;
        let left = connection.creation_flush.saturating_sub(age);
        (left > Span::ZERO).then_some(left)
    };
    let young: Vec<_> =
        confirmations.iter().map(|result| result.as_ref().ok().and_then(is_young)).collect();
    if let Some(wait) = young.iter().flatten().max() {
        tokio::time::sleep((*wait).into()).await;
    }
    let is_up = live.is_up();
    let results = confirmations.into_iter().zip(young).map(|(result, young)| match result {
        Ok(_) if young.is_some() && !is_up => {
            Err(failure::unavailable("the connection was lost before a new delay queue was stored"))
        }
        result => result.map(drop),
    });
    results.collect()
}

/// Checks that the target exists, and declares the delay queues: a message that expires into a
/// missing queue is lost. Shorter delay queues are declared together with a longer one, because a
/// queue that RabbitMQ has just created does not survive a power failure yet.
pub(super) async fn prepare(
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
        look_after(connection, target, wait);
        live.mark_declared(queue);
    }
    Ok(())
}

/// Counts and watches a delay queue from now on.
pub(super) fn look_after(
    connection: &Arc<RabbitConnection>,
    target: &QueueName,
    delay_queue: DelayQueue,
) {
    let is_first = connection.record_delay_queue(target.name(), delay_queue.queue(target.name()));
    if is_first && matches!(delay_queue, DelayQueue::Step(_)) {
        start_watchdog(connection, target, delay_queue);
    }
}

/// Returns the name of the queue that a message is published to: the target or a delay queue.
fn destination(queue_name: &QueueName, next: &OutgoingMessage) -> String {
    let target = queue_name.name();
    DelayQueue::of(next.delay).map_or_else(|| target.to_owned(), |wait| wait.queue(target))
}

/// A message that was sent and is not confirmed yet.
struct Unconfirmed {
    queue: String,
    /// Open until the message is confirmed.
    channel: Channel,
    confirm: PublisherConfirm,
}

async fn send(
    live: &OpenConnection,
    queue: &str,
    OutgoingMessage { message, .. }: &OutgoingMessage,
    received_with: Option<&ReceivedWith>,
) -> Result<Unconfirmed, Error> {
    let properties = properties::write(message, received_with)?;
    let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
    let name = failure::name(queue)?;
    let channel = live.publishing(queue).await?;
    let publish = channel.basic_publish("".into(), name, mandatory, &message.body, properties);
    match with_timeout(publish).await {
        Ok(confirm) => Ok(Unconfirmed { queue: queue.to_owned(), channel, confirm }),
        Err(failure) => {
            live.discard(queue, &channel);
            Err(failure.into())
        }
    }
}

/// Waits for the confirmation, and returns the name of the queue. Everything except a positive
/// confirmation is an error.
async fn confirmed(
    live: &OpenConnection,
    Unconfirmed { queue, channel, confirm }: Unconfirmed,
) -> Result<String, Error> {
    let confirmation = with_timeout(confirm).await.inspect_err(|_| live.discard(&queue, &channel));
    match confirmation? {
        Confirmation::Ack(None) => Ok(queue),
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
