//! What the store had counted on one counter, beside what the log explains.
//!
//! Every admission of the store shows what each limit had counted, itself included. If that is more
//! than all admissions in the log that can have been in the window, something was admitted that is
//! not in the log: the file of a node is missing, or a line was taken out or changed.
//!
//! The comparison never accuses an honest log, so it takes the larger of two numbers where it does
//! not know:
//!
//! | what is not known | what is taken |
//! |---|---|
//! | when the store charged: a reply may have been lost and asked for again | as early as the question |
//! | of what was refunded without an id, what it took away | nothing |
//! | what stood there before the log begins | whatever the first lines show; it can only become less |
//! | whether a question without an answer was charged, or a denied one held for a moment in another slot of a cluster | it was, as much as the largest charge of the counter |
//!
//! Buckets, and slots of concurrent work, are not compared.

use std::mem::{self, Discriminant};

use sluicegate_core::{Limit, Span, Timestamp};

use super::line::Charge;
use super::logs::Place;

/// How long a question without an answer, or one that a cluster takes back, may count beyond the
/// window.
const LATE_MAX: Span = Span::from_secs(10);

/// What the store had counted, and what explains it.
#[derive(Default)]
pub(super) struct Count {
    entries: Vec<Entry>,
    shown: Vec<Shown>,
    /// How many entries there were.
    serial: u64,
    /// Parts of entries that were given back.
    returned: Vec<Returned>,
    /// What was given back without saying of which entry, and when.
    refunded: Vec<(Timestamp, u64)>,
    /// By the shape and the length of a window: what may have stood there before the log begins. The
    /// amount of a limit may change, by a reload or an override, without changing that.
    before: Vec<((Discriminant<Limit>, Span), u64)>,
    /// When that was last forgotten.
    begin: Timestamp,
    /// The largest amount.
    largest: u64,
    /// The longest window.
    reach: Span,
    pub(super) unit: String,
    /// Something was charged in several slots of a cluster at once.
    pub(super) across_slots: bool,
}

/// An amount that the store counts.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// The store may have counted it as early as this, and has by `latest`.
    pub(super) earliest: Timestamp,
    pub(super) latest: Timestamp,
    /// It leaves a window after this instant.
    pub(super) from: Timestamp,
    pub(super) amount: u64,
    /// When it may be given back by itself, if it is held or booked.
    pub(super) until: Option<Timestamp>,
    /// Its number among all entries.
    pub(super) serial: u64,
}

/// A part of an entry that was given back.
struct Returned {
    /// The store may have given it back as early as this, and has by `latest`.
    earliest: Timestamp,
    latest: Timestamp,
    /// From when on the entry counted.
    from: Timestamp,
    amount: u64,
}

/// What an admission shows of one limit.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) at: Timestamp,
    /// It may have been read as late as this.
    pub(super) by: Timestamp,
    pub(super) count: u64,
    pub(super) place: Place,
    /// The number of the terms, and of the limit among them.
    pub(super) terms: usize,
    pub(super) limit: usize,
}

/// More was counted than the log explains.
#[derive(Clone, Copy)]
pub(super) struct Unexplained {
    pub(super) at: Timestamp,
    pub(super) place: Place,
    pub(super) count: u64,
    pub(super) explained: u64,
}

/// What may be charged in the store although no admission tells of it.
#[derive(Default)]
pub(super) struct Unlogged {
    /// When the store did not answer.
    unanswered: Vec<Timestamp>,
    /// When it denied something.
    denied: Vec<Timestamp>,
    /// What was settled of admissions before the log begins: how much of which unit.
    settled: Vec<(Timestamp, String, u64)>,
    /// Only a part of the denials is logged.
    pub(super) denials_sampled: bool,
}

impl Unlogged {
    pub(super) fn unanswered(&mut self, at: Timestamp) {
        self.unanswered.push(at);
    }

    pub(super) fn denied(&mut self, at: Timestamp) {
        self.denied.push(at);
    }

    pub(super) fn settled(&mut self, at: Timestamp, unit: &str, amount: u64) {
        self.settled.push((at, unit.to_owned(), amount));
    }

    /// Whether the store did not answer something until then.
    fn is_unanswered_before(&self, at: Timestamp) -> bool {
        self.unanswered.first().is_some_and(|&first| first <= at + LATE_MAX)
    }

    /// Everything in order of time.
    pub(super) fn sort(&mut self) {
        self.unanswered.sort_unstable();
        self.denied.sort_unstable();
    }

    /// The most that a window until `at` may hold beyond what the log tells.
    fn most(&self, since: Timestamp, at: Timestamp, counter: &Count) -> u64 {
        let (since, at) = (since - LATE_MAX, at + LATE_MAX);
        let within = |instants: &[Timestamp]| {
            let first = instants.partition_point(|&instant| instant < since);
            (instants.partition_point(|&instant| instant <= at) - first) as u64
        };
        let denied = if counter.across_slots { within(&self.denied) } else { 0 };
        let settled = self.settled.iter().filter(|(settled, unit, _)| {
            since <= *settled && *settled <= at && *unit == counter.unit
        });
        let settled = settled.fold(0_u64, |sum, (.., amount)| sum.saturating_add(*amount));
        let unanswered = within(&self.unanswered);
        (unanswered + denied).saturating_mul(counter.largest).saturating_add(settled)
    }
}

impl Count {
    /// The store has counted something. Returns its number.
    pub(super) fn charged(&mut self, entry: Entry) -> u64 {
        let serial = self.serial;
        self.serial += 1;
        self.largest = self.largest.max(entry.amount);
        self.entries.push(Entry { serial, ..entry });
        serial
    }

    /// So much of an entry was given back, between two instants, and nothing more will be.
    pub(super) fn returned(
        &mut self,
        (earliest, latest): (Timestamp, Timestamp),
        serial: u64,
        amount: u64,
    ) {
        // What has left every window is forgotten.
        if let Ok(place) = self.entries.binary_search_by_key(&serial, |entry| entry.serial) {
            let entry = &mut self.entries[place];
            entry.until = None;
            let from = entry.from;
            self.returned.push(Returned { earliest, latest, from, amount });
        }
    }

    /// So much was given back of whatever was there.
    pub(super) fn refunded(&mut self, at: Timestamp, amount: u64) {
        self.refunded.push((at, amount));
    }

    /// An admission showed what the store had counted.
    pub(super) fn show(&mut self, shown: Shown) {
        self.shown.push(shown);
    }

    /// Compares what was shown until `until`, and forgets it. The log is whole from `begin` on.
    pub(super) fn compare<'l>(
        &mut self,
        begin: Timestamp,
        until: Timestamp,
        given_back: bool,
        unlogged: &Unlogged,
        limit: impl Fn(usize, usize) -> &'l Limit,
    ) -> Vec<Unexplained> {
        if self.begin < begin {
            self.begin = begin;
            self.before.clear();
        }
        self.shown.sort_by_key(|shown| shown.at);
        let known = self.shown.partition_point(|shown| shown.at <= until);
        let shown: Vec<_> = self.shown.drain(..known).collect();
        let explained = Explained::new(self, given_back);
        let mut found = Vec::new();
        for now in shown.chunk_by(|a, b| a.at == b.at) {
            // Of what was decided in the same instant, the last shows most.
            let mut now = now.to_vec();
            now.sort_by_key(|shown| std::cmp::Reverse(shown.count));
            let mut done: Vec<&Limit> = Vec::new();
            for shown in now {
                let limit = limit(shown.terms, shown.limit);
                if shown.at < begin || done.contains(&limit) {
                    continue;
                }
                done.push(limit);
                if let Some(window) = Window::at(limit, shown.at) {
                    self.reach = self.reach.max(limit.window());
                    found.extend(self.unexplained(shown, limit, window, &explained, unlogged));
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

    fn unexplained(
        &mut self,
        shown: Shown,
        limit: &Limit,
        window: Window,
        explained: &Explained,
        unlogged: &Unlogged,
    ) -> Option<Unexplained> {
        let Shown { at, by, count, place, .. } = shown;
        let most = explained.most(window.since, by);
        let most = most.saturating_add(unlogged.most(window.since, at, self));
        let shape = (mem::discriminant(limit), limit.window());
        let known = self.before.iter().position(|(known, _)| *known == shape);
        let number = known.unwrap_or_else(|| {
            self.before.push((shape, u64::MAX));
            self.before.len() - 1
        });
        let before = &mut self.before[number].1;
        if window.since > self.begin {
            *before = 0;
        }
        // Dollars are read as binary numbers, whose last digit may be wrong.
        let rounded = if self.unit == Charge::MONEY { 2 } else { 0 };
        let explained_most = most.saturating_add(*before).saturating_add(rounded);
        // A settlement without an answer may have given back anything.
        let least = match unlogged.is_unanswered_before(at) {
            true => 0,
            false => explained.least(window.certain, at),
        };
        *before = (*before).min(count.saturating_sub(least));
        // Of a sample of denials it is not known what a cluster took back.
        let knows = !(unlogged.denials_sampled && self.across_slots);
        let explained = explained_most;
        (knows && count > explained).then_some(Unexplained { at, place, count, explained })
    }
}

/// The window of a limit at an instant.
#[derive(Clone, Copy)]
struct Window {
    /// What counts came after this; maybe not all that did.
    since: Timestamp,
    /// All that came after this counts.
    certain: Timestamp,
}

impl Window {
    fn at(limit: &Limit, at: Timestamp) -> Option<Self> {
        match limit {
            Limit::Exact(rate) => {
                let since = at - rate.window.span();
                Some(Self { since, certain: since })
            }
            // What is in a slice of a hundredth leaves with it.
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

/// Sums over entries.
struct Explained {
    /// By when they may have been counted at first, and by when they leave.
    entered: Sums,
    left: Sums,
    /// By when they were counted at last, and by when they may have left.
    certain: Sums,
    gone: Sums,
    /// What may have been given back by itself.
    lapsed: Sums,
    /// What was given back: by when at last, by when at first, and by when it would have left.
    returned: Sums,
    returned_early: Sums,
    returned_left: Sums,
    refunded: Sums,
    /// Something was given back of which nothing is known.
    given_back: bool,
}

impl Explained {
    fn new(count: &Count, given_back: bool) -> Self {
        let Count { entries, returned, refunded, .. } = count;
        let sums = |at: fn(&Entry) -> Timestamp| {
            Sums::new(entries.iter().map(|entry| (at(entry), entry.amount)))
        };
        let back = |at: fn(&Returned) -> Timestamp| {
            Sums::new(returned.iter().map(|returned| (at(returned), returned.amount)))
        };
        let lapsed = entries.iter().filter_map(|entry| Some((entry.until?, entry.amount)));
        Self {
            entered: sums(|entry| entry.earliest),
            left: sums(|entry| entry.from),
            certain: sums(|entry| entry.latest),
            gone: sums(|entry| entry.earliest),
            lapsed: Sums::new(lapsed),
            returned: back(|returned| returned.latest),
            returned_early: back(|returned| returned.earliest),
            returned_left: back(|returned| returned.from),
            refunded: Sums::new(refunded.iter().copied()),
            given_back,
        }
    }

    /// The most that can have been counted in (since, at].
    fn most(&self, since: Timestamp, at: Timestamp) -> u64 {
        // What was given back in the same instant may have been counted still.
        let returned = self.returned.until(at - Span::from_micros(1));
        let returned = returned.saturating_sub(self.returned_left.until(since));
        let entered = self.entered.until(at).saturating_sub(self.left.until(since));
        entered.saturating_sub(returned)
    }

    /// What was certainly counted then.
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

/// Sums of amounts by instants.
struct Sums(Vec<(Timestamp, u64)>);

impl Sums {
    fn new(amounts: impl Iterator<Item = (Timestamp, u64)>) -> Self {
        let mut sums: Vec<_> = amounts.collect();
        sums.sort_unstable();
        let mut sum = 0_u64;
        for (_, amount) in &mut sums {
            sum = sum.saturating_add(*amount);
            *amount = sum;
        }
        Self(sums)
    }

    /// The sum of all amounts until an instant, itself included.
    fn until(&self, at: Timestamp) -> u64 {
        let place = self.0.partition_point(|(instant, _)| *instant <= at);
        place.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}
