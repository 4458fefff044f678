//! [`BusReceipt`]: the receipt of a delivery, a lock that is valid until it ends.

use std::sync::Arc;

use fe2o3_amqp::link::ReceiverDisposer;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;
use uuid::Uuid;

use super::BusClient;
use super::management::Disposition;
use super::properties::ReceivedWith;
use super::publish::publish;
use super::queue_handle::{QueueHandle, SUBQUEUE};
use super::settlement::Settlement;
use super::source::Place;
use crate::broker::{OutgoingMessage, QueueName, Receipt, RelayError};
use crate::{Error, envelope};

/// Reason of our dead letters; the description is the error message.
const REASON: &str = "ProcessingFailed";
/// Maximum length of the description of a dead letter, which Service Bus limits.
const DESCRIPTION_MAX: usize = 4_096;

pub(super) struct BusReceipt {
    pub(super) bus: Arc<BusClient>,
    /// Queue that the delivery came from.
    pub(super) queue_handle: Arc<QueueHandle>,
    /// Taken by the method that settles the delivery.
    pub(super) lock: Option<Uuid>,
    pub(super) received_with: ReceivedWith,
    /// The delivery on its link.
    pub(super) link: (ReceiverDisposer, DeliveryInfo),
    /// Free when the delivery is settled.
    pub(super) place: Option<Place>,
}

impl BusReceipt {
    /// Settles the delivery, and waits until Service Bus has confirmed it.
    fn settle(
        &mut self,
        disposition: Disposition,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let lock = self.lock.take().unwrap_or_else(|| unreachable!("settled once, by type"));
        self.queue_handle.leases.forget(lock);
        let settled = self.queue_handle.settlements.submit(Settlement { lock, disposition });
        let ((disposer, delivery), place) = (self.link.clone(), self.place.take());
        async move {
            let settled = settled.await;
            // Frees the place of the delivery on the link. The lock is gone: this does not release
            // the message.
            let _ = disposer.release(delivery).await;
            drop(place);
            settled
        }
    }

    /// Returns true if a queue is the dead-letter subqueue of this one.
    fn is_own_subqueue(&self, queue_name: &QueueName) -> bool {
        let (own, other) = (self.queue_handle.queue.address(), queue_name.name());
        other.len() == own.len() + SUBQUEUE.len()
            && other.starts_with(own)
            && other.to_ascii_lowercase().ends_with(SUBQUEUE)
    }
}

impl Receipt for BusReceipt {
    fn ack(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        self.settle(Disposition::Completed).boxed()
    }

    fn relay(
        mut self: Box<Self>,
        queue_name: QueueName,
        mut next: OutgoingMessage,
    ) -> BoxFuture<'static, Result<(), RelayError>> {
        async move {
            if self.is_own_subqueue(&queue_name) {
                // One atomic operation. It keeps the body, so the error is in the metadata alone.
                let mut description = String::new();
                if let Some(died) = &mut next.message.meta.died {
                    died.splice = None;
                    let cut = died.message.floor_char_boundary(DESCRIPTION_MAX);
                    died.message[..cut].clone_into(&mut description);
                }
                let envelope = envelope::write(&next.message);
                let reason = REASON.to_owned();
                let suspended = Disposition::Suspended { reason, description, envelope };
                return Ok(self.settle(suspended).await?);
            }
            let received_with = Some(self.received_with.clone());
            let results = publish(&self.bus, &queue_name, vec![(next, received_with)]).await;
            if let Err(error) = results.into_iter().collect::<Result<(), Error>>() {
                return Err(RelayError { error, receipt: Some(self) });
            }
            Ok(self.settle(Disposition::Completed).await?)
        }
        .boxed()
    }

    fn requeue(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        self.settle(Disposition::Abandoned).boxed()
    }

    fn extend(&self, visibility: Span) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            let QueueHandle { queue, leases, .. } = &*self.queue_handle;
            match self.lock {
                Some(lock) if leases.extend(lock, visibility) => leases.renew(queue, &[lock]).await,
                _ => Err(Error::Lost),
            }
        }
        .boxed()
    }
}

impl Drop for BusReceipt {
    fn drop(&mut self) {
        if self.lock.is_some() {
            let requeued = self.settle(Disposition::Abandoned);
            self.bus.requeues.start(requeued);
        }
    }
}
