//! What time it is, for servers of their own: the wall's.

use std::time::{Duration, Instant, SystemTime};

/// The time since the server began.
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

    /// When it began, since 1970.
    pub(crate) const fn began_at(&self) -> Duration {
        self.began_at
    }
}

/// The time since 1970.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
