//! Waiting for messages: for those of this process, for instants, and for other processes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock;

use super::operations::{Taken, Work, lease_end};
use super::receipt::Held;
use super::writer::Writer;
use crate::Error;
use crate::broker::{Place, Received, Source, Terms};

/// How often we look for what other processes have sent: nothing tells us of it.
const LOOK: Duration = Duration::from_millis(50);

pub(super) struct Taking {
    pub(super) place: Place,
    pub(super) terms: Terms,
    pub(super) writer: Writer,
    pub(super) clock: Arc<dyn Clock>,
}

impl Source for Taking {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<Received>, Error>> {
        async move {
            loop {
                let written = self.writer.written.clone();
                let mut sent = std::pin::pin!(written.notified());
                // From here on: what is sent while we look must wake us.
                sent.as_mut().enable();
                let now = self.clock.now();
                let until = lease_end(now, self.terms.visibility);
                let (received, next_at) = self.take(max, (now, until)).await?;
                if !received.is_empty() {
                    return Ok(received);
                }
                let left = next_at.map_or(LOOK, |at| at.since(self.clock.now()).into());
                // At least a millisecond: a clock that stands still must not make us spin.
                let left = left.clamp(Duration::from_millis(1), LOOK);
                let _ = tokio::time::timeout(left, sent).await;
            }
        }
        .boxed()
    }
}

impl Taking {
    /// What is there. Receipts are made as soon as the leases are on the disk: if nobody waits any
    /// more when they arrive, they give themselves back.
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
