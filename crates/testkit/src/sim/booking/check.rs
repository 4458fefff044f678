//! [`Check`]: the invariants of the booking protocol, checked by the times at which work started.

use sluicegate_core::{Span, Timestamp};

use crate::sim::counter::Counter;

/// Start times of all work, by the clock of the store.
#[derive(Default)]
pub(super) struct Check {
    went: Vec<Timestamp>,
    /// Closures of the gate: when the store was told, and until when.
    closed: Vec<(Timestamp, Timestamp)>,
}

impl Check {
    /// Checks B1 at each start of work.
    pub(super) fn goes(&mut self, at: Timestamp, counter: &Counter) -> Option<String> {
        self.went.push(at);
        counter.exceeded(&self.went).map(|how| format!("B1: {how}"))
    }

    pub(super) fn closes(&mut self, at: Timestamp, until: Timestamp) {
        self.closed.push((at, until));
    }

    /// Checks B5: work that was claimed at `decided` starts at `at`, and no more than `late` after
    /// a gate has closed.
    pub(super) fn is_open(&self, decided: Timestamp, at: Timestamp, late: Span) -> Option<String> {
        self.closed.iter().find_map(|&(closed, until)| {
            let inside = closed <= at && at < until;
            let known = closed <= decided;
            (inside && (known || at > closed + late)).then(|| {
                format!("B5: claimed at {decided}, starts at {at}, closed from {closed} to {until}")
            })
        })
    }
}
