//! The slots of one counter of concurrent work: who held how many, from when until when.

use std::collections::BTreeMap;

use sluicegate_checker::{Bound, Checker, Event, Finding, Malformed, Scope};
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
    found: Vec<Verdict>,
}

struct Lease {
    start: Timestamp,
    slots: u64,
    length: Span,
    /// When it ends, or ended.
    until: Timestamp,
    ended: bool,
    /// A node gave it on its own.
    alone: bool,
}

/// What was found about the slots of one counter.
pub(super) struct Verdict {
    pub(super) scope: Scope,
    pub(super) worst: Finding,
    pub(super) first: Option<Finding>,
}

impl Slots {
    pub(super) fn new(limit: Limit) -> Self {
        Self { leases: BTreeMap::new(), limit, count: 0, judged_at: 0, found: Vec::new() }
    }

    /// Takes slots for so long; returns the number of the lease.
    pub(super) fn start(
        &mut self,
        limit: &Limit,
        at: Timestamp,
        slots: u64,
        length: Span,
        alone: bool,
    ) -> u64 {
        if limit.amount() > self.limit.amount() {
            self.limit = limit.clone();
        }
        let number = self.count;
        self.count += 1;
        let until = at + length;
        self.leases.insert(number, Lease { start: at, slots, length, until, ended: false, alone });
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

    /// Judges what there is, and forgets leases that ended before anything that may still come:
    /// what the store gave by its bound, and if nodes gave some on their own, all by theirs.
    pub(super) fn judge(
        &mut self,
        key: &str,
        now: Timestamp,
        store: Bound,
        all: Bound,
    ) -> Result<(), Malformed> {
        self.judge_by(key, store, |lease| !lease.alone)?;
        if self.leases.values().any(|lease| lease.alone) {
            self.judge_by(key, all, |_| true)?;
        }
        let kept_from = now - DISORDER_MAX;
        self.leases.retain(|_, lease| lease.until > kept_from);
        self.judged_at = 2 * self.leases.len();
        Ok(())
    }

    fn judge_by(
        &mut self,
        key: &str,
        bound: Bound,
        counts: impl Fn(&Lease) -> bool,
    ) -> Result<(), Malformed> {
        let scope = Scope::new(self.limit.clone()).bound(bound);
        let mut checker = Checker::new();
        checker.scope(key, scope.clone())?;
        for (&number, lease) in self.leases.iter().filter(|(_, lease)| counts(lease)) {
            let (at, slots, until) = (lease.start, lease.slots, Some(lease.until));
            let id = Id::from_bits(u128::from(number));
            checker.record(key, Event::Start { at, id, slots, until })?;
        }
        for verdict in checker.check()?.verdicts {
            let Some(worst) = verdict.worst else { continue };
            let first = verdict.first;
            // The limit may have been raised since.
            match self.found.iter_mut().find(|known| known.scope == scope) {
                Some(known) => {
                    if worst.sum > known.worst.sum {
                        known.worst = worst;
                    }
                    known.first = known.first.or(first);
                }
                None => self.found.push(Verdict { scope: scope.clone(), worst, first }),
            }
        }
        Ok(())
    }

    pub(super) fn verdicts(self) -> Vec<Verdict> {
        self.found
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
