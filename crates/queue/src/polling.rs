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

/// The request of a broker that returns waiting messages.
pub(crate) trait Poller: Send {
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

impl<P: Poller> MessageSource for PollingSource<P> {
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
}
