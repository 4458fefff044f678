//! What must never happen, judged by what went.

use sluicegate_core::Timestamp;

use crate::sim::counter::Counter;

/// All that went, by the clock of the store.
#[derive(Default)]
pub(super) struct Check {
    went: Vec<Timestamp>,
}

impl Check {
    /// B1, whenever something goes.
    pub(super) fn goes(&mut self, at: Timestamp, counter: &Counter) -> Option<String> {
        self.went.push(at);
        counter.exceeded(&self.went).map(|how| format!("B1: {how}"))
    }
}
