//! The clock of the simulated servers: the system time.

use std::time::{Duration, Instant, SystemTime};

/// Clock that measures the time since the start of the server.
#[derive(Debug)]
pub(crate) struct Clock {
    began: Instant,
    began_at: Duration,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), began_at: since_epoch() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the start of the server as Unix time.
    pub(crate) const fn began_at(&self) -> Duration {
        self.began_at
    }
}

/// Returns the current Unix time.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
