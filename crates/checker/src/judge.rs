//! Checks one limit in one pass over the sorted events of a key.
//!
//! A sum only grows at the time of an event, so only windows that end with an event have to be
//! checked.

use std::collections::VecDeque;

use super::lease::Change;
use super::report::{Finding, Interval, Peaks};
use super::{Admit, CheckedScope, LogError};
use sluicegate_core::limit::{Amount, Calendar, Limit, Rate};
use sluicegate_core::time::{Span, Timestamp};

/// Results so far.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) peaks: Peaks,
    /// The first sum above its bound.
    pub(super) first: Option<Finding>,
    /// Number of sums above their bound.
    pub(super) exceeded: u64,
}

impl Findings {
    /// Adds the sum as of `at`.
    fn add(&mut self, at: Timestamp, finding: Finding) {
        self.peaks.add(at, finding);
        self.judge(finding);
    }

    fn judge(&mut self, finding: Finding) {
        if finding.exceeds() {
            self.exceeded += 1;
            self.first.get_or_insert(finding);
        }
    }
}

/// Checks the admissions and the changes of held slots, both oldest first.
pub(super) fn judge(
    key: &str,
    scope: &CheckedScope,
    admits: &[Admit],
    changes: &[Change],
) -> Result<Findings, LogError> {
    match &scope.limit {
        Limit::Exact(rate) | Limit::Windowed(rate) => Ok(rolling(scope, rate, admits)),
        Limit::Bucket { rate, capacity } => Ok(bucket(scope, rate, *capacity, admits)),
        Limit::Calendar { calendar, .. } => periods(key, scope, calendar, admits),
        Limit::Concurrent(_) => Ok(concurrent(scope, changes)),
        Limit::Banned { .. } => Ok(rolling(scope, &Limit::BAN, admits)),
    }
}

/// Returns the admissions of each instant, with their sum.
fn instants(admits: &[Admit]) -> impl Iterator<Item = (Timestamp, u128, &[Admit])> {
    let sum = |now: &[Admit]| now.iter().map(|admit| u128::from(admit.amount)).sum();
    admits.chunk_by(|a, b| a.at == b.at).map(move |now| (now[0].at, sum(now), now))
}

/// Finds the admission of a window that was decided last. The sum of the window may exceed the
/// limit only by its `beyond`.
#[derive(Default)]
struct LatestAdmission {
    /// Candidates by `at`; each was decided later than all that follow it.
    candidates: VecDeque<Admit>,
}

impl LatestAdmission {
    fn enter(&mut self, now: &[Admit]) {
        for admit in now {
            let later =
                |other: &Admit| (other.decided, other.beyond) <= (admit.decided, admit.beyond);
            while self.candidates.back().is_some_and(later) {
                self.candidates.pop_back();
            }
            self.candidates.push_back(*admit);
        }
    }

    fn leave(&mut self, gone: impl Fn(Timestamp) -> bool) {
        while self.candidates.front().is_some_and(|admit| gone(admit.at)) {
            self.candidates.pop_front();
        }
    }

    fn beyond(&self) -> u128 {
        self.candidates.front().map_or(0, |admit| u128::from(admit.beyond))
    }
}

fn rolling(scope: &CheckedScope, rate: &Rate, admits: &[Admit]) -> Findings {
    // Not zero: a scope with a spread as long as its window is refused.
    let length = rate.window.span().as_micros() - scope.spread.as_micros();
    let length = Span::from_micros(length);
    let allowed = scope.allowed();
    let mut findings = Findings::default();
    let mut oldest = admits.iter();
    let (mut sum, mut last) = (0, LatestAdmission::default());
    for (at, amount, now) in instants(admits) {
        sum += amount;
        last.enter(now);
        // Exactly one window later, an admission has left.
        while let Some(admit) = oldest.as_slice().first()
            && at.since(admit.at) >= length
        {
            sum -= u128::from(admit.amount);
            oldest.next();
        }
        last.leave(|entered| at.since(entered) >= length);
        let allowed = allowed + last.beyond();
        let interval = Interval::Window { until: at, length };
        findings.add(at, Finding { interval, sum, allowed });
    }
    findings
}

/// Checks a bucket. Of all intervals that end at an instant, the worst one begins when the bucket
/// was last empty: an earlier begin adds more refill than usage, and a later one leaves out usage.
/// So one interval per instant is enough.
fn bucket(scope: &CheckedScope, rate: &Rate, capacity: Amount, admits: &[Admit]) -> Findings {
    let window = u128::from(rate.window.span().as_micros());
    let refill = u128::from(rate.amount.get());
    // In units of amount × microseconds: below 2^53 × 2^45 + 2^53 × 2^54.
    let full = u128::from(capacity.get()) * window + refill * u128::from(scope.spread.as_micros());
    let mut findings = Findings::default();
    let (mut from, mut sum, mut last) = (Timestamp::ZERO, 0, LatestAdmission::default());
    for (at, amount, now) in instants(admits) {
        let refilled = refill * u128::from(at.since(from).as_micros());
        if sum <= scope.bound.over(refilled, window) {
            (from, sum, last) = (at, 0, LatestAdmission::default());
        }
        sum += amount;
        last.enter(now);
        let refilled = refill * u128::from(at.since(from).as_micros());
        let interval = Interval::Stretch { from, until: at };
        let allowed = scope.bound.over(full + refilled, window) + last.beyond();
        findings.add(at, Finding { interval, sum, allowed });
    }
    findings
}

fn periods(
    key: &str,
    scope: &CheckedScope,
    calendar: &Calendar,
    admits: &[Admit],
) -> Result<Findings, LogError> {
    let allowed = scope.allowed();
    let mut findings = Findings::default();
    let mut rest = admits;
    while let Some(&Admit { at, .. }) = rest.first() {
        let period = calendar.boundaries(at).period(at);
        let Some((from, until)) = period else {
            return Err(LogError::NoPeriod { key: key.into(), limit: scope.limit.to_string(), at });
        };
        let (inside, later) = rest.split_at(rest.partition_point(|admit| admit.at < until));
        let (mut last, interval) = (LatestAdmission::default(), Interval::Period { from, until });
        let mut finding = Finding { interval, sum: 0, allowed };
        for (at, amount, now) in instants(inside) {
            last.enter(now);
            finding.sum += amount;
            finding.allowed = allowed + last.beyond();
            findings.peaks.add(at, finding);
        }
        findings.judge(finding);
        rest = later;
    }
    Ok(findings)
}

fn concurrent(scope: &CheckedScope, changes: &[Change]) -> Findings {
    let allowed = scope.allowed();
    let mut findings = Findings::default();
    let mut held = 0_u128;
    for now in changes.chunk_by(|a, b| a.at == b.at) {
        // Slots are freed after they were taken or at the same time, so `held` stays positive.
        held += now.iter().map(|c| u128::from(c.taken)).sum::<u128>();
        held -= now.iter().map(|c| u128::from(c.freed)).sum::<u128>();
        let at = now[0].at;
        findings.add(at, Finding { interval: Interval::Instant(at), sum: held, allowed });
    }
    findings
}
