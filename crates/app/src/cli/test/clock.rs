//! A virtual clock, so that a test of an hour of traffic runs at once.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock;

/// A clock that changes only when it is set.
#[derive(Debug)]
pub(super) struct VirtualClock(AtomicU64);

impl VirtualClock {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.as_micros()))
    }

    /// Moves the clock forward to `now`; never moves it back.
    pub(super) fn set(&self, now: Timestamp) {
        self.0.fetch_max(now.as_micros(), Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}
