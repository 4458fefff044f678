//! Logs a warning while the store is full, which makes new keys of a rule share one counter.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_service::{ChangeEvent, DecisionEvent, Observer};
use tracing::warn;

/// Minimum time between two warnings, in microseconds.
const EVERY_MICROS: u64 = 60_000_000;

/// Observer that warns of decisions on shared counters, at most once a minute.
pub(crate) struct StoreFullWarning {
    keys_max: usize,
    /// Number of such decisions since the last warning.
    decisions: AtomicU64,
    /// Time of the next warning, in microseconds of the store's clock.
    due: AtomicU64,
}

impl StoreFullWarning {
    /// Creates an observer of a store with at most `keys_max` counters.
    pub(crate) const fn new(keys_max: usize) -> Self {
        Self { keys_max, decisions: AtomicU64::new(0), due: AtomicU64::new(0) }
    }
}

impl Observer for StoreFullWarning {
    fn on_decision(&self, decided: &DecisionEvent<'_, '_, '_>) {
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

    fn on_change(&self, _followed: &ChangeEvent<'_, '_>) {}
}
