//! [`PubSubPoller`]: pulls messages.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};

use super::attributes;
use super::client::{PubSubClient, QueueHandle};
use super::receipt::PubSubRequests;
use crate::Error;
use crate::broker::{ConsumeOptions, QueueName, ReceivedMessage};
use crate::polling::Poller;
use crate::request_receipt::RequestReceipt;

/// Maximum number of messages per poll.
const BATCH_MAX: usize = 1_000;

pub(super) struct PubSubPoller {
    pub(super) client: Arc<PubSubClient>,
    pub(super) queue_handle: Arc<QueueHandle>,
    pub(super) options: ConsumeOptions,
}

impl Poller for PubSubPoller {
    fn queue_name(&self) -> &QueueName {
        &self.queue_handle.topic.name
    }

    fn poll(&self, max: usize) -> BoxFuture<'static, Result<Vec<ReceivedMessage>, Error>> {
        let (client, queue_handle) = (self.client.clone(), self.queue_handle.clone());
        let visibility = self.options.visibility;
        async move {
            let received = queue_handle.topic.pull(max.min(BATCH_MAX), visibility).await?;
            let receive = |native| {
                let incoming = attributes::read(&native);
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
