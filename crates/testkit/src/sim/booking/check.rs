//! [`Check`]: the invariants of the booking protocol, checked by the times at which work started.

use sluicegate_core::Timestamp;

use crate::sim::counter::Counter;

/// Start times of all work, by the clock of the store.
#[derive(Default)]
pub(super) struct Check {
    went: Vec<Timestamp>,
}

impl Check {
    /// Checks B1 at each start of work.
    pub(super) fn goes(&mut self, at: Timestamp, counter: &Counter) -> Option<String> {
        self.went.push(at);
        counter.exceeded(&self.went).map(|how| format!("B1: {how}"))
    }
}
