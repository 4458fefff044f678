//! [`QueueStates`]: the queues that can't be used now, such as a queue that was deleted. Each is
//! logged once, and tried again after a backoff.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::{Backoff, Error};
use sluicegate_service::metrics::{IntGaugeVec, Registry};
use tracing::{info, warn};

/// Backoff between attempts to use a queue.
const BACKOFF: Backoff = Backoff { from: Span::from_millis(500), to: Span::from_secs(5) };

/// The queues that failed and have not worked since. Clones share the same state.
#[derive(Clone)]
pub(crate) struct QueueStates {
    failing: Arc<Mutex<BTreeMap<String, QueueFailure>>>,
    gauge: IntGaugeVec,
}

/// A queue that failed.
struct QueueFailure {
    error: Error,
    failures: u32,
    retry_at: Timestamp,
}

impl QueueStates {
    pub(crate) fn new(registry: &Registry) -> Self {
        let gauge = registry.gauges(
            "sluicegate_queue_paused",
            "1 while a queue can't be used and the messages for it wait.",
            &["queue"],
        );
        Self { failing: Arc::default(), gauge }
    }

    /// Records a failure. Returns the time after which the queue may be tried again.
    pub(crate) fn failed(&self, queue: &str, error: &Error, now: Timestamp) -> Span {
        let mut failing = self.lock();
        let is_new = failing.get(queue).is_none_or(|known| !same_kind(&known.error, error));
        if is_new {
            warn!(queue, %error, "queue unavailable: its messages wait");
            self.gauge.with_label_values(&[queue]).set(1);
        }
        let failure = failing.entry(queue.to_owned()).or_insert_with(|| QueueFailure {
            error: error.clone(),
            failures: 0,
            retry_at: now,
        });
        failure.error = error.clone();
        // Many messages may fail at the same time; that is one failure of the queue.
        if failure.retry_at <= now {
            failure.failures += 1;
            failure.retry_at = now + BACKOFF.most(failure.failures);
        }
        failure.retry_at.since(now)
    }

    /// Records that the queue works.
    pub(crate) fn works(&self, queue: &str) {
        let mut failing = self.lock();
        if failing.remove(queue).is_some() {
            info!(queue, "queue works again");
            self.gauge.with_label_values(&[queue]).set(0);
        }
    }

    /// Returns the time for which a queue should not be tried, if it failed a moment ago.
    pub(crate) fn wait(&self, queue: &str, now: Timestamp) -> Option<Span> {
        let failing = self.lock();
        let left = failing.get(queue)?.retry_at.since(now);
        (left > Span::ZERO).then_some(left)
    }

    /// Returns true if any queue fails.
    pub(crate) fn any(&self) -> bool {
        !self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, QueueFailure>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if two errors differ only in their details.
fn same_kind(one: &Error, other: &Error) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_fails_for_many_messages_at_once_is_one_failure() {
        let states = QueueStates::new(&Registry::default());
        let missing = Error::NoQueue { queue: "q".to_owned() };
        let at = |millis: u64| Timestamp::from_millis(1_000_000 + millis);
        let waits = [0, 100, 499, 500, 1_500].map(|ms| states.failed("q", &missing, at(ms)));
        assert_eq!(waits.map(|wait| wait.as_micros() / 1_000), [500, 400, 1, 1_000, 2_000]);
        assert_eq!(states.wait("q", at(3_499)), Some(Span::from_millis(1)));
        assert_eq!(states.wait("q", at(3_500)), None, "the next message tries it");
        assert!(states.any());
        states.works("q");
        assert!(!states.any() && states.wait("q", at(0)).is_none());
    }
}
