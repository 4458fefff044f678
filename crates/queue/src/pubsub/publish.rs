//! Publishes messages in batches, to their topic or to a delay topic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use tonic::Code;

use super::client::{PubSubClient, QueueHandle};
use super::delay_topic::DelayTopic;
use super::failure::Failure;
use super::proto::PubsubMessage;
use super::topic::Topic;
use super::{SIZE_MAX, attributes};
use crate::Error;
use crate::batcher::BatchEntry;
use crate::broker::{OutgoingMessage, QueueName};
use crate::step::DeliveryStep;

/// Maximum number of messages in a request.
const BATCH_MAX: usize = 1_000;
/// Room for the name of the topic in a request.
const NAME_SIZE: usize = 1_000;

pub(super) async fn publish(
    client: &PubSubClient,
    queue_name: &QueueName,
    batch: Vec<OutgoingMessage>,
) -> Vec<Result<(), Error>> {
    // The target must exist before a message is delayed for it.
    let target = match client.queue(queue_name).await {
        Ok(target) => target,
        Err(error) => return vec![Err(error); batch.len()],
    };
    let delay_topics = batch.iter().filter_map(|next| DelayTopic::of(next.delay));
    let mut delays: BTreeMap<DelayTopic, Result<Arc<QueueHandle>, Error>> = BTreeMap::new();
    for delay_topic in delay_topics.collect::<BTreeSet<_>>() {
        delays.insert(delay_topic, client.delay_queue(queue_name, delay_topic).await);
    }
    // All are submitted before the first result is awaited, so that they share requests.
    let submit = |next: OutgoingMessage| {
        let queue_handle = match DelayTopic::of(next.delay) {
            None => &target,
            Some(delay_topic) => delays[&delay_topic].as_ref().map_err(Error::clone)?,
        };
        Ok(queue_handle.publishes.submit(PublishEntry(attributes::write(&next.message)?)))
    };
    let submitted: Vec<Result<_, Error>> = batch.into_iter().map(submit).collect();
    join_all(submitted.into_iter().map(async |result| result?.await)).await
}

/// An encoded message.
#[derive(Debug)]
pub(super) struct PublishEntry(pub(super) PubsubMessage);

impl BatchEntry for PublishEntry {
    type Queue = Topic;
    const BATCH_MAX: usize = BATCH_MAX;
    const SIZE_MAX: usize = SIZE_MAX - NAME_SIZE;

    fn size(&self) -> usize {
        attributes::size(&self.0)
    }

    async fn request(entries: Vec<Self>, topic: &Topic) -> Vec<Result<(), Error>> {
        let messages: Vec<_> = entries.into_iter().map(|Self(message)| message).collect();
        DeliveryStep::Published.emit();
        let published = topic.publish(messages.clone()).await;
        DeliveryStep::Confirmed.emit();
        let failed = |failure: Failure| failure.of_queue(&topic.name);
        match published {
            // One invalid message makes Pub/Sub reject all of them.
            Err(failure) if failure.code() == Some(Code::InvalidArgument) && messages.len() > 1 => {
                let alone = async |message| topic.publish(vec![message]).await.map_err(failed);
                let mut results = Vec::with_capacity(messages.len());
                for message in messages {
                    results.push(alone(message).await);
                }
                results
            }
            published => vec![published.map_err(failed); messages.len()],
        }
    }
}
