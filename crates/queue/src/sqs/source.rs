//! [`SqsPoller`]: receives messages by long polling.

use std::sync::Arc;

use aws_sdk_sqs::types::{Message as Native, MessageSystemAttributeName};
use futures_util::future::{BoxFuture, FutureExt as _};

use super::client::{QueueHandle, SqsClient};
use super::receipt::{SqsRequests, seconds};
use super::{BATCH_MAX, attributes, failure};
use crate::Error;
use crate::broker::{ConsumeOptions, QueueName, ReceivedMessage};
use crate::polling::Poller;
use crate::request_receipt::RequestReceipt;

pub(super) struct SqsPoller {
    pub(super) sqs: Arc<SqsClient>,
    pub(super) queue_handle: Arc<QueueHandle>,
    pub(super) options: ConsumeOptions,
}

impl Poller for SqsPoller {
    const IS_CANCELLABLE: bool = false;

    fn queue_name(&self) -> &QueueName {
        &self.queue_handle.queue.name
    }

    fn poll(&self, max: usize) -> BoxFuture<'static, Result<Vec<ReceivedMessage>, Error>> {
        let (sqs, queue_handle) = (self.sqs.clone(), self.queue_handle.clone());
        let request = sqs
            .client
            .receive_message()
            .queue_url(&queue_handle.queue.url)
            .max_number_of_messages(max.min(BATCH_MAX) as i32)
            .wait_time_seconds(seconds(self.options.wait.min(ConsumeOptions::WAIT_MAX)))
            .visibility_timeout(seconds(self.options.visibility))
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount);
        async move {
            let response = request.send().await;
            let response =
                response.map_err(|error| failure::of_queue(&queue_handle.queue.name, &error))?;
            let receive = |native| receive(&sqs, &queue_handle, native);
            Ok(response.messages.unwrap_or_default().into_iter().map(receive).collect())
        }
        .boxed()
    }
}

fn receive(
    sqs: &Arc<SqsClient>,
    queue_handle: &Arc<QueueHandle>,
    mut native: Native,
) -> ReceivedMessage {
    let incoming = attributes::read(&native);
    let (handle, attributes) = (native.receipt_handle.take(), native.message_attributes.take());
    let (sqs, queue_handle) = (sqs.clone(), queue_handle.clone());
    let requests = SqsRequests { sqs, queue_handle, attributes };
    let receipt = Box::new(RequestReceipt::new(requests, handle.unwrap_or_default()));
    ReceivedMessage { incoming, receipt }
}
