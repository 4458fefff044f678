//! The slots of one counter of concurrent work: who held how many, from when until when.

use std::collections::BTreeMap;

use sluicegate_core::checker::{Bound, Checker, Event, Finding, Malformed, Scope};
use sluicegate_core::{Id, Limit, Span, Timestamp};

use super::counter::DISORDER_MAX;

/// With fewer leases than these, a counter is judged at the end.
const JUDGED_AT_MIN: usize = 4_096;

/// One counter of slots.
pub(super) struct Slots {
    /// By number.
    leases: BTreeMap<u64, Lease>,
    /// The largest that it had: leases that stand outlive a limit that is lowered.
    limit: Limit,
    pub(super) count: u64,
    judged_at: usize,
    worst: Option<Finding>,
    first: Option<Finding>,
}

struct Lease {
    start: Timestamp,
    slots: u64,
    length: Span,
    /// When it ends, or ended.
    until: Timestamp,
    ended: bool,
}

/// What was found about the slots of one counter.
pub(super) struct Verdict {
    pub(super) scope: Scope,
    pub(super) worst: Finding,
    pub(super) first: Option<Finding>,
}

impl Slots {
    pub(super) fn new(limit: Limit) -> Self {
        Self { leases: BTreeMap::new(), limit, count: 0, judged_at: 0, worst: None, first: None }
    }

    /// Takes slots for so long; returns the number of the lease.
    pub(super) fn start(&mut self, limit: &Limit, at: Timestamp, slots: u64, length: Span) -> u64 {
        if limit.amount() > self.limit.amount() {
            self.limit = limit.clone();
        }
        let number = self.count;
        self.count += 1;
        let until = at + length;
        self.leases.insert(number, Lease { start: at, slots, length, until, ended: false });
        number
    }

    /// A lease lasts as long again.
    pub(super) fn renew(&mut self, number: u64, at: Timestamp) {
        if let Some(lease) = self.leases.get_mut(&number).filter(|lease| !lease.ended) {
            lease.until = lease.until.max(at + lease.length);
        }
    }

    /// A lease ends, unless it has.
    pub(super) fn end(&mut self, number: u64, at: Timestamp) {
        if let Some(lease) = self.leases.get_mut(&number) {
            lease.end(at);
        }
    }

    /// Every lease that began before is forgotten.
    pub(super) fn reset(&mut self, at: Timestamp) {
        for lease in self.leases.values_mut().filter(|lease| lease.start < at) {
            lease.end(at);
        }
    }

    /// Whether it has grown enough to be judged.
    pub(super) fn is_due(&self) -> bool {
        self.leases.len() >= self.judged_at.max(JUDGED_AT_MIN)
    }

    /// Judges what there is, and forgets leases that ended before anything that may still come.
    pub(super) fn judge(
        &mut self,
        key: &str,
        now: Timestamp,
        bound: Bound,
    ) -> Result<(), Malformed> {
        let mut checker = Checker::new();
        checker.scope(key, self.scope(bound))?;
        for (&number, lease) in &self.leases {
            let (at, slots, until) = (lease.start, lease.slots, Some(lease.until));
            let id = Id::from_bits(u128::from(number));
            checker.record(key, Event::Start { at, id, slots, until })?;
        }
        for verdict in checker.check()?.verdicts {
            self.worst = match (self.worst, verdict.worst) {
                (Some(known), Some(new)) if new.sum <= known.sum => Some(known),
                (known, new) => new.or(known),
            };
            self.first = self.first.or(verdict.first);
        }
        let kept_from = now - DISORDER_MAX;
        self.leases.retain(|_, lease| lease.until > kept_from);
        self.judged_at = 2 * self.leases.len();
        Ok(())
    }

    pub(super) fn verdict(&self, bound: Bound) -> Option<Verdict> {
        Some(Verdict { scope: self.scope(bound), worst: self.worst?, first: self.first })
    }

    fn scope(&self, bound: Bound) -> Scope {
        Scope::new(self.limit.clone()).bound(bound)
    }
}

impl Lease {
    fn end(&mut self, at: Timestamp) {
        if !self.ended {
            // A lease that had expired by then has been free since.
            self.until = self.until.min(at).max(self.start);
            self.ended = true;
        }
    }
}
