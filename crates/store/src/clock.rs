//! [`MonotonicClock`]: the only code of this crate that reads a clock.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use sluicegate_core::time::{Clock, Span, Timestamp};

/// A clock that takes the wall time once, at its creation, and is monotonic from then on: setting
/// the system's clock does not make it jump.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
    origin_at: Timestamp,
}

impl MonotonicClock {
    /// Returns a clock that starts at the wall time.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let origin_at = Timestamp::ZERO + Span::from(since_epoch.unwrap_or_default());
        Self { origin: Instant::now(), origin_at }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        self.origin_at + Span::from(Instant::now().duration_since(self.origin))
    }
}

/// The clock of a service: the machine's, or one that a test advances. Clones share it.
#[derive(Clone)]
pub struct SharedClock(Arc<dyn Clock>);

impl SharedClock {
    /// Shares a clock.
    pub fn new(clock: impl Clock + 'static) -> Self {
        Self(Arc::new(clock))
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl fmt::Debug for SharedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedClock({})", self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_at_the_wall_time_and_does_not_go_back() {
        let clock = MonotonicClock::new();
        let first = clock.now();
        assert!(first > Timestamp::from_secs(1_700_000_000), "{first}");
        assert!(clock.now() >= first);
    }
}
