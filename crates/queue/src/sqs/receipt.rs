//! [`SqsRequests`]: the requests that settle a delivery, and their batches.

use std::sync::Arc;

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
};
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;

use super::attributes::Attributes;
use super::batch_results::results;
use super::client::{QueueHandle, SqsClient, SqsQueue};
use super::send::send;
use super::{BATCH_MAX, LEASE_MAX, failure};
use crate::Error;
use crate::batcher::BatchEntry;
use crate::broker::{OutgoingMessage, QueueName};
use crate::request_receipt::SettleRequests;
use crate::requeues::PendingRequeues;
use crate::step::DeliveryStep;

/// The requests for a delivery of a queue.
pub(super) struct SqsRequests {
    pub(super) sqs: Arc<SqsClient>,
    /// Queue that the delivery came from.
    pub(super) queue_handle: Arc<QueueHandle>,
    pub(super) attributes: Option<Attributes>,
}

impl SettleRequests for SqsRequests {
    fn acknowledge(&self, handle: String) -> BoxFuture<'static, Result<(), Error>> {
        self.queue_handle.deletes.submit(DeleteEntry(handle)).boxed()
    }

    fn lease(&self, handle: String, length: Span) -> BoxFuture<'static, Result<(), Error>> {
        let seconds = seconds(length);
        self.queue_handle.visibilities.submit(VisibilityEntry { handle, seconds }).boxed()
    }

    fn publish(
        &self,
        queue_name: QueueName,
        next: OutgoingMessage,
    ) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            let received_with = self.attributes.clone();
            let sent = send(&self.sqs, &queue_name, vec![(next, received_with)]).await;
            sent.into_iter().collect()
        }
        .boxed()
    }

    fn requeues(&self) -> &PendingRequeues {
        &self.sqs.requeues
    }

    fn token(&self, handle: &str) -> Option<String> {
        // With the name: the queue of a priority level has a URL of its own.
        let name = self.queue_handle.queue.name.name();
        Some(format!("{name}|{handle}"))
    }
}

/// An acknowledgement.
#[derive(Debug)]
pub(super) struct DeleteEntry(String);

impl BatchEntry for DeleteEntry {
    type Queue = SqsQueue;
    const BATCH_MAX: usize = BATCH_MAX;

    async fn request(entries: Vec<Self>, queue: &SqsQueue) -> Vec<Result<(), Error>> {
        let count = entries.len();
        let entry = |(number, Self(handle)): (usize, Self)| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(number.to_string());
            entry.receipt_handle(handle).build().expect("it has an id and a receipt")
        };
        let entries = entries.into_iter().enumerate().map(entry).collect();
        let delete = queue.client.delete_message_batch().queue_url(&queue.url);
        let deleted = delete.set_entries(Some(entries)).send().await;
        DeliveryStep::Acknowledged.emit();
        match deleted {
            Ok(response) => {
                let done = response.successful.iter().map(|done| done.id());
                results(count, done, failed(&queue.name, &response.failed))
            }
            Err(error) => unsettled(count, &queue.name, &error),
        }
    }
}

/// A change of the lease: to this many seconds from now, or to its end.
#[derive(Debug)]
pub(super) struct VisibilityEntry {
    handle: String,
    seconds: i32,
}

impl BatchEntry for VisibilityEntry {
    type Queue = SqsQueue;
    const BATCH_MAX: usize = BATCH_MAX;

    async fn request(entries: Vec<Self>, queue: &SqsQueue) -> Vec<Result<(), Error>> {
        let count = entries.len();
        let entry = |(number, Self { handle, seconds }): (usize, Self)| {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(number.to_string());
            let entry = entry.receipt_handle(handle).visibility_timeout(seconds);
            entry.build().expect("it has an id and a receipt")
        };
        let entries = entries.into_iter().enumerate().map(entry).collect();
        let change = queue.client.change_message_visibility_batch().queue_url(&queue.url);
        match change.set_entries(Some(entries)).send().await {
            Ok(response) => {
                let done = response.successful.iter().map(|done| done.id());
                results(count, done, failed(&queue.name, &response.failed))
            }
            Err(error) => unsettled(count, &queue.name, &error),
        }
    }
}

fn failed<'a>(
    queue_name: &'a QueueName,
    failed: &'a [BatchResultErrorEntry],
) -> impl Iterator<Item = (&'a str, Error)> {
    failed.iter().map(|failed| {
        let words = failed.message().unwrap_or_default();
        (failed.id(), failure::of_receipt(queue_name, failed.code(), words))
    })
}

/// Returns the results of a request that failed as a whole.
fn unsettled<E>(count: usize, queue_name: &QueueName, error: &SdkError<E>) -> Vec<Result<(), Error>>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    vec![Err(failure::of_queue(queue_name, error)); count]
}

/// Converts to whole seconds, rounded up so that a lease is never too short.
pub(super) fn seconds(visibility: Span) -> i32 {
    i32::try_from(visibility.min(LEASE_MAX).as_secs_ceil()).unwrap_or(i32::MAX)
}
