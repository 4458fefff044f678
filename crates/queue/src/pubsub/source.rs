//! [`PubSubPoller`]: pulls messages.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;

use super::attributes;
use super::client::{PubSubClient, QueueHandle};
use super::receipt::PubSubRequests;
use crate::Error;
use crate::broker::{ConsumeOptions, QueueName, ReceivedMessage};
use crate::polling::Poller;
use crate::request_receipt::RequestReceipt;

/// Maximum number of messages per poll.
const BATCH_MAX: usize = 1_000;

/// Shortest time of a poll: Google may need it to find the messages.
const WAIT_MIN: Span = Span::from_secs(1);

pub(super) struct PubSubPoller {
    pub(super) client: Arc<PubSubClient>,
    pub(super) queue_handle: Arc<QueueHandle>,
    pub(super) options: ConsumeOptions,
}

impl Poller for PubSubPoller {
    const IS_CANCELLABLE: bool = true;

    fn queue_name(&self) -> &QueueName {
        &self.queue_handle.topic.name
    }

    fn poll(&self, max: usize) -> BoxFuture<'static, Result<Vec<ReceivedMessage>, Error>> {
        let (client, queue_handle) = (self.client.clone(), self.queue_handle.clone());
        let visibility = self.options.visibility;
        let wait = self.options.wait.max(WAIT_MIN);
        let wait = (self.options.wait < ConsumeOptions::WAIT_MAX).then_some(wait);
        async move {
            let received = queue_handle.topic.pull(max.min(BATCH_MAX), visibility, wait).await?;
            let receive = |native| {
                let mut incoming = attributes::read(&native);
                incoming.is_ordered = queue_handle.topic.is_ordered()
                    && incoming.headers.contains_key(attributes::ORDERING_KEY);
                let (client, queue_handle) = (client.clone(), queue_handle.clone());
                let requests = PubSubRequests { client, queue_handle };
                let receipt = Box::new(RequestReceipt::new(requests, native.ack_id));
                ReceivedMessage { incoming, receipt }
            };
            Ok(received.into_iter().map(receive).collect())
        }
        .boxed()
    }
}
