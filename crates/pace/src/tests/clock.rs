//! The clock of a test: that of its runtime, which stands still until everybody waits.

use sluicegate_core::Timestamp;
use sluicegate_core::time::{Clock, Span};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(super) struct RuntimeClock(Instant);

impl RuntimeClock {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_800_000_000) + Span::from(Instant::now().duration_since(self.0))
    }
}
