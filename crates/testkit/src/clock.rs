//! [`ManualClock`]: a clock that tests advance by hand. [`Moment`]: a deadline by the system's
//! clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluicegate_core::time::{Clock, Span, Timestamp};

/// A clock that stands still until it is advanced.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Creates a clock that shows `now`.
    pub const fn new(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.as_micros()))
    }

    /// Sets the clock to `now`; it never goes back.
    pub fn set(&self, now: Timestamp) {
        self.0.fetch_max(now.as_micros(), Ordering::SeqCst);
    }

    /// Advances the clock.
    pub fn advance(&self, by: Span) {
        self.0.fetch_add(by.as_micros(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// A point in time by the system's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(Instant);

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
impl Moment {
    pub(crate) fn after(span: Duration) -> Self {
        Self(Instant::now() + span)
    }

    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.0
    }

    /// Returns the time until it.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Returns the time of the runtime, which a test may have paused.
pub(crate) fn runtime_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}
