//! [`WallClock`]: the only code of the crate that reads a clock.

use std::time::SystemTime;

use sluicegate_core::Timestamp;
use sluicegate_core::time::{Clock, Span};

/// The time of day.
///
/// Not a monotonic clock: other processes, other machines and later runs read the instants in
/// messages, so all of them have to use the same time base.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Timestamp::ZERO + Span::from(since_epoch.unwrap_or_default())
    }
}
