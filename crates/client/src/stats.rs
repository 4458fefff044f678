//! [`Stats`]: counts of the decisions of a limiter.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::{Decision, DecisionSource};

/// Counts since the limiter was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that were admitted.
    pub allowed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Requests that were admitted although the store or the service did not answer.
    pub failed_open: u64,
    /// Requests that were denied because the store or the service did not answer.
    pub failed_closed: u64,
    /// Admissions that could not be settled or released. They end by themselves, after their lease
    /// or hold.
    pub unsettled: u64,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    allowed: AtomicU64,
    denied: AtomicU64,
    failed_open: AtomicU64,
    failed_closed: AtomicU64,
    unsettled: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, decision: &Decision) {
        let failed = decision.source() != DecisionSource::Store;
        let counters = match decision {
            Decision::Allowed(_) => [&self.allowed, &self.failed_open],
            Decision::Denied(_) => [&self.denied, &self.failed_closed],
        };
        counters[0].fetch_add(1, Ordering::Relaxed);
        if failed {
            counters[1].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an admission whose end is not recorded.
    pub(crate) fn count_unsettled_unless(&self, recorded: bool) {
        if !recorded {
            self.unsettled.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            allowed: read(&self.allowed),
            denied: read(&self.denied),
            failed_open: read(&self.failed_open),
            failed_closed: read(&self.failed_closed),
            unsettled: read(&self.unsettled),
        }
    }
}
