//! The admissions of one counter, as far as they still matter.
//!
//! A counter is judged whenever it has doubled, and what no later window can reach is forgotten:
//! what is kept is what was admitted in two windows. Only buckets keep everything, because a
//! stretch in which one is never full can be of any length.
//!
//! | admissions | by which limit they are judged |
//! |---|---|
//! | all under the same limits | by those |
//! | before and after a reload that changed them | each part by its own, all by the largest |
//! | with reservations or bookings that nobody settled | if they exceed it, again without those: they may have been given back |
//! | before and after a reset | apart |
//! | of which a part was refunded | without the oldest of what counted then: it never went |
//! | of which the store decided some, and nodes on their own others | those of the store by the limit, all together by the bound |
//!
//! What the store had counted is compared with what the log explains: see `count.rs`.

use sluicegate_checker::{Checker, Finding, Interval, Malformed, Scope, Verdict};
use sluicegate_core::{Limit, Span, Timestamp};

use super::count::{Count, Unexplained, Unlogged};
use super::logs::Place;

/// How far lines may be out of order: a node may be held up between a decision and its line.
pub(super) const DISORDER_MAX: Span = Span::from_secs(60);
/// With fewer admissions than these, a counter is judged at the end.
const JUDGED_AT_MIN: usize = 4_096;

/// One counter.
#[derive(Default)]
pub(super) struct Counter {
    admits: Vec<Admit>,
    /// How many there were, with those that are forgotten.
    pub(super) count: u64,
    /// Which limits it was charged under.
    terms: Vec<usize>,
    /// How many admissions there are before it is judged again.
    judged_at: usize,
    /// An admission before this instant comes too late to be judged.
    closed: Timestamp,
    /// When it began anew, each with the number of the next admission.
    resets: Vec<(Timestamp, u64)>,
    /// What was given back without saying of which admission, and when.
    refunds: Vec<(Timestamp, u64)>,
    pub(super) found: Vec<Found>,
    /// What the store had counted.
    pub(super) store: Count,
}

/// What is to be proven under the same terms.
pub(super) struct Proof {
    /// Of what the store admitted.
    pub(super) store: Vec<Scope>,
    /// Of all that was admitted, if nodes on their own admitted some of it.
    pub(super) all: Vec<Scope>,
}

/// One admission.
#[derive(Clone, Copy)]
pub(super) struct Admit {
    /// When it was decided.
    pub(super) at: Timestamp,
    /// When the work may go.
    pub(super) start: Timestamp,
    pub(super) amount: u64,
    /// What of it had to fit.
    pub(super) need: u64,
    /// A node admitted it on its own.
    pub(super) alone: bool,
    pub(super) place: Place,
    /// The number of the limits that it was admitted under.
    pub(super) terms: usize,
    /// Nothing can give it back any more.
    pub(super) firm: bool,
    /// Its place among all admissions of the counter.
    pub(super) number: u64,
}

/// What was found about one limit.
pub(super) struct Found {
    pub(super) scope: Scope,
    pub(super) worst: Finding,
    /// The first that exceeds it, and the line that did.
    pub(super) exceeded: Option<(Finding, Option<Place>)>,
    /// The first that exceeds it unless a reservation was given back.
    pub(super) unsettled: Option<Finding>,
}

/// The admission came too late to be judged.
pub(super) struct Late;

impl Counter {
    /// Takes note of an admission; returns its number.
    pub(super) fn record(&mut self, admit: Admit) -> Result<u64, Late> {
        if admit.start < self.closed {
            return Err(Late);
        }
        if !self.terms.contains(&admit.terms) {
            self.terms.push(admit.terms);
        }
        let number = self.count;
        self.admits.push(Admit { number, ..admit });
        self.count += 1;
        Ok(number)
    }

    /// Of an admission at most so much was used after all, and nothing more will be given back.
    ///
    /// What was used beyond it is a debt: it was not admitted, and keeps later work out.
    pub(super) fn settle(&mut self, number: u64, at_most: u64) {
        // What can't matter any more is forgotten.
        if let Ok(place) = self.admits.binary_search_by_key(&number, |admit| admit.number) {
            let admit = &mut self.admits[place];
            admit.amount = admit.amount.min(at_most);
            admit.firm = true;
        }
    }

    /// It begins anew.
    pub(super) fn reset(&mut self, at: Timestamp) {
        self.store.refunded(at, u64::MAX);
        self.resets.push((at, self.count));
    }

    /// So much of what counted at `at` was given back.
    pub(super) fn refund(&mut self, at: Timestamp, amount: u64) {
        self.store.refunded(at, amount);
        self.refunds.push((at, amount));
    }

    /// The admissions without what was refunded until `until`. Lines come out of order, so what
    /// counted at an instant is known only a while after it.
    fn without_refunds(&self, until: Timestamp, proofs: &[Proof]) -> Vec<Admit> {
        let mut admits = self.admits.clone();
        let mut refunds: Vec<_> = self.refunds.iter().filter(|(at, _)| *at <= until).collect();
        refunds.sort_unstable();
        for &&(at, mut amount) in &refunds {
            let epoch = self.resets.iter().filter(|(reset, _)| *reset <= at).count();
            let limits = self.terms.iter().flat_map(|&terms| &proofs[terms].store);
            let limits = limits.map(Scope::limit);
            let order = limits.map(|limit| Counted::at(limit, at)).reduce(Counted::longer);
            let Some(Counted { since, newest_first }) = order else { continue };
            let counts = |admit: &&mut Admit| since < admit.start && admit.start <= at;
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

    /// How often it had begun anew when something was admitted.
    fn epoch(&self, admit: &Admit) -> usize {
        self.resets.iter().filter(|&&reset| reset <= (admit.at, admit.number)).count()
    }

    /// Whether it has grown enough to be judged.
    pub(super) fn is_due(&self) -> bool {
        self.admits.len() >= self.judged_at.max(JUDGED_AT_MIN)
    }

    /// Judges what there is, and forgets what later admissions can't make worse. `now` is the
    /// latest decision of all logs, `proofs` tells what is to be proven under which terms.
    ///
    /// Unless this is the `end`, what depends on a settlement that may still come is left for later.
    pub(super) fn judge(
        &mut self,
        key: &str,
        now: Timestamp,
        proofs: &[Proof],
        end: bool,
    ) -> Result<(), Malformed> {
        let mut found = Vec::new();
        let used = self.without_refunds(Timestamp::MAX, proofs);
        let alone = used.iter().any(|admit| admit.alone);
        for epoch in 0..=self.resets.len() {
            let admits = used.iter().filter(|admit| self.epoch(admit) == epoch);
            let admits: Vec<_> = admits.copied().collect();
            let of_store = admits.iter().filter(|admit| !admit.alone);
            let of_store: Vec<_> = of_store.copied().collect();
            self.judge_by_terms(key, &of_store, |terms| &proofs[terms].store, &mut found)?;
            if alone {
                self.judge_by_terms(key, &admits, |terms| &proofs[terms].all, &mut found)?;
            }
        }
        self.judged_at = 2 * self.admits.len();
        if !end && found.iter().any(|found| found.unsettled.is_some()) {
            return Ok(());
        }
        for new in found {
            add(&mut self.found, new);
        }
        let scopes = self.terms.iter().flat_map(|&terms| &proofs[terms].store);
        if let Some(longest) = reach(scopes) {
            self.closed = now - DISORDER_MAX;
            self.admits = self.without_refunds(self.closed, proofs);
            self.refunds.retain(|(at, _)| *at > self.closed);
            let kept_from = self.closed - longest;
            self.admits.retain(|admit| admit.start > kept_from);
            self.judged_at = 2 * self.admits.len();
        }
        Ok(())
    }

    /// Judges admissions by the terms of each, and all of them by the largest.
    fn judge_by_terms<'s>(
        &self,
        key: &str,
        admits: &[Admit],
        scopes: impl Fn(usize) -> &'s Vec<Scope>,
        found: &mut Vec<Found>,
    ) -> Result<(), Malformed> {
        for &terms in &self.terms {
            let admits = admits.iter().filter(|admit| admit.terms == terms);
            let admits: Vec<_> = admits.copied().collect();
            judge(key, scopes(terms), &admits, found)?;
        }
        if self.terms.len() > 1 {
            let all = self.terms.iter().flat_map(|&terms| scopes(terms));
            judge(key, &largest(all), admits, found)?;
        }
        Ok(())
    }

    /// Compares what the store had counted with what the log explains, until `until`.
    pub(super) fn compare(
        &mut self,
        begin: Timestamp,
        until: Timestamp,
        given_back: bool,
        unlogged: &Unlogged,
        proofs: &[Proof],
    ) -> Vec<Unexplained> {
        let limit = |terms: usize, number: usize| proofs[terms].store[number].limit();
        self.store.compare(begin, until, given_back, unlogged, limit)
    }
}

/// What a refund can be of.
struct Counted {
    /// Later than this.
    since: Timestamp,
    /// A bucket has drained what came first.
    newest_first: bool,
}

impl Counted {
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

/// How far back a later window can reach, if there is an end to it.
fn reach<'s>(scopes: impl Iterator<Item = &'s Scope>) -> Option<Span> {
    scopes.map(Scope::limit).try_fold(Span::ZERO, |longest, limit| match limit {
        Limit::Bucket { .. } => None,
        limit => Some(longest.max(limit.window())),
    })
}

/// Of limits that differ in their amount only, the one with the largest.
fn largest<'s>(scopes: impl Iterator<Item = &'s Scope>) -> Vec<Scope> {
    let mut found: Vec<&Scope> = Vec::new();
    for scope in scopes {
        let alike = |other: &&mut &Scope| match (other.limit(), scope.limit()) {
            (Limit::Exact(a), Limit::Exact(b)) | (Limit::Windowed(a), Limit::Windowed(b)) => {
                a.window == b.window
            }
            (Limit::Calendar { calendar: a, .. }, Limit::Calendar { calendar: b, .. }) => a == b,
            _ => false,
        };
        match found.iter_mut().find(alike) {
            Some(other) if other.limit().amount() < scope.limit().amount() => *other = scope,
            Some(_) => {}
            // What a bucket allows depends on two numbers, and neither of two may be the larger.
            None if matches!(scope.limit(), Limit::Bucket { .. }) => {}
            None => found.push(scope),
        }
    }
    found.into_iter().cloned().collect()
}

fn judge(
    key: &str,
    scopes: &[Scope],
    admits: &[Admit],
    found: &mut Vec<Found>,
) -> Result<(), Malformed> {
    let verdicts = verdicts(key, scopes, admits.iter())?;
    let uncertain = admits.iter().any(|admit| !admit.firm);
    let exceeded = verdicts.iter().any(|verdict| verdict.first.is_some());
    let certain = match uncertain && exceeded {
        true => Some(self::verdicts(key, scopes, admits.iter().filter(|admit| admit.firm))?),
        false => None,
    };
    for (index, verdict) in verdicts.into_iter().enumerate() {
        let Some(worst) = verdict.worst else { continue };
        let certain = certain.as_ref().map_or(verdict.first, |certain| certain[index].first);
        let exceeded = certain.map(|finding| (finding, place(finding.interval, admits)));
        let unsettled = verdict.first.filter(|_| exceeded.is_none());
        add(found, Found { scope: verdict.scope, worst, exceeded, unsettled });
    }
    Ok(())
}

fn add(found: &mut Vec<Found>, new: Found) {
    match found.iter_mut().find(|known| known.scope == new.scope) {
        Some(known) => known.add(new),
        None => found.push(new),
    }
}

fn verdicts<'a>(
    key: &str,
    scopes: &[Scope],
    admits: impl Iterator<Item = &'a Admit>,
) -> Result<Vec<Verdict>, Malformed> {
    let mut checker = Checker::new();
    for scope in scopes {
        checker.scope(key, scope.clone())?;
    }
    for admit in admits {
        checker.admit_beyond(key, admit.start, admit.amount, admit.need, admit.at)?;
    }
    Ok(checker.check()?.verdicts)
}

impl Found {
    /// The same limit, judged again with later admissions.
    fn add(&mut self, later: Self) {
        let rank = |finding: Finding| {
            let over = finding.sum.saturating_sub(finding.allowed);
            (over, std::cmp::Reverse(finding.allowed.saturating_sub(finding.sum)))
        };
        if rank(later.worst) > rank(self.worst) {
            self.worst = later.worst;
        }
        self.exceeded = self.exceeded.or(later.exceeded);
        self.unsettled = self.unsettled.or(later.unsettled);
    }
}

/// The line of the last admission in an interval.
fn place(interval: Interval, admits: &[Admit]) -> Option<Place> {
    let inside = |admit: &&Admit| match interval {
        Interval::Window { until, .. } | Interval::Stretch { until, .. } => admit.start <= until,
        Interval::Period { until, .. } => admit.start < until,
        Interval::Instant(at) => admit.start <= at,
    };
    let last = admits.iter().filter(inside).max_by_key(|admit| admit.start);
    last.map(|admit| admit.place)
}
