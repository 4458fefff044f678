//! [`PubSubReceipt`]: the receipt of a delivery, an id that is valid until the lease ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;

use super::client::{PubSubClient, QueueHandle};
use super::publish::publish;
use super::topic::{Topic, seconds};
use crate::Error;
use crate::batcher::BatchEntry;
use crate::broker::{OutgoingMessage, QueueName, Receipt, RelayError};
use crate::step::DeliveryStep;

/// Maximum number of receipts in a request, which may have half a megabyte.
const BATCH_MAX: usize = 1_000;

pub(super) struct PubSubReceipt {
    pub(super) client: Arc<PubSubClient>,
    /// Queue that the delivery came from.
    pub(super) queue_handle: Arc<QueueHandle>,
    /// Taken by the method that settles the delivery.
    pub(super) ack_id: Option<String>,
}

impl PubSubReceipt {
    fn ack_id(&mut self) -> String {
        self.ack_id.take().unwrap_or_else(|| unreachable!("settled once, by type"))
    }
}

impl Receipt for PubSubReceipt {
    fn ack(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let ack_id = self.ack_id();
        self.queue_handle.acks.submit(AckEntry(ack_id)).boxed()
    }

    fn relay(
        self: Box<Self>,
        queue_name: QueueName,
        next: OutgoingMessage,
    ) -> BoxFuture<'static, Result<(), RelayError>> {
        async move {
            let results = publish(&self.client, &queue_name, vec![next]).await;
            if let Err(error) = results.into_iter().collect::<Result<(), Error>>() {
                return Err(RelayError { error, receipt: Some(self) });
            }
            Ok(self.ack().await?)
        }
        .boxed()
    }

    fn requeue(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        let ack_id = self.ack_id();
        self.queue_handle.leases.submit(LeaseEntry { ack_id, seconds: 0 }).boxed()
    }

    fn extend(&self, visibility: Span) -> BoxFuture<'_, Result<(), Error>> {
        let Some(ack_id) = self.ack_id.clone() else {
            return std::future::ready(Err(Error::Lost)).boxed();
        };
        let seconds = seconds(visibility);
        self.queue_handle.leases.submit(LeaseEntry { ack_id, seconds }).boxed()
    }
}

impl Drop for PubSubReceipt {
    fn drop(&mut self) {
        if let Some(ack_id) = self.ack_id.take() {
            let requeue = self.queue_handle.leases.submit(LeaseEntry { ack_id, seconds: 0 });
            self.client.requeues.start(requeue);
        }
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
