//! [`SqsSource`]: receives messages by long polling. A poll runs in a task of its own, so that the
//! messages of a poll whose caller stopped waiting are there for the next caller.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{Message as Native, MessageSystemAttributeName};
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;
use tokio::task::JoinHandle;
use tracing::warn;

use super::client::{QueueHandle, SqsClient};
use super::receipt::{SqsReceipt, seconds};
use super::{attributes, failure};
use crate::Error;
use crate::broker::{ConsumeOptions, MessageSource, ReceivedMessage};

/// Maximum number of messages per poll.
const BATCH_MAX: usize = 10;
/// Backoff after a failed poll; it doubles each time.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

pub(super) struct SqsSource {
    sqs: Arc<SqsClient>,
    queue_handle: Arc<QueueHandle>,
    options: ConsumeOptions,
    in_flight: Option<JoinHandle<Result<Vec<ReceivedMessage>, Error>>>,
    /// Messages of a poll beyond the number that the current caller wants.
    surplus: Vec<ReceivedMessage>,
}

impl SqsSource {
    pub(super) const fn new(
        sqs: Arc<SqsClient>,
        queue_handle: Arc<QueueHandle>,
        options: ConsumeOptions,
    ) -> Self {
        Self { sqs, queue_handle, options, in_flight: None, surplus: Vec::new() }
    }

    fn poll(&self, max: usize) -> JoinHandle<Result<Vec<ReceivedMessage>, Error>> {
        let (sqs, queue_handle) = (self.sqs.clone(), self.queue_handle.clone());
        let most = max.min(usize::from(self.options.prefetch.max(1))).clamp(1, BATCH_MAX);
        let request = sqs
            .client
            .receive_message()
            .queue_url(&queue_handle.queue.url)
            .max_number_of_messages(most as i32)
            .wait_time_seconds(seconds(self.options.wait.min(ConsumeOptions::WAIT_MAX)))
            .visibility_timeout(seconds(self.options.visibility))
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount);
        tokio::spawn(async move {
            let response = request.send().await;
            let response =
                response.map_err(|error| failure::of_queue(&queue_handle.queue.name, &error))?;
            let receive = |native| receive(&sqs, &queue_handle, native);
            Ok(response.messages.unwrap_or_default().into_iter().map(receive).collect())
        })
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
    ReceivedMessage {
        incoming,
        receipt: Box::new(SqsReceipt { sqs, queue_handle, handle, attributes }),
    }
}

impl MessageSource for SqsSource {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>> {
        async move {
            let mut wait = WAIT_MIN;
            loop {
                if !self.surplus.is_empty() {
                    let most = max.min(self.surplus.len());
                    return Ok(self.surplus.drain(..most).collect());
                }
                if self.in_flight.is_none() {
                    self.in_flight = Some(self.poll(max));
                }
                let Some(poll) = &mut self.in_flight else { continue };
                let response = poll.await;
                self.in_flight = None;
                match response {
                    Ok(Ok(received)) => {
                        wait = WAIT_MIN;
                        self.surplus = received;
                        if self.surplus.is_empty() && self.options.wait == Span::ZERO {
                            tokio::time::sleep(WAIT_MIN).await;
                        }
                    }
                    Ok(Err(error)) if !error.is_transient() => return Err(error),
                    Ok(Err(error)) => {
                        let queue = &self.queue_handle.queue.name;
                        warn!(%queue, %error, "poll failed, retrying");
                        tokio::time::sleep(wait).await;
                        wait = (wait * 2).min(WAIT_MAX);
                    }
                    Err(_) => {
                        let detail = "the process is stopping".to_owned();
                        return Err(Error::Unavailable { broker: super::NAME, detail });
                    }
                }
            }
        }
        .boxed()
    }
}
