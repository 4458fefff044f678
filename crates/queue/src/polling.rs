//! [`PollingSource`]: receives messages from a broker that has to be polled. A poll runs in a
//! separate task: if its caller stops waiting, the next caller gets the messages.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::Error;
use crate::broker::{ConsumeOptions, MessageSource, QueueName, ReceivedMessage};

/// Backoff after a failed poll; it doubles each time.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Time that a source waits for its last poll when it is closed, if polls are long. The messages of a
/// later answer are requeued, which the broker counts.
const CLOSE_WAIT: Duration = Duration::from_millis(300);
/// Time after the end of a short poll within which its answer arrives.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// The request of a broker that returns waiting messages.
pub(crate) trait Poller: Send {
    /// True if the server ends a poll when its caller cancels it. Otherwise it may still hand messages
    /// to the poll, which have to be requeued.
    const IS_CANCELLABLE: bool;

    /// Returns the name of the queue.
    fn queue_name(&self) -> &QueueName;

    /// Waits a limited time for messages, and returns up to `max` of them, or none.
    fn poll(&self, max: usize) -> BoxFuture<'static, Result<Vec<ReceivedMessage>, Error>>;
}

/// A stream of deliveries by polling.
pub(crate) struct PollingSource<P> {
    poller: P,
    options: ConsumeOptions,
    in_flight: Option<JoinHandle<Result<Vec<ReceivedMessage>, Error>>>,
    /// Messages of a poll that the current caller has no room for.
    surplus: Vec<ReceivedMessage>,
}

impl<P: Poller> PollingSource<P> {
    pub(crate) const fn new(poller: P, options: ConsumeOptions) -> Self {
        Self { poller, options, in_flight: None, surplus: Vec::new() }
    }
}

impl<P: Poller + 'static> MessageSource for PollingSource<P> {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>> {
        async move {
            let mut wait = WAIT_MIN;
            loop {
                if !self.surplus.is_empty() {
                    let most = max.min(self.surplus.len());
                    return Ok(self.surplus.drain(..most).collect());
                }
                let most = max.min(usize::from(self.options.prefetch)).max(1);
                let poller = &self.poller;
                let poll = self.in_flight.get_or_insert_with(|| tokio::spawn(poller.poll(most)));
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
                        warn!(queue = %self.poller.queue_name(), %error, "poll failed, retrying");
                        tokio::time::sleep(wait).await;
                        wait = (wait * 2).min(WAIT_MAX);
                    }
                    Err(_) => return Err(Error::stopping()),
                }
            }
        }
        .boxed()
    }

    fn close(mut self: Box<Self>) -> BoxFuture<'static, Vec<ReceivedMessage>> {
        async move {
            let mut left = std::mem::take(&mut self.surplus);
            let is_short = self.options.wait < ConsumeOptions::WAIT_MAX;
            let wait = match is_short {
                true => Duration::from(self.options.wait) + ANSWER_WAIT,
                false => CLOSE_WAIT,
            };
            if let Some(mut poll) = self.in_flight.take() {
                match tokio::time::timeout(wait, &mut poll).await {
                    Ok(Ok(received)) => left.extend(received.into_iter().flatten()),
                    Err(_) if P::IS_CANCELLABLE => poll.abort(),
                    _ => {}
                }
            }
            left
        }
        .boxed()
    }
}
