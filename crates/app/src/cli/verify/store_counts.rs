//! Compares the count that the store reported for one counter with the admissions in the log, to
//! detect missing log lines.
//!
//! Every admission by the store reports the count of each limit, including the admission itself. If
//! the count is larger than the sum of all logged admissions that can be in the window, something
//! was admitted that is not in the log: the file of a node is missing, or a line was removed or
//! changed.
//!
//! The comparison must not reject a complete log. Where a value is uncertain, it uses the one that
//! explains more:
//!
//! | uncertain value | value used |
//! |---|---|
//! | time of the charge, because a reply may have been lost and the call retried | time of the request |
//! | effect of a refund without an id | none |
//! | usage before the first log line | the difference that the first lines show; it can only shrink. None, if a line shows that the oldest usage is later |
//! | usage of other keys, counted together because the store was full (`shared`) | the same, from the last such line on |
//! | charges of a call without a response | those that its line names (`unconfirmed`) |
//! | charges of a denied call that were held briefly in another slot of a cluster | the largest charge of the counter |
//!
//! `bucket_counts.rs` compares the levels of token buckets, and `slots.rs` the numbers of slots in use.

use std::collections::HashMap;
use std::mem::{self, Discriminant};

use sluicegate_core::{Limit, Span, Timestamp};

use super::bucket_counts::BucketLevel;
use super::line::Charge;
use super::logs::LogPosition;

/// Maximum time that a call without a response, or one that a cluster rolls back, may count beyond
/// the window.
const LATE_MAX: Span = Span::from_secs(10);

/// Counts reported by the store for one counter, and the logged charges that explain them.
#[derive(Default)]
pub(super) struct StoreCounts {
    entries: Vec<StoreCharge>,
    shown: Vec<ReportedCount>,
    /// Number of entries recorded so far, including those already dropped.
    serial: u64,
    /// Amounts of known entries that were given back.
    returned: Vec<ReturnedAmount>,
    /// Time and amount of refunds that do not name an entry.
    refunded: Vec<(Timestamp, u64)>,
    /// Upper bound of the usage before `begin`, by kind and length of the window. A reload or an
    /// override may change the amount of a limit without affecting it.
    before: Vec<((Discriminant<Limit>, Span), u64)>,
    /// Time of the last report that the log explained, by kind and length of the window.
    explained_at: HashMap<(Discriminant<Limit>, Span), Timestamp>,
    /// Time from which the log explains the count: the begin of the complete log, or the last time at
    /// which the count contained usage of other keys.
    begin: Timestamp,
    /// Largest amount of one charge.
    largest: u64,
    /// Longest window.
    reach: Span,
    /// Longest time from a charge to the time that the store counts it at: bookings and paced work
    /// are charged ahead, and times under a literal key are rounded up.
    pub(super) ahead: Span,
    pub(super) unit: String,
    /// Levels of the buckets among its limits.
    buckets: Vec<BucketLevel>,
    /// Time until which the buckets have been compared.
    buckets_until: Timestamp,
    /// True if a request was charged in several slots of a Redis cluster at once.
    pub(super) across_slots: bool,
}

/// A charge that the store counts.
#[derive(Clone, Copy)]
pub(super) struct StoreCharge {
    /// Time of the store when it made the charge.
    pub(super) at: Timestamp,
    /// Earliest time at which the store can have counted it; `latest` is the latest.
    pub(super) earliest: Timestamp,
    pub(super) latest: Timestamp,
    /// Latest time that the store may count it at. It has left every window that begins here or later.
    pub(super) from: Timestamp,
    pub(super) amount: u64,
    /// Expiry of a reservation or booking, after which the store may give it back.
    pub(super) until: Option<Timestamp>,
    /// Sequence number among all entries of the counter.
    pub(super) serial: u64,
}

impl StoreCharge {
    /// Returns the duration of the call that made it.
    pub(super) fn duration(&self) -> Span {
        self.at.since(self.earliest.min(self.at))
    }

    /// Returns the time from which every count contains it.
    pub(super) fn counted_by(&self) -> Timestamp {
        self.at + self.duration()
    }
}

/// An amount of an entry that was given back.
struct ReturnedAmount {
    /// Earliest time at which the store can have given it back; `latest` is the latest.
    earliest: Timestamp,
    latest: Timestamp,
    /// `from` of the entry.
    from: Timestamp,
    amount: u64,
}

/// The count of one limit that an admission reported.
#[derive(Clone, Copy)]
pub(super) struct ReportedCount {
    pub(super) at: Timestamp,
    /// Latest time at which the store can have read this count.
    pub(super) by: Timestamp,
    pub(super) count: u64,
    /// True if the count contains usage of other keys: it is that of an overflow counter, or of a new
    /// counter that started with a copy of one.
    pub(super) shared: bool,
    /// Time at which the oldest usage leaves the window, if the line states it.
    pub(super) reset: Option<Timestamp>,
    pub(super) position: LogPosition,
    /// Index of the limit set, and of the limit in it.
    pub(super) limit_set: usize,
    pub(super) limit: usize,
}

/// A reported count that is larger than the log explains.
#[derive(Clone, Copy)]
pub(super) struct UnexplainedCount {
    pub(super) at: Timestamp,
    /// Time after which the missing charges were made.
    pub(super) since: Timestamp,
    pub(super) position: LogPosition,
    pub(super) count: u64,
    pub(super) explained: u64,
}

/// Charges that the store may have made although no admission in the log reports them.
#[derive(Default)]
pub(super) struct UnloggedCharges {
    /// Earliest time at which the store did not respond.
    unanswered: Option<Timestamp>,
    /// Charges of calls without a response: time and amount, by counter key.
    unconfirmed: HashMap<String, Vec<(Timestamp, u64)>>,
    /// Times of denials.
    denied: Vec<Timestamp>,
    /// Settlements of admissions before the log begins: time, unit, amount.
    settled: Vec<(Timestamp, String, u64)>,
    /// True if only a sample of the denials is logged.
    pub(super) denials_sampled: bool,
}

impl UnloggedCharges {
    pub(super) fn add_unanswered(&mut self, at: Timestamp) {
        self.unanswered = Some(self.unanswered.map_or(at, |first| first.min(at)));
    }

    pub(super) fn add_unconfirmed(&mut self, at: Timestamp, key: &str, amount: u64) {
        match self.unconfirmed.get_mut(key) {
            Some(charges) => charges.push((at, amount)),
            None => {
                self.unconfirmed.insert(key.to_owned(), vec![(at, amount)]);
            }
        }
    }

    pub(super) fn add_denial(&mut self, at: Timestamp) {
        self.denied.push(at);
    }

    pub(super) fn add_settlement(&mut self, at: Timestamp, unit: &str, amount: u64) {
        self.settled.push((at, unit.to_owned(), amount));
    }

    /// Returns true if a call before `at` got no response from the store.
    pub(super) fn is_unanswered_before(&self, at: Timestamp) -> bool {
        self.unanswered.is_some_and(|first| first <= at + LATE_MAX)
    }

    /// Sorts what concerns a counter by time.
    pub(super) fn sort(&mut self, key: &str) {
        if let Some(charges) = self.unconfirmed.get_mut(key) {
            charges.sort_unstable();
        }
        self.denied.sort_unstable();
    }

    /// Returns the maximum amount that calls without a response can have charged until an instant.
    fn unconfirmed_until(&self, at: Timestamp, key: &str, unit: &str) -> u64 {
        let at = at + LATE_MAX;
        let charges = self.unconfirmed.get(key).into_iter().flatten();
        let charges = charges.filter(|(charged, _)| *charged <= at).map(|(_, amount)| *amount);
        let settled = self.settled.iter().filter(|(settled, of, _)| *settled <= at && of == unit);
        charges.chain(settled.map(|(.., amount)| *amount)).fold(0, u64::saturating_add)
    }

    /// Returns the maximum amount that a window ending at `at` can contain beyond the logged charges.
    fn most(&self, since: Timestamp, at: Timestamp, key: &str, counter: &StoreCounts) -> u64 {
        let (since, at) = (since - LATE_MAX, at + LATE_MAX);
        let denied = match counter.across_slots {
            true => within(&self.denied, since, at, |&denied| denied).len() as u64,
            false => 0,
        };
        let unconfirmed = self.unconfirmed.get(key).map_or(&[][..], Vec::as_slice);
        let unconfirmed = within(unconfirmed, since, at, |&(charged, _)| charged);
        let unconfirmed = unconfirmed.iter().fold(0_u64, |sum, (_, one)| sum.saturating_add(*one));
        let settled = self.settled.iter().filter(|(settled, unit, _)| {
            since <= *settled && *settled <= at && *unit == counter.unit
        });
        let settled = settled.fold(0_u64, |sum, (.., amount)| sum.saturating_add(*amount));
        let denied = denied.saturating_mul(counter.largest);
        denied.saturating_add(unconfirmed).saturating_add(settled)
    }
}

/// Returns the elements of a sorted slice with a time between two instants.
fn within<T>(
    sorted: &[T],
    since: Timestamp,
    until: Timestamp,
    time: impl Fn(&T) -> Timestamp,
) -> &[T] {
    let first = sorted.partition_point(|one| time(one) < since);
    let end = sorted.partition_point(|one| time(one) <= until);
    &sorted[first..end]
}

impl StoreCounts {
    /// Records a charge by the store and returns its sequence number.
    pub(super) fn charge(&mut self, entry: StoreCharge) -> u64 {
        let serial = self.serial;
        self.serial += 1;
        self.largest = self.largest.max(entry.amount);
        self.entries.push(StoreCharge { serial, ..entry });
        serial
    }

    /// Records that `amount` of an entry was given back between two instants. Nothing more of it can be
    /// given back later.
    pub(super) fn give_back(
        &mut self,
        (earliest, latest): (Timestamp, Timestamp),
        serial: u64,
        amount: u64,
    ) {
        // An entry that has left every window was dropped.
        if let Ok(position) = self.entries.binary_search_by_key(&serial, |entry| entry.serial) {
            let entry = &mut self.entries[position];
            entry.until = None;
            let from = entry.from;
            self.returned.push(ReturnedAmount { earliest, latest, from, amount });
        }
    }

    /// Records a refund that does not name an entry.
    pub(super) fn refund(&mut self, at: Timestamp, amount: u64) {
        self.refunded.push((at, amount));
    }

    /// Records a count that an admission reported.
    pub(super) fn report(&mut self, shown: ReportedCount) {
        self.shown.push(shown);
    }

    /// Compares the counts reported until `until` with the log, and drops them. The log is complete
    /// from `begin` on.
    pub(super) fn compare<'l>(
        &mut self,
        begin: Timestamp,
        until: Timestamp,
        given_back: bool,
        (key, unlogged): (&str, &UnloggedCharges),
        limit: impl Fn(usize, usize) -> &'l Limit,
    ) -> Vec<UnexplainedCount> {
        if self.begin < begin {
            self.buckets.iter_mut().for_each(BucketLevel::forget);
        }
        self.begin_at(begin);
        self.shown.sort_by_key(|shown| shown.at);
        let known = self.shown.partition_point(|shown| shown.at <= until);
        let mut shown: Vec<_> = self.shown.drain(..known).collect();
        if let Some(last) = shown.iter().rposition(|shown| shown.shared) {
            let at = shown[last].at;
            self.inherit_at(at);
            shown.retain(|shown| shown.at > at);
            self.buckets.iter_mut().for_each(BucketLevel::forget);
        }
        let mut found = self.compare_buckets(&shown, until, (key, unlogged), &limit);
        let explained = ExplainedUsage::new(self, given_back);
        for now in shown.chunk_by(|a, b| a.at == b.at) {
            // Of several decisions at the same instant, the last one reports the largest count.
            let mut now = now.to_vec();
            now.sort_by_key(|shown| std::cmp::Reverse(shown.count));
            let mut done: Vec<&Limit> = Vec::new();
            for shown in now {
                let limit = limit(shown.limit_set, shown.limit);
                if shown.at < begin || done.contains(&limit) {
                    continue;
                }
                done.push(limit);
                if let Some(window) = Window::at(limit, shown.at) {
                    self.reach = self.reach.max(limit.window());
                    found.extend(self.unexplained(shown, limit, window, &explained, key, unlogged));
                }
            }
        }
        if self.reach > Span::ZERO {
            let kept_from = until - self.reach - self.reach - LATE_MAX;
            self.entries.retain(|entry| entry.from > kept_from);
            self.returned.retain(|returned| returned.from > kept_from);
        }
        found
    }

    /// Compares the reported levels of token buckets. Not in a cluster: there, a denied request may
    /// have been counted for a moment.
    fn compare_buckets<'l>(
        &mut self,
        shown: &[ReportedCount],
        until: Timestamp,
        (key, unlogged): (&str, &UnloggedCharges),
        limit: &impl Fn(usize, usize) -> &'l Limit,
    ) -> Vec<UnexplainedCount> {
        let span = (self.buckets_until, until);
        self.buckets_until = until;
        let mut by_bucket: Vec<(usize, Vec<ReportedCount>)> = Vec::new();
        for one in shown.iter().filter(|one| one.at >= self.begin && !self.across_slots) {
            let Some(level) = BucketLevel::new(limit(one.limit_set, one.limit)) else { continue };
            let known = self.buckets.iter().position(|other| other.is_like(&level));
            let bucket = known.unwrap_or_else(|| {
                self.buckets.push(level);
                self.buckets.len() - 1
            });
            match by_bucket.iter_mut().find(|(other, _)| *other == bucket) {
                Some((_, reports)) => reports.push(*one),
                None => by_bucket.push((bucket, vec![*one])),
            }
        }
        // Under another limit the level means something else, so it is unknown after a change.
        if self.buckets.len() > 1 {
            let last = by_bucket.pop().map(|(bucket, _)| self.buckets.swap_remove(bucket));
            self.buckets = last.into_iter().collect();
            self.buckets.iter_mut().for_each(BucketLevel::forget);
            return Vec::new();
        }
        let unconfirmed = |at: Timestamp| unlogged.unconfirmed_until(at, key, &self.unit);
        let Some(bucket) = self.buckets.first_mut() else { return Vec::new() };
        let reports = by_bucket.first().map_or(&[][..], |(_, reports)| reports.as_slice());
        bucket.compare(span, &self.entries, reports, unconfirmed)
    }

    /// Sets the time from which the log explains the count, unless that is known to be later.
    fn begin_at(&mut self, begin: Timestamp) {
        if self.begin < begin {
            self.begin = begin;
            self.before.clear();
        }
    }

    /// Treats everything until `at` as usage from before: a counter that starts with a copy of the
    /// overflow counter counts all of it as if it had just arrived.
    fn inherit_at(&mut self, at: Timestamp) {
        self.begin_at(at + Span::from_micros(1));
        self.entries.retain(|entry| entry.from > at);
        self.returned.retain(|returned| returned.from > at);
    }

    fn unexplained(
        &mut self,
        shown: ReportedCount,
        limit: &Limit,
        window: Window,
        explained: &ExplainedUsage,
        key: &str,
        unlogged: &UnloggedCharges,
    ) -> Option<UnexplainedCount> {
        let ReportedCount { at, by, count, position, .. } = shown;
        let most = explained.most(window.since, by);
        let most = most.saturating_add(unlogged.most(window.since, at, key, self));
        let shape = (mem::discriminant(limit), limit.window());
        let known = self.before.iter().position(|(known, _)| *known == shape);
        let number = known.unwrap_or_else(|| {
            self.before.push((shape, u64::MAX));
            self.before.len() - 1
        });
        let before = &mut self.before[number].1;
        // The oldest usage of an exact log is that of one admission. If the log contains the time of
        // that one, it has to contain all of the usage, also while the window reaches further back.
        let oldest = match (limit, shown.reset) {
            (Limit::Exact(rate), Some(reset)) => reset - rate.window.span(),
            _ => Timestamp::ZERO,
        };
        let known_from = self.begin + self.ahead;
        if window.since > known_from || oldest >= known_from {
            *before = 0;
        }
        // Dollars are parsed as floats, so the last digit may be off.
        let rounded = if self.unit == Charge::MONEY { 2 } else { 0 };
        let explained_most = most.saturating_add(*before).saturating_add(rounded);
        // A settlement without a response may have given back any amount.
        let least = match unlogged.is_unanswered_before(at) {
            true => 0,
            false => explained.least(window.certain, at),
        };
        *before = (*before).min(count.saturating_sub(least));
        // With sampled denials, the rollbacks of a cluster are unknown.
        let knows = !(unlogged.denials_sampled && self.across_slots);
        let explained = explained_most;
        if count <= explained {
            self.explained_at.insert(shape, at);
            return None;
        }
        let since = self.explained_at.get(&shape).map_or(oldest, |&known| known.max(oldest));
        knows.then_some(UnexplainedCount { at, since, position, count, explained })
    }
}

/// The window of a limit at an instant.
#[derive(Clone, Copy)]
struct Window {
    /// Every charge in the window is later than this.
    since: Timestamp,
    /// Every charge later than this is in the window.
    certain: Timestamp,
}

impl Window {
    fn at(limit: &Limit, at: Timestamp) -> Option<Self> {
        match limit {
            Limit::Exact(rate) => {
                let since = at - rate.window.span();
                Some(Self { since, certain: since })
            }
            // Charges expire in slices of a hundredth of the window.
            Limit::Windowed(rate) => {
                let window = rate.window.span();
                let late = Span::from_micros(window.as_micros() / 100 + 1);
                Some(Self { since: at - window - late, certain: at - window })
            }
            Limit::Calendar { calendar, .. } => {
                let (from, _) = calendar.boundaries(at).period(at)?;
                let since = from - Span::from_micros(1);
                Some(Self { since, certain: since })
            }
            Limit::Bucket { .. } | Limit::Concurrent(_) | Limit::Banned { .. } => None,
        }
    }
}

/// Prefix sums over the entries of a counter, for upper and lower bounds of its count.
struct ExplainedUsage {
    /// Entries by earliest charge time, and by the time that decides when they leave the window.
    entered: PrefixSums,
    left: PrefixSums,
    /// Entries by latest charge time, and by the earliest time from which they may leave.
    certain: PrefixSums,
    gone: PrefixSums,
    /// Reservations and bookings by expiry.
    lapsed: PrefixSums,
    /// Returned amounts by latest time, by earliest time, and by `from` of the entry.
    returned: PrefixSums,
    returned_early: PrefixSums,
    returned_left: PrefixSums,
    refunded: PrefixSums,
    /// True if something was given back that is not in the log.
    given_back: bool,
}

impl ExplainedUsage {
    fn new(count: &StoreCounts, given_back: bool) -> Self {
        let StoreCounts { entries, returned, refunded, .. } = count;
        let sums = |at: fn(&StoreCharge) -> Timestamp| {
            PrefixSums::new(entries.iter().map(|entry| (at(entry), entry.amount)))
        };
        let back = |at: fn(&ReturnedAmount) -> Timestamp| {
            PrefixSums::new(returned.iter().map(|returned| (at(returned), returned.amount)))
        };
        let lapsed = entries.iter().filter_map(|entry| Some((entry.until?, entry.amount)));
        Self {
            entered: sums(|entry| entry.earliest),
            left: sums(|entry| entry.from),
            certain: sums(|entry| entry.latest),
            gone: sums(|entry| entry.earliest),
            lapsed: PrefixSums::new(lapsed),
            returned: back(|returned| returned.latest),
            returned_early: back(|returned| returned.earliest),
            returned_left: back(|returned| returned.from),
            refunded: PrefixSums::new(refunded.iter().copied()),
            given_back,
        }
    }

    /// Returns the maximum amount that the store can have counted in (since, at].
    fn most(&self, since: Timestamp, at: Timestamp) -> u64 {
        // An amount given back at the same instant may still have been counted.
        let returned = self.returned.until(at - Span::from_micros(1));
        let returned = returned.saturating_sub(self.returned_left.until(since));
        let entered = self.entered.until(at).saturating_sub(self.left.until(since));
        entered.saturating_sub(returned)
    }

    /// Returns the minimum amount that the store must have counted.
    fn least(&self, certain: Timestamp, at: Timestamp) -> u64 {
        if self.given_back {
            return 0;
        }
        let back = [&self.lapsed, &self.returned_early, &self.refunded];
        let back = back.iter().fold(0_u64, |sum, sums| sum.saturating_add(sums.until(at)));
        let counted = self.certain.until(at).saturating_sub(self.gone.until(certain));
        counted.saturating_sub(back)
    }
}

/// Prefix sums of amounts, ordered by time.
pub(super) struct PrefixSums(Vec<(Timestamp, u64)>);

impl PrefixSums {
    pub(super) fn new(amounts: impl Iterator<Item = (Timestamp, u64)>) -> Self {
        let mut sums: Vec<_> = amounts.collect();
        sums.sort_unstable();
        let mut sum = 0_u64;
        for (_, amount) in &mut sums {
            sum = sum.saturating_add(*amount);
            *amount = sum;
        }
        Self(sums)
    }

    /// Returns the sum of all amounts up to and including an instant.
    pub(super) fn until(&self, at: Timestamp) -> u64 {
        let position = self.0.partition_point(|(instant, _)| *instant <= at);
        position.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}
