//! A line in the log while the store has no room for further counters.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_service::{Decided, Followed, Observer};
use tracing::warn;

/// The least time between two lines.
const EVERY_MICROS: u64 = 60_000_000;

/// Warns of decisions on counters that several keys share, at most once a minute.
pub(crate) struct StoreFull {
    keys_max: usize,
    /// Decisions since the last line.
    decisions: AtomicU64,
    /// When the next line is due, in microseconds of the store's clock.
    due: AtomicU64,
}

impl StoreFull {
    /// Watches a store that keeps at most `keys_max` counters.
    pub(crate) const fn new(keys_max: usize) -> Self {
        Self { keys_max, decisions: AtomicU64::new(0), due: AtomicU64::new(0) }
    }
}

impl Observer for StoreFull {
    fn decided(&self, decided: &Decided<'_, '_, '_>) {
        let Some(rule) = decided.answer.shared() else { return };
        self.decisions.fetch_add(1, Ordering::Relaxed);
        let (now, due) = (decided.answer.at().as_micros(), self.due.load(Ordering::Relaxed));
        let next = now.saturating_add(EVERY_MICROS);
        let exchange = |due| {
            self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if now >= due && exchange(due) {
            let decisions = self.decisions.swap(0, Ordering::Relaxed);
            warn!(
                rule,
                decisions,
                keys_max = self.keys_max,
                "store full: new keys of a rule share one counter, raise store.keys_max"
            );
        }
    }

    fn followed(&self, _followed: &Followed<'_, '_>) {}
}
