//! The leases of one concurrency limit: the number of slots each one held, and from when to when.

use std::collections::BTreeMap;

use sluicegate_checker::{Bound, CheckedScope, Checker, Event, Finding, LogError, Peaks};
use sluicegate_core::{Id, Limit, Span, Timestamp};

use super::counter::DISORDER_MAX;

/// A counter with fewer leases than this is checked only at the end.
const CHECK_AT_MIN: usize = 4_096;

/// The leases of one concurrency counter.
pub(super) struct ConcurrencyCounter {
    /// Leases by number.
    leases: BTreeMap<u64, Lease>,
    /// Largest limit so far: existing leases outlive a reduction of the limit.
    limit: Limit,
    /// Number of requests admitted on it. A lease that was taken again for the same request does not
    /// count.
    pub(super) requests: u64,
    /// Number of the next lease.
    next: u64,
    check_at: usize,
    found: Vec<SlotVerdict>,
}

struct Lease {
    start: Timestamp,
    slots: u64,
    length: Span,
    /// Time at which it expires or was released.
    until: Timestamp,
    ended: bool,
    /// True if a node granted it on its own.
    by_node: bool,
}

/// Result of the check of one concurrency counter.
pub(super) struct SlotVerdict {
    pub(super) scope: CheckedScope,
    pub(super) peaks: Peaks,
    pub(super) first: Option<Finding>,
}

impl ConcurrencyCounter {
    pub(super) fn new(limit: Limit) -> Self {
        Self {
            leases: BTreeMap::new(),
            limit,
            requests: 0,
            next: 0,
            check_at: 0,
            found: Vec::new(),
        }
    }

    /// Records a lease and returns its number.
    pub(super) fn start(
        &mut self,
        limit: &Limit,
        at: Timestamp,
        slots: u64,
        length: Span,
        by_node: bool,
    ) -> u64 {
        if limit.amount() > self.limit.amount() {
            self.limit = limit.clone();
        }
        let number = self.next;
        self.next += 1;
        let until = at + length;
        self.leases
            .insert(number, Lease { start: at, slots, length, until, ended: false, by_node });
        number
    }

    /// Extends a lease by its length.
    pub(super) fn renew(&mut self, number: u64, at: Timestamp) {
        if let Some(lease) = self.leases.get_mut(&number).filter(|lease| !lease.ended) {
            lease.until = lease.until.max(at + lease.length);
        }
    }

    /// Ends a lease, unless it has already ended.
    pub(super) fn end(&mut self, number: u64, at: Timestamp) {
        if let Some(lease) = self.leases.get_mut(&number) {
            lease.end(at);
        }
    }

    /// Ends every lease that started before `at`.
    pub(super) fn reset(&mut self, at: Timestamp) {
        for lease in self.leases.values_mut().filter(|lease| lease.start < at) {
            lease.end(at);
        }
    }

    /// Returns true if there are enough leases for the next check.
    pub(super) fn is_due(&self) -> bool {
        self.leases.len() >= self.check_at.max(CHECK_AT_MIN)
    }

    /// Checks the leases, and drops those that ended before any line that may still arrive. Leases
    /// granted by the store are checked against `store`; if nodes granted some on their own, all leases
    /// together are checked against `all`.
    pub(super) fn check(
        &mut self,
        key: &str,
        now: Timestamp,
        store: Bound,
        all: Bound,
    ) -> Result<(), LogError> {
        self.check_with(key, store, |lease| !lease.by_node)?;
        if self.leases.values().any(|lease| lease.by_node) {
            self.check_with(key, all, |_| true)?;
        }
        let kept_from = now - DISORDER_MAX;
        self.leases.retain(|_, lease| lease.until > kept_from);
        self.check_at = 2 * self.leases.len();
        Ok(())
    }

    fn check_with(
        &mut self,
        key: &str,
        bound: Bound,
        counts: impl Fn(&Lease) -> bool,
    ) -> Result<(), LogError> {
        let scope = CheckedScope::new(self.limit.clone()).bound(bound);
        let mut checker = Checker::new();
        checker.scope(key, scope.clone())?;
        for (&number, lease) in self.leases.iter().filter(|(_, lease)| counts(lease)) {
            let (at, slots, until) = (lease.start, lease.slots, Some(lease.until));
            let id = Id::from_bits(u128::from(number));
            checker.record(key, Event::Start { at, id, slots, until })?;
        }
        for verdict in checker.check()?.verdicts {
            let (peaks, first) = (verdict.peaks, verdict.first);
            // Results of earlier checks may be for a lower limit.
            match self.found.iter_mut().find(|known| known.scope == scope) {
                Some(known) => {
                    known.peaks.merge(peaks);
                    known.first = known.first.or(first);
                }
                None => self.found.push(SlotVerdict { scope: scope.clone(), peaks, first }),
            }
        }
        Ok(())
    }

    pub(super) fn verdicts(self) -> Vec<SlotVerdict> {
        self.found
    }
}

impl Lease {
    fn end(&mut self, at: Timestamp) {
        if !self.ended {
            // A lease that expired earlier ended at its expiry.
            self.until = self.until.min(at).max(self.start);
            self.ended = true;
        }
    }
}
