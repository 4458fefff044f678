//! Sends messages in batches. A successful response may contain failures of single messages.

use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use futures_util::future::join_all;

use super::attributes::{self, Attributes, EncodedMessage};
use super::batch_results::results;
use super::client::{SqsClient, SqsQueue};
use super::{BATCH_MAX, SIZE_MAX, failure};
use crate::Error;
use crate::batcher::BatchEntry;
use crate::broker::{DeliveryDelay, OutgoingMessage, QueueName};
use crate::step::DeliveryStep;

/// A message, and the attributes with which it was received, if it is passed on.
pub(super) type SendRequest = (OutgoingMessage, Option<Attributes>);

pub(super) async fn send(
    sqs: &SqsClient,
    queue_name: &QueueName,
    batch: Vec<SendRequest>,
) -> Vec<Result<(), Error>> {
    let queue_handle = match sqs.queue(queue_name).await {
        Ok(queue_handle) => queue_handle,
        Err(error) => return vec![Err(error); batch.len()],
    };
    // All are submitted before the first result is awaited, so that they share requests.
    let submit = |(next, received_with): SendRequest| {
        let encoded = attributes::write(&next.message, received_with.as_ref())?;
        Ok(queue_handle.sends.submit(SendEntry { encoded, seconds: seconds(next.delay) }))
    };
    let submitted: Vec<Result<_, Error>> = batch.into_iter().map(submit).collect();
    join_all(submitted.into_iter().map(async |result| result?.await)).await
}

/// An encoded message and its delay.
#[derive(Debug)]
pub(super) struct SendEntry {
    encoded: EncodedMessage,
    seconds: i32,
}

impl BatchEntry for SendEntry {
    type Queue = SqsQueue;
    const BATCH_MAX: usize = BATCH_MAX;
    const SIZE_MAX: usize = SIZE_MAX;

    fn size(&self) -> usize {
        self.encoded.size
    }

    async fn request(entries: Vec<Self>, queue: &SqsQueue) -> Vec<Result<(), Error>> {
        let count = entries.len();
        let entry = |(number, Self { encoded, seconds }): (usize, Self)| {
            let entry = SendMessageBatchRequestEntry::builder().id(number.to_string());
            let entry = entry.message_body(encoded.body).delay_seconds(seconds);
            let entry = entry.set_message_attributes(Some(encoded.attributes));
            entry.build().expect("it has an id and a body")
        };
        let entries = entries.into_iter().enumerate().map(entry).collect();
        let batch = queue.client.send_message_batch().queue_url(&queue.url);
        DeliveryStep::Published.emit();
        let sent = batch.set_entries(Some(entries)).send().await;
        DeliveryStep::Confirmed.emit();
        match sent {
            Ok(response) => {
                let done = response.successful.iter().map(|done| done.id());
                let failed = response.failed.iter().map(|failed| {
                    let words = failed.message().unwrap_or_default();
                    (failed.id(), failure::of_code(&queue.name, failed.code(), words))
                });
                results(count, done, failed)
            }
            Err(error) => vec![Err(failure::of_queue(&queue.name, &error)); count],
        }
    }
}

/// Converts to whole seconds, rounded down: the consumer holds messages that arrive early.
fn seconds(delay: DeliveryDelay) -> i32 {
    i32::try_from(delay.span().as_micros() / 1_000_000).unwrap_or(i32::MAX)
}
