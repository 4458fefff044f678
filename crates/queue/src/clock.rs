//! The only place that reads a clock.

use std::time::SystemTime;

use sluicegate_core::Timestamp;
use sluicegate_core::time::{Clock, Span};

/// The time of day.
///
/// Not a monotonic clock: instants of messages are read by other processes and by other machines,
/// and after a restart, so all of them have to go by the same hands.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Timestamp::ZERO + Span::from(since_epoch.unwrap_or_default())
    }
}
