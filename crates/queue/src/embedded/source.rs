//! [`Taking`]: waits for messages until any process sends one, or until one is due.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock;

use super::operations::{Taken, Work, lease_end};
use super::receipt::Held;
use super::watch::{LOOK, Watch};
use super::writer::Writer;
use crate::Error;
use crate::broker::{Place, Received, Source, Terms};

pub(super) struct Taking {
    pub(super) place: Place,
    pub(super) terms: Terms,
    pub(super) writer: Writer,
    pub(super) clock: Arc<dyn Clock>,
    /// Wakes the source for messages of other processes.
    pub(super) _watch: Arc<Watch>,
}

impl Source for Taking {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<Received>, Error>> {
        async move {
            loop {
                let arrived = self.writer.arrived.clone();
                let mut arrived = std::pin::pin!(arrived.notified());
                // Registered before the query, so that a message sent during the query wakes this
                // task.
                arrived.as_mut().enable();
                let now = self.clock.now();
                let until = lease_end(now, self.terms.visibility);
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

impl Taking {
    /// Waits until an instant, or forever if there is none. Checks the clock regularly, because the
    /// wall clock may be set.
    async fn reached(&self, instant: Option<Timestamp>) {
        let Some(instant) = instant else { return std::future::pending().await };
        loop {
            let left = Duration::from(instant.since(self.clock.now()));
            // At least a millisecond, so that a stopped clock does not cause a busy loop.
            tokio::time::sleep(left.clamp(Duration::from_millis(1), LOOK)).await;
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
    ) -> Result<(Vec<Received>, Option<Timestamp>), Error> {
        let taken_from = self.place.clone();
        let (place, writer, clock) = (self.place.clone(), self.writer.clone(), self.clock.clone());
        let receive = move |(leased, incoming)| {
            let (place, writer, clock) = (place.clone(), writer.clone(), clock.clone());
            let receipt = Box::new(Held { place, leased: Some(leased), writer, clock });
            Received { incoming, receipt }
        };
        let take = move |work: &mut Work<'_>| work.take(&taken_from, max, times);
        let then = |taken: Taken| (taken.rows.into_iter().map(receive).collect(), taken.next_at);
        self.writer.run_then(take, then).await
    }
}
