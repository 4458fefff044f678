//! The leases of one concurrency limit: the number of slots each one held, and from when to when.
//!
//! Every admission reports how many slots were in use. [`ConcurrencyCounter::compare`] compares that
//! with the leases in the log, to detect missing log lines.

use std::collections::BTreeMap;

use sluicegate_checker::{Bound, CheckedScope, Checker, Event, Finding, LogError, Peaks};
use sluicegate_core::{Id, Limit, Span, Timestamp};

use super::counter::DISORDER_MAX;
use super::logs::LogPosition;
use super::store_counts::{PrefixSums, UnexplainedCount, UnloggedCharges};

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
    reports: Vec<SlotReport>,
    /// Upper bound of the slots that are held since before the log began.
    before: u64,
    /// Time of the last report that the log explained.
    explained_at: Timestamp,
    /// Time from which the log is complete.
    begin: Timestamp,
}

/// The number of slots in use that an admission reported.
pub(super) struct SlotReport {
    pub(super) at: Timestamp,
    pub(super) count: u64,
    /// Part of the count that the admission itself took at this time.
    pub(super) own: u64,
    pub(super) position: LogPosition,
}

struct Lease {
    /// Earliest time at which the store can have granted it.
    earliest: Timestamp,
    start: Timestamp,
    slots: u64,
    length: Span,
    /// Time at which it expires or was released.
    until: Timestamp,
    /// Earliest and latest time at which the store can have ended it.
    ended: (Timestamp, Timestamp),
    is_released: bool,
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
            reports: Vec::new(),
            before: u64::MAX,
            explained_at: Timestamp::ZERO,
            begin: Timestamp::ZERO,
        }
    }

    /// Records a lease and returns its number.
    pub(super) fn start(
        &mut self,
        limit: &Limit,
        (earliest, at): (Timestamp, Timestamp),
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
        let (start, ended, is_released) = (at, (until, until), false);
        let lease = Lease { earliest, start, slots, length, until, ended, is_released, by_node };
        self.leases.insert(number, lease);
        number
    }

    /// Extends a lease by its length.
    pub(super) fn renew(&mut self, number: u64, at: Timestamp) {
        if let Some(lease) = self.leases.get_mut(&number).filter(|lease| !lease.is_released) {
            lease.until = lease.until.max(at + lease.length);
            lease.ended = (lease.until, lease.until);
        }
    }

    /// Ends a lease between two instants, unless it has already ended.
    pub(super) fn end(&mut self, number: u64, times: (Timestamp, Timestamp)) {
        if let Some(lease) = self.leases.get_mut(&number) {
            lease.end(times);
        }
    }

    /// Ends every lease that started before `at`.
    pub(super) fn reset(&mut self, at: Timestamp) {
        for lease in self.leases.values_mut().filter(|lease| lease.start < at) {
            lease.end((at, at));
        }
    }

    /// Records the number of slots in use that an admission reported.
    pub(super) fn report(&mut self, report: SlotReport) {
        self.reports.push(report);
    }

    /// Compares the numbers reported until `until` with the leases in the log, which is complete from
    /// `begin` on.
    ///
    /// Slots that are held since before the log began can only become fewer. After a call without an
    /// answer it is not known which leases were renewed or released, and nothing is compared.
    pub(super) fn compare(
        &mut self,
        begin: Timestamp,
        until: Timestamp,
        unlogged: &UnloggedCharges,
    ) -> Vec<UnexplainedCount> {
        if self.begin < begin {
            (self.begin, self.before) = (begin, u64::MAX);
        }
        let sums = |counts: fn(&Lease) -> bool, at: fn(&Lease) -> Timestamp| {
            let leases = self.leases.values().filter(|lease| counts(lease));
            PrefixSums::new(leases.map(|lease| (at(lease), lease.slots)))
        };
        let (granted, ended) =
            (sums(|_| true, |one| one.earliest), sums(|_| true, |one| one.ended.1));
        let certain = sums(|one| !one.by_node, Lease::counted_by);
        let gone = sums(|one| !one.by_node, |one| one.ended.0);
        self.reports.sort_by_key(|report| report.at);
        let known = self.reports.partition_point(|report| report.at <= until);
        let mut found = Vec::new();
        for SlotReport { at, count, own, position } in self.reports.drain(..known) {
            if at < begin || unlogged.is_unanswered_before(at) {
                continue;
            }
            // A slot that was released at the same instant may still have been counted.
            let most = granted.until(at).saturating_sub(ended.until(at - Span::from_micros(1)));
            let least = certain.until(at - Span::from_micros(1)).saturating_sub(gone.until(at));
            let least = least.saturating_add(own);
            let explained = most.saturating_add(self.before);
            if count > explained {
                let since = self.explained_at;
                found.push(UnexplainedCount { at, since, position, count, explained });
            } else {
                self.explained_at = at;
            }
            self.before = self.before.min(count.saturating_sub(least));
        }
        found
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
    /// Returns the time from which every count contains it: calls of several threads may be counted in
    /// another order than that of their times.
    fn counted_by(&self) -> Timestamp {
        self.start + self.start.since(self.earliest.min(self.start))
    }

    fn end(&mut self, (earliest, at): (Timestamp, Timestamp)) {
        if !self.is_released {
            // A lease that expired earlier ended at its expiry.
            self.until = self.until.min(at).max(self.start);
            let latest = at + at.since(earliest.min(at));
            self.ended = (self.ended.0.min(earliest), self.ended.1.min(latest));
            self.is_released = true;
        }
    }
}
