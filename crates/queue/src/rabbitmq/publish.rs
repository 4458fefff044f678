//! Publishes messages. All messages of a batch are sent before the first confirmation is awaited,
//! so that a batch takes one round trip.

use std::collections::BTreeSet;
use std::sync::Arc;

use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, PublisherConfirm};

use super::delay::Wait;
use super::link::{Link, Live, in_time};
use super::nudge::look_after;
use super::{failure, properties};
use crate::Error;
use crate::broker::{Outgoing, Place};
use crate::step::Step;

/// A message, and the properties with which it was received, if it is passed on.
pub(super) type Leaving = (Outgoing, Option<BasicProperties>);

/// Publishes messages, and waits until RabbitMQ has confirmed or rejected each of them.
pub(super) async fn publish(
    link: &Arc<Link>,
    place: &Place,
    batch: Vec<Leaving>,
) -> Vec<Result<(), Error>> {
    let (count, all_fail) = (batch.len(), |error: Error, count| vec![Err(error); count]);
    let live = match link.live().await {
        Ok(live) => live,
        Err(error) => return all_fail(error, count),
    };
    let waits: BTreeSet<_> = batch.iter().filter_map(|(next, _)| Wait::of(next.delay)).collect();
    if !waits.is_empty()
        && let Err(error) = prepare(link, &live, place, waits).await
    {
        return all_fail(error, count);
    }
    let mut sent = Vec::with_capacity(count);
    for (next, came) in &batch {
        sent.push(send(&live, place, next, came.as_ref()).await);
    }
    Step::Published.reached();
    let mut results = Vec::with_capacity(count);
    for sent in sent {
        results.push(match sent {
            Ok((queue, confirm)) => confirmed(&live, queue, confirm).await,
            Err(error) => Err(error),
        });
    }
    Step::Confirmed.reached();
    results
}

/// Checks that the target exists, and declares the delay queues: a message that expires into a
/// missing queue is lost. Shorter delay queues are declared together with a longer one, because a
/// queue that RabbitMQ has just created does not survive a power failure yet.
async fn prepare(
    link: &Arc<Link>,
    live: &Live,
    target: &Place,
    waits: BTreeSet<Wait>,
) -> Result<(), Error> {
    let is_new = |wait: &Wait| live.is_new(&wait.queue(target.name()));
    let waits = waits.into_iter().filter(is_new).flat_map(Wait::and_below).filter(is_new);
    let waits: BTreeSet<_> = waits.collect();
    if waits.is_empty() && live.saw_lately(target.name()) {
        return Ok(());
    }
    let channel = link.throwaway().await?;
    let name = failure::name(target.name())?;
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    in_time(channel.queue_declare(name, passive, FieldTable::default()))
        .await
        .map_err(|error| failure::of_queue(target.name(), error))?;
    live.saw(target.name());
    for wait in waits {
        let queue = wait.queue(target.name());
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        let arguments = wait.arguments(target.name());
        in_time(channel.queue_declare(failure::name(&queue)?, durable, arguments))
            .await
            .map_err(|error| failure::of_queue(&queue, error))?;
        let is_first = link.use_delay(target.name(), queue.clone());
        if is_first && matches!(wait, Wait::Rung(_)) {
            look_after(link, target, wait);
        }
        live.remember(queue);
    }
    Ok(())
}

async fn send(
    live: &Live,
    place: &Place,
    Outgoing { message, delay }: &Outgoing,
    came: Option<&BasicProperties>,
) -> Result<(String, PublisherConfirm), Error> {
    let properties = properties::write(message, came)?;
    let target = place.name();
    let queue = Wait::of(*delay).map_or_else(|| target.to_owned(), |wait| wait.queue(target));
    let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
    let name = failure::name(&queue)?;
    let publish =
        live.publishing.basic_publish("".into(), name, mandatory, &message.body, properties);
    Ok((queue, in_time(publish).await?))
}

/// Waits for the confirmation. Everything except a positive confirmation is an error.
async fn confirmed(live: &Live, queue: String, confirm: PublisherConfirm) -> Result<(), Error> {
    match in_time(confirm).await? {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) => {
            // If it is a delay queue that was deleted, the next attempt declares it again.
            live.forget(&queue);
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
