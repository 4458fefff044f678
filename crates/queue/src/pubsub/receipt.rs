//! [`PubSubRequests`]: the requests that settle a delivery, and their batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;

use super::client::{PubSubClient, QueueHandle};
use super::publish::publish;
use super::topic::{Topic, seconds};
use crate::Error;
use crate::batcher::BatchEntry;
use crate::broker::{OutgoingMessage, QueueName};
use crate::request_receipt::SettleRequests;
use crate::requeues::PendingRequeues;
use crate::step::DeliveryStep;

/// Maximum number of receipts in a request, which may have half a megabyte.
const BATCH_MAX: usize = 1_000;

/// The requests for a delivery of a queue.
pub(super) struct PubSubRequests {
    pub(super) client: Arc<PubSubClient>,
    /// Queue that the delivery came from.
    pub(super) queue_handle: Arc<QueueHandle>,
}

impl SettleRequests for PubSubRequests {
    fn acknowledge(&self, ack_id: String) -> BoxFuture<'static, Result<(), Error>> {
        self.queue_handle.acks.submit(AckEntry(ack_id)).boxed()
    }

    fn lease(&self, ack_id: String, length: Span) -> BoxFuture<'static, Result<(), Error>> {
        let seconds = seconds(length);
        self.queue_handle.leases.submit(LeaseEntry { ack_id, seconds }).boxed()
    }

    fn publish(
        &self,
        queue_name: QueueName,
        next: OutgoingMessage,
    ) -> BoxFuture<'_, Result<(), Error>> {
        async move { publish(&self.client, &queue_name, vec![next]).await.into_iter().collect() }
            .boxed()
    }

    fn requeues(&self) -> &PendingRequeues {
        &self.client.requeues
    }
}

/// An acknowledgement.
#[derive(Debug)]
pub(super) struct AckEntry(pub(super) String);

impl BatchEntry for AckEntry {
    type Queue = Topic;
    const BATCH_MAX: usize = BATCH_MAX;

    async fn request(entries: Vec<Self>, topic: &Topic) -> Vec<Result<(), Error>> {
        let ack_ids: Vec<_> = entries.into_iter().map(|Self(ack_id)| ack_id).collect();
        let acknowledged = topic.acknowledge(ack_ids.clone()).await;
        DeliveryStep::Acknowledged.emit();
        match acknowledged {
            Ok(()) => vec![Ok(()); ack_ids.len()],
            Err(failure) => failure.of_receipts(&topic.name, &ack_ids),
        }
    }
}

/// A change of the lease: to this many seconds from now, or to its end.
#[derive(Debug)]
pub(super) struct LeaseEntry {
    pub(super) ack_id: String,
    pub(super) seconds: i32,
}

impl BatchEntry for LeaseEntry {
    type Queue = Topic;
    const BATCH_MAX: usize = BATCH_MAX;

    /// Sends one request for each length.
    async fn request(entries: Vec<Self>, topic: &Topic) -> Vec<Result<(), Error>> {
        let mut results = vec![Ok(()); entries.len()];
        let mut lengths = BTreeMap::<i32, (Vec<usize>, Vec<String>)>::new();
        for (place, Self { ack_id, seconds }) in entries.into_iter().enumerate() {
            let (places, ack_ids) = lengths.entry(seconds).or_default();
            places.push(place);
            ack_ids.push(ack_id);
        }
        for (seconds, (places, ack_ids)) in lengths {
            let Err(failure) = topic.lease(ack_ids.clone(), seconds).await else { continue };
            for (place, result) in
                places.into_iter().zip(failure.of_receipts(&topic.name, &ack_ids))
            {
                results[place] = result;
            }
        }
        results
    }
}
