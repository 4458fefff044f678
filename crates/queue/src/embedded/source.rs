//! [`EmbeddedSource`]: waits for messages until any process sends one, or until one is due.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock;

use super::receipt::EmbeddedReceipt;
use super::transaction::{LeasedBatch, Transaction, lease_end};
use super::watcher::{FileWatcher, POLL_INTERVAL};
use super::writer::Writer;
use crate::Error;
use crate::broker::{ConsumeOptions, MessageSource, QueueName, ReceivedMessage};

pub(super) struct EmbeddedSource {
    pub(super) queue_name: QueueName,
    pub(super) options: ConsumeOptions,
    pub(super) writer: Writer,
    pub(super) clock: Arc<dyn Clock>,
    /// Wakes the source for messages of other processes.
    pub(super) _watch: Arc<FileWatcher>,
}

impl MessageSource for EmbeddedSource {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<ReceivedMessage>, Error>> {
        async move {
            loop {
                let arrived = self.writer.arrived.clone();
                let mut arrived = std::pin::pin!(arrived.notified());
                // Registered before the query, so that a message sent during the query wakes this
                // task.
                arrived.as_mut().enable();
                let now = self.clock.now();
                let until = lease_end(now, self.options.visibility);
                let (received, next_at) = self.take(max, (now, until)).await?;
                if !received.is_empty() {
                    return Ok(received);
                }
                tokio::select! {
                    () = arrived => {}
                    () = self.reached(next_at) => {}
                }
            }
        }
        .boxed()
    }
}

impl EmbeddedSource {
    /// Waits until an instant, or forever if there is none. Checks the clock regularly, because the
    /// wall clock may be set.
    async fn reached(&self, instant: Option<Timestamp>) {
        let Some(instant) = instant else { return std::future::pending().await };
        loop {
            let left = Duration::from(instant.since(self.clock.now()));
            // At least a millisecond, so that a stopped clock does not cause a busy loop.
            tokio::time::sleep(left.clamp(Duration::from_millis(1), POLL_INTERVAL)).await;
            if self.clock.now() >= instant {
                return;
            }
        }
    }

    /// Leases the messages that are ready. The receipts are created as soon as the leases are on
    /// the disk: if the caller has stopped waiting, the dropped receipts requeue the messages.
    async fn take(
        &self,
        max: usize,
        times: (Timestamp, Timestamp),
    ) -> Result<(Vec<ReceivedMessage>, Option<Timestamp>), Error> {
        let taken_from = self.queue_name.clone();
        let (queue_name, writer, clock) =
            (self.queue_name.clone(), self.writer.clone(), self.clock.clone());
        let receive = move |(leased, incoming)| {
            let (queue_name, writer, clock) = (queue_name.clone(), writer.clone(), clock.clone());
            let receipt =
                Box::new(EmbeddedReceipt { queue_name, leased: Some(leased), writer, clock });
            ReceivedMessage { incoming, receipt }
        };
        let take =
            move |transaction: &mut Transaction<'_>| transaction.take(&taken_from, max, times);
        let then =
            |taken: LeasedBatch| (taken.rows.into_iter().map(receive).collect(), taken.next_at);
        self.writer.run_then(take, then).await
    }
}
