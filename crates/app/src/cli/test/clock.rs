//! Virtual time: an hour of traffic takes no time at all.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock;

/// A clock that stands still until it is set.
#[derive(Debug)]
pub(super) struct VirtualClock(AtomicU64);

impl VirtualClock {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.as_micros()))
    }

    /// Shows `now` from now on; a clock does not go back.
    pub(super) fn set(&self, now: Timestamp) {
        self.0.fetch_max(now.as_micros(), Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}
