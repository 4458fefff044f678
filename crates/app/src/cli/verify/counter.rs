//! The admissions of one counter, and the check that they stay within its limits.
//!
//! A counter is checked each time its number of admissions has doubled. Admissions that no later
//! window can contain are then dropped, so at most about two windows are kept in memory. Buckets
//! keep everything, because a stretch in which a bucket is never full can have any length.
//!
//! | admissions | checked against |
//! |---|---|
//! | all under the same limits | those limits |
//! | before and after a reload or an override that changed the limits | each part against its own limits; all together against the largest limit of each window that all of them have |
//! | with reservations or bookings that were never settled | the limits; if exceeded, again without them, because they may have been given back |
//! | before and after a reset | the limits, separately |
//! | partly refunded | the limits, without the oldest admissions that the refund covers |
//! | some by the store, some by nodes on their own during an outage | those of the store against the limits, all together against `--bound` |
//! | settled with more than was admitted | the limits, without the debt; the peak usage contains it |
//!
//! `store_counts.rs` compares the counts that the store reported with the log.

use sluicegate_checker::{CheckedScope, Checker, Finding, Interval, LogError, Peaks, ScopeVerdict};
use sluicegate_core::{Limit, Span, Timestamp};

use super::logs::LogPosition;
use super::store_counts::{StoreCounts, UnexplainedCount, UnloggedCharges};

/// Maximum disorder of log lines: a node may be delayed between a decision and writing its line.
pub(super) const DISORDER_MAX: Span = Span::from_secs(60);
/// A counter with fewer admissions than this is checked only at the end.
const CHECK_AT_MIN: usize = 4_096;

/// Admissions, resets and refunds of one counter.
#[derive(Default)]
pub(super) struct Counter {
    admits: Vec<Admit>,
    /// Number of requests admitted on it. A booking that was moved counts once.
    pub(super) requests: u64,
    /// Number of the next admission: of all so far, including dropped ones and moved bookings.
    next: u64,
    /// Indices of the limit sets that it was charged under.
    limit_sets: Vec<usize>,
    /// Number of admissions at which it is checked next.
    check_at: usize,
    /// Admissions before this instant arrive too late to be checked.
    closed: Timestamp,
    /// Resets: time, and number of the next admission.
    resets: Vec<(Timestamp, u64)>,
    /// Refunds that do not name an admission: time and amount.
    refunds: Vec<(Timestamp, u64)>,
    pub(super) found: Vec<LimitResult>,
    /// Counts that the store reported.
    pub(super) store: StoreCounts,
}

/// The bounds to prove for one limit set.
pub(super) struct LimitBounds {
    /// Bounds for admissions by the store.
    pub(super) store: Vec<CheckedScope>,
    /// Bounds for all admissions, used if nodes decided some without the store.
    pub(super) all: Vec<CheckedScope>,
}

/// One admission on a counter.
#[derive(Clone, Copy)]
pub(super) struct Admit {
    /// Time of the decision.
    pub(super) at: Timestamp,
    /// Time at which the admitted work may start.
    pub(super) start: Timestamp,
    pub(super) amount: u64,
    /// Part of the amount that had to fit into the limit.
    pub(super) need: u64,
    /// True if a node admitted it without the store.
    pub(super) by_node: bool,
    pub(super) position: LogPosition,
    /// Index of the limit set that it was admitted under.
    pub(super) limit_set: usize,
    /// True if it can't be given back any more.
    pub(super) firm: bool,
    /// True for a debt: usage that was not admitted, but that the peak usage contains.
    pub(super) debt: bool,
    /// Sequence number among all admissions of the counter.
    pub(super) number: u64,
}

/// Result of the check of one limit.
pub(super) struct LimitResult {
    pub(super) scope: CheckedScope,
    pub(super) peaks: Peaks,
    /// First window that exceeds the limit, and the log line that exceeded it.
    pub(super) exceeded: Option<(Finding, Option<LogPosition>)>,
    /// First window that exceeds the limit unless a reservation was given back.
    pub(super) unsettled: Option<Finding>,
}

/// Error: the admission arrived too late to be checked.
pub(super) struct TooLate;

impl Counter {
    /// Records an admission and returns its sequence number.
    pub(super) fn record(&mut self, admit: Admit) -> Result<u64, TooLate> {
        if admit.start < self.closed {
            return Err(TooLate);
        }
        if !self.limit_sets.contains(&admit.limit_set) {
            self.limit_sets.push(admit.limit_set);
        }
        let number = self.next;
        self.admits.push(Admit { number, ..admit });
        self.next += 1;
        Ok(number)
    }

    /// Reduces an admission to at most the amount that was actually used. Nothing more of it can be
    /// given back later.
    ///
    /// Usage beyond the admitted amount is a debt ([`Self::owe`]): it delays later work.
    pub(super) fn settle(&mut self, number: u64, at_most: u64) {
        // An admission that no window can contain any more was dropped.
        if let Ok(position) = self.admits.binary_search_by_key(&number, |admit| admit.number) {
            let admit = &mut self.admits[position];
            admit.amount = admit.amount.min(at_most);
            admit.firm = true;
        }
    }

    /// Records a debt: usage beyond the amount that was admitted under a limit set.
    pub(super) fn owe(
        &mut self,
        at: Timestamp,
        amount: u64,
        position: LogPosition,
        limit_set: usize,
    ) {
        let debt = Admit {
            at,
            start: at,
            amount,
            need: amount,
            by_node: false,
            position,
            limit_set,
            firm: true,
            debt: true,
            number: 0,
        };
        // One that arrives too late to be checked makes only the peak usage too low.
        let _ = self.record(debt);
    }

    /// Records a reset of the counter.
    pub(super) fn reset(&mut self, at: Timestamp) {
        self.store.refund(at, u64::MAX);
        self.resets.push((at, self.next));
    }

    /// Records a refund of admissions that counted at `at`.
    pub(super) fn refund(&mut self, at: Timestamp, amount: u64) {
        self.store.refund(at, amount);
        self.refunds.push((at, amount));
    }

    /// Returns the admissions reduced by the refunds until `until`. Later refunds are left out while
    /// lines for the same instants may still arrive.
    fn without_refunds(&self, until: Timestamp, limit_bounds: &[LimitBounds]) -> Vec<Admit> {
        let mut admits = self.admits.clone();
        let mut refunds: Vec<_> = self.refunds.iter().filter(|(at, _)| *at <= until).collect();
        refunds.sort_unstable();
        for &&(at, mut amount) in &refunds {
            let epoch = self.resets.iter().filter(|(reset, _)| *reset <= at).count();
            let limits =
                self.limit_sets.iter().flat_map(|&limit_set| &limit_bounds[limit_set].store);
            let limits = limits.map(CheckedScope::limit);
            let order = limits.map(|limit| RefundScope::at(limit, at)).reduce(RefundScope::longer);
            let Some(RefundScope { since, newest_first }) = order else { continue };
            let counts =
                |admit: &&mut Admit| since < admit.start && admit.start <= at && !admit.debt;
            let mut counted: Vec<_> = admits.iter_mut().filter(counts).collect();
            counted.retain(|admit| self.epoch(admit) == epoch);
            counted.sort_by_key(|admit| admit.start);
            if newest_first {
                counted.reverse();
            }
            for admit in counted {
                let back = amount.min(admit.amount);
                admit.amount -= back;
                amount -= back;
            }
        }
        admits
    }

    /// Returns the number of resets before an admission.
    fn epoch(&self, admit: &Admit) -> usize {
        self.resets.iter().filter(|&&reset| reset <= (admit.at, admit.number)).count()
    }

    /// Returns true if there are enough admissions for the next check.
    pub(super) fn is_due(&self) -> bool {
        self.admits.len() >= self.check_at.max(CHECK_AT_MIN)
    }

    /// Checks the admissions, and drops those that no later window can contain. `now` is the latest
    /// decision in all logs, `proofs` are the bounds by limit set.
    ///
    /// Unless this is the `end`, a result that depends on a pending settlement is postponed.
    pub(super) fn check(
        &mut self,
        key: &str,
        now: Timestamp,
        limit_bounds: &[LimitBounds],
        end: bool,
    ) -> Result<(), LogError> {
        let mut found = Vec::new();
        let used = self.without_refunds(Timestamp::MAX, limit_bounds);
        let by_node = used.iter().any(|admit| admit.by_node);
        for epoch in 0..=self.resets.len() {
            let admits = used.iter().filter(|admit| self.epoch(admit) == epoch);
            let admits: Vec<_> = admits.copied().collect();
            let of_store = admits.iter().filter(|admit| !admit.by_node);
            let of_store: Vec<_> = of_store.copied().collect();
            self.check_by_limit_set(
                key,
                &of_store,
                |limit_set| &limit_bounds[limit_set].store,
                &mut found,
            )?;
            if by_node {
                self.check_by_limit_set(
                    key,
                    &admits,
                    |limit_set| &limit_bounds[limit_set].all,
                    &mut found,
                )?;
            }
        }
        self.check_at = 2 * self.admits.len();
        if !end && found.iter().any(|found| found.unsettled.is_some()) {
            return Ok(());
        }
        for new in found {
            add(&mut self.found, new);
        }
        let scopes = self.limit_sets.iter().flat_map(|&limit_set| &limit_bounds[limit_set].store);
        if let Some(longest) = reach(scopes) {
            self.closed = now - DISORDER_MAX;
            self.admits = self.without_refunds(self.closed, limit_bounds);
            self.refunds.retain(|(at, _)| *at > self.closed);
            let kept_from = self.closed - longest;
            self.admits.retain(|admit| admit.start > kept_from);
            self.check_at = 2 * self.admits.len();
        }
        Ok(())
    }

    /// Checks admissions against the limit set of each, and all of them against the largest limit of each
    /// window. A window that one of the limit sets does not have bounds nothing admitted under that set.
    fn check_by_limit_set<'s>(
        &self,
        key: &str,
        admits: &[Admit],
        scopes: impl Fn(usize) -> &'s Vec<CheckedScope>,
        found: &mut Vec<LimitResult>,
    ) -> Result<(), LogError> {
        for &limit_set in &self.limit_sets {
            let admits = admits.iter().filter(|admit| admit.limit_set == limit_set);
            let admits: Vec<_> = admits.copied().collect();
            check(key, scopes(limit_set), &admits, found)?;
        }
        if self.limit_sets.len() > 1 {
            let all = self.limit_sets.iter().flat_map(|&limit_set| scopes(limit_set));
            let mut shared = largest(all);
            shared.retain(|scope| {
                let is_in =
                    |&limit_set: &usize| scopes(limit_set).iter().any(|own| alike(own, scope));
                self.limit_sets.iter().all(is_in)
            });
            if !shared.is_empty() {
                check(key, &shared, admits, found)?;
            }
        }
        Ok(())
    }

    /// Compares the counts reported by the store until `until` with the logged charges.
    pub(super) fn compare(
        &mut self,
        begin: Timestamp,
        until: Timestamp,
        given_back: bool,
        (key, unlogged): (&str, &UnloggedCharges),
        limit_bounds: &[LimitBounds],
    ) -> Vec<UnexplainedCount> {
        let limit = |limit_set: usize, number: usize| limit_bounds[limit_set].store[number].limit();
        self.store.compare(begin, until, given_back, (key, unlogged), limit)
    }
}

/// The admissions that a refund can reduce.
struct RefundScope {
    /// Only admissions later than this.
    since: Timestamp,
    /// True for a bucket, which has already drained the oldest admissions.
    newest_first: bool,
}

impl RefundScope {
    fn at(limit: &Limit, at: Timestamp) -> Self {
        let since = match limit {
            Limit::Bucket { .. } => return Self { since: Timestamp::ZERO, newest_first: true },
            Limit::Calendar { calendar, .. } => match calendar.boundaries(at).period(at) {
                Some((from, _)) => from - Span::from_micros(1),
                None => at,
            },
            limit => at - limit.window(),
        };
        Self { since, newest_first: false }
    }

    fn longer(self, other: Self) -> Self {
        let since = self.since.min(other.since);
        Self { since, newest_first: self.newest_first || other.newest_first }
    }
}

/// Returns the length of the longest window, or `None` if a bucket makes it unbounded.
fn reach<'s>(scopes: impl Iterator<Item = &'s CheckedScope>) -> Option<Span> {
    scopes.map(CheckedScope::limit).try_fold(Span::ZERO, |longest, limit| match limit {
        Limit::Bucket { .. } => None,
        limit => Some(longest.max(limit.window())),
    })
}

/// Returns true if two limits differ only in their amount.
fn alike(one: &CheckedScope, other: &CheckedScope) -> bool {
    match (one.limit(), other.limit()) {
        (Limit::Exact(a), Limit::Exact(b)) | (Limit::Windowed(a), Limit::Windowed(b)) => {
            a.window == b.window
        }
        (Limit::Calendar { calendar: a, .. }, Limit::Calendar { calendar: b, .. }) => a == b,
        _ => false,
    }
}

/// Returns the largest of each set of limits that differ only in their amount.
fn largest<'s>(scopes: impl Iterator<Item = &'s CheckedScope>) -> Vec<CheckedScope> {
    let mut found: Vec<&CheckedScope> = Vec::new();
    for scope in scopes {
        match found.iter_mut().find(|other| alike(other, scope)) {
            Some(other) if other.limit().amount() < scope.limit().amount() => *other = scope,
            Some(_) => {}
            // A bucket has a rate and a burst, so two buckets may not be comparable.
            None if matches!(scope.limit(), Limit::Bucket { .. }) => {}
            None => found.push(scope),
        }
    }
    found.into_iter().cloned().collect()
}

fn check(
    key: &str,
    scopes: &[CheckedScope],
    admits: &[Admit],
    found: &mut Vec<LimitResult>,
) -> Result<(), LogError> {
    let with_debts = match admits.iter().any(|admit| admit.debt) {
        true => Some(verdicts(key, scopes, admits.iter())?),
        false => None,
    };
    let admits: Vec<_> = admits.iter().filter(|admit| !admit.debt).copied().collect();
    let verdicts = verdicts(key, scopes, admits.iter())?;
    let uncertain = admits.iter().any(|admit| !admit.firm);
    let exceeded = verdicts.iter().any(|verdict| verdict.first.is_some());
    let certain = match uncertain && exceeded {
        true => Some(self::verdicts(key, scopes, admits.iter().filter(|admit| admit.firm))?),
        false => None,
    };
    for (index, verdict) in verdicts.into_iter().enumerate() {
        let certain = certain.as_ref().map_or(verdict.first, |certain| certain[index].first);
        let exceeded = certain.map(|finding| (finding, position(finding.interval, &admits)));
        let unsettled = verdict.first.filter(|_| exceeded.is_none());
        let peaks = with_debts.as_ref().map(|with_debts| with_debts[index].peaks.clone());
        let (scope, peaks) = (verdict.scope, peaks.unwrap_or(verdict.peaks));
        add(found, LimitResult { scope, peaks, exceeded, unsettled });
    }
    Ok(())
}

fn add(found: &mut Vec<LimitResult>, new: LimitResult) {
    match found.iter_mut().find(|known| known.scope == new.scope) {
        Some(known) => known.add(new),
        None => found.push(new),
    }
}

fn verdicts<'a>(
    key: &str,
    scopes: &[CheckedScope],
    admits: impl Iterator<Item = &'a Admit>,
) -> Result<Vec<ScopeVerdict>, LogError> {
    let mut checker = Checker::new();
    for scope in scopes {
        checker.scope(key, scope.clone())?;
    }
    for admit in admits {
        checker.admit_beyond(key, admit.start, admit.amount, admit.need, admit.at)?;
    }
    Ok(checker.check()?.verdicts)
}

impl LimitResult {
    /// Merges the result of a later check of the same limit.
    fn add(&mut self, later: Self) {
        self.peaks.merge(later.peaks);
        self.exceeded = self.exceeded.or(later.exceeded);
        self.unsettled = self.unsettled.or(later.unsettled);
    }
}

/// Returns the log line of the last admission in an interval.
fn position(interval: Interval, admits: &[Admit]) -> Option<LogPosition> {
    let inside = |admit: &&Admit| match interval {
        Interval::Window { until, .. } | Interval::Stretch { until, .. } => admit.start <= until,
        Interval::Period { until, .. } => admit.start < until,
        Interval::Instant(at) => admit.start <= at,
    };
    let last = admits.iter().filter(inside).max_by_key(|admit| admit.start);
    last.map(|admit| admit.position)
}
