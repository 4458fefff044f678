//! One cell: the state of one key, whichever algorithm measures it.
//!
//! A store finds the cells of a Plan and holds them still; what happens inside is decided here.

use serde::{Deserialize, Serialize};

use super::bucket::{self, Bucket};
use super::concurrency::Leases;
use super::log::{self, Log};
use super::window::{self, Slices};
use super::{Earliest, Meter, Reading};
use crate::id::Id;
use crate::limit::Boundaries;
use crate::time::{Span, Timestamp};

/// The usage of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell(Kind);

/// Most cells are plain and spend nothing on what they do not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Plain(State),
    Rare(Box<(State, Rare)>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Rare {
    /// Estimates that are given back if nobody settles them in time, the first due first.
    holds: Vec<Hold>,
    /// What was written until then is forgotten: amending it would touch what others wrote since.
    reset_at: Option<Timestamp>,
    /// Entries of a log that were counted elsewhere before, all as if at the newest score.
    inherited: Option<(u64, Timestamp)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Log(Log),
    Slices(Slices),
    Bucket(Bucket),
    Leases(Leases),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hold {
    until: Timestamp,
    id: Id,
    used: Use,
}

/// How much was written, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// How much.
    pub amount: u64,
    /// Where.
    pub mark: Mark,
}

/// Where a use was written, with what it takes to amend it without knowing its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    /// As entries of a log at this score.
    Log(Timestamp),
    /// Into the slice with this end, of a window of this length.
    Slice(Timestamp, Span),
    /// Into the period with this end, one of those between the boundaries.
    Period(Timestamp, [Timestamp; 3]),
    /// Into a bucket.
    Bucket {
        /// When this use drains.
        pour: bucket::Pour,
        /// How long one grain takes to drain.
        drain_ns: u64,
        /// How many units drain as one.
        grain: u64,
    },
    /// As a lease until this instant.
    Lease(Timestamp),
}

impl Cell {
    /// An unused cell for this kind of meter.
    pub fn new(meter: &Meter<'_>) -> Self {
        let state = match meter {
            Meter::Log(_) => State::Log(Log::default()),
            Meter::Windowed(_) | Meter::Calendar(_) => State::Slices(Slices::default()),
            Meter::Bucket(_) => State::Bucket(Bucket::default()),
            Meter::Leases(_) => State::Leases(Leases::default()),
        };
        Self(Kind::Plain(state))
    }

    fn state(&self) -> &State {
        match &self.0 {
            Kind::Plain(state) => state,
            Kind::Rare(both) => &both.0,
        }
    }

    fn state_mut(&mut self) -> &mut State {
        match &mut self.0 {
            Kind::Plain(state) => state,
            Kind::Rare(both) => &mut both.0,
        }
    }

    fn rare(&self) -> Option<&Rare> {
        match &self.0 {
            Kind::Plain(_) => None,
            Kind::Rare(both) => Some(&both.1),
        }
    }

    fn rare_mut(&mut self) -> Option<&mut Rare> {
        match &mut self.0 {
            Kind::Plain(_) => None,
            Kind::Rare(both) => Some(&mut both.1),
        }
    }

    /// Makes it one of the rare kind.
    fn make_rare(&mut self) -> &mut Rare {
        if let Kind::Plain(state) = &mut self.0 {
            let state = std::mem::replace(state, State::Log(Log::default()));
            self.0 = Kind::Rare(Box::new((state, Rare::default())));
        }
        self.rare_mut().expect("it was just made one")
    }

    /// An unused cell of the kind in which this use was written.
    pub fn for_mark(mark: Mark) -> Self {
        let state = match mark {
            Mark::Log(_) => State::Log(Log::default()),
            Mark::Slice(..) | Mark::Period(..) => State::Slices(Slices::default()),
            Mark::Bucket { .. } => State::Bucket(Bucket::default()),
            Mark::Lease(_) => State::Leases(Leases::default()),
        };
        Self(Kind::Plain(state))
    }

    /// A cell for somebody whose usage was counted in this one, together with that of others.
    ///
    /// All of it is taken to be theirs and to have come last, so they can't start from nothing.
    /// It takes the same room however much there is.
    #[must_use]
    pub fn heir(&self) -> Self {
        let state = match self.state() {
            State::Log(log) => {
                let inherited = log.last().map(|last| (log.scores().len() as u64, last));
                let rare = Rare { inherited, ..Rare::default() };
                return Self(Kind::Rare(Box::new((State::Log(Log::default()), rare))));
            }
            State::Slices(slices) => State::Slices(slices.merged()),
            State::Bucket(bucket) => State::Bucket(*bucket),
            State::Leases(leases) => State::Leases(leases.merged()),
        };
        Self(Kind::Plain(state))
    }

    fn inherited(&self) -> Option<(u64, Timestamp)> {
        self.rare()?.inherited
    }

    /// Brings the cell to `now`: estimates that are due are given back, what has left is forgotten.
    pub fn advance(&mut self, meter: &Meter<'_>, now: Timestamp) {
        self.give_back_due(now);
        match (self.state_mut(), meter) {
            (State::Log(log), Meter::Log(quotas)) => log.purge(quotas, now),
            (State::Slices(slices), Meter::Windowed(quota)) => slices.purge(quota.window, now),
            (State::Slices(slices), Meter::Calendar(_)) => slices.purge(Span::ZERO, now),
            (State::Leases(leases), _) => leases.purge(now),
            _ => {}
        }
    }

    /// Gives back the estimates that nobody settled in time.
    pub fn give_back_due(&mut self, now: Timestamp) {
        let Some(rare) = self.rare_mut() else { return };
        let due = rare.holds.iter().take_while(|hold| hold.until <= now).count();
        let due: Vec<Hold> = rare.holds.drain(..due).collect();
        for hold in due {
            // As of the instant at which it was due, so that it does not matter who comes by
            // first or how late.
            self.give_back(hold.used, hold.until);
        }
    }

    /// The first instant from `from` on at which `need` fit, with `slack` to use it late.
    pub fn earliest(&self, meter: &Meter<'_>, from: Timestamp, need: u64, slack: Span) -> Earliest {
        match (self.state(), meter) {
            (State::Log(log), Meter::Log(quotas)) => match self.inherited() {
                None => log.earliest(quotas, from, need),
                Some(inherited) => earliest_of_heir(log, quotas, inherited, from, need),
            },
            (State::Slices(slices), Meter::Windowed(quota)) => slices.earliest(*quota, from, need),
            (State::Slices(slices), Meter::Calendar(quota)) => {
                slices.earliest_in_calendar(*quota, from, need, slack)
            }
            (State::Bucket(bucket), Meter::Bucket(quota)) => bucket.earliest(*quota, from, need),
            (State::Leases(leases), Meter::Leases(quota)) => leases.earliest(*quota, from, need),
            _ => unreachable!("a cell's identity includes the kind of its meter"),
        }
    }

    /// Writes `amount`, to be used between `start` and `start + slack`, for `id`.
    pub fn take(
        &mut self,
        meter: &Meter<'_>,
        start: Timestamp,
        slack: Span,
        amount: u64,
        id: Id,
    ) -> Use {
        let latest = start + slack;
        let mark = match (self.state_mut(), meter) {
            (State::Log(log), Meter::Log(_)) => {
                log.take(latest, amount);
                Mark::Log(latest)
            }
            (State::Slices(slices), Meter::Windowed(quota)) => {
                let end = quota.slice(latest);
                return Use {
                    amount: slices.take(end, amount),
                    mark: Mark::Slice(end, quota.window),
                };
            }
            (State::Slices(slices), Meter::Calendar(quota)) => {
                let end = quota.boundaries.period(start).map_or(start, |(_, end)| end);
                let mark = Mark::Period(end, quota.boundaries.0);
                return Use { amount: slices.take(end, amount), mark };
            }
            (State::Bucket(bucket), Meter::Bucket(quota)) => Mark::Bucket {
                pour: bucket.take(*quota, latest, amount),
                drain_ns: quota.drain_ns(),
                grain: quota.grain(),
            },
            (State::Leases(leases), Meter::Leases(quota)) => {
                let until = start + quota.lease;
                leases.take(id, amount, until);
                Mark::Lease(until)
            }
            _ => unreachable!("a cell's identity includes the kind of its meter"),
        };
        Use { amount, mark }
    }

    /// Lets go of a use: the entry is amended at its own time, so nothing is given back twice, and
    /// nothing at all if it has left in the meantime. A lease is ended by [`Cell::release`].
    pub fn give_back(&mut self, used: Use, now: Timestamp) {
        match (self.state_mut(), used.mark) {
            (State::Log(log), Mark::Log(at)) => log.give_back(at, used.amount),
            (State::Slices(slices), Mark::Slice(end, _) | Mark::Period(end, _)) => {
                slices.give_back(end, used.amount);
            }
            (State::Bucket(bucket), Mark::Bucket { pour, drain_ns, grain }) => {
                let quota = bucket::Quota::raw(drain_ns, grain);
                bucket.give_back(quota, pour, used.amount, now);
            }
            _ => {}
        }
    }

    /// Gives back up to `amount` that nobody can name, of what was written until `now`.
    ///
    /// The oldest goes first: whichever was meant, what stays counts longest.
    pub fn refund(&mut self, meter: &Meter<'_>, now: Timestamp, amount: u64) {
        match (self.state_mut(), meter) {
            (State::Log(log), Meter::Log(_)) => log.refund(now, amount),
            (State::Slices(slices), Meter::Windowed(quota)) => {
                slices.refund(quota.slice(now), amount);
            }
            (State::Slices(slices), Meter::Calendar(quota)) => {
                let end = quota.boundaries.period(now).map_or(now, |(_, end)| end);
                slices.give_back(end, amount);
            }
            (State::Bucket(bucket), Meter::Bucket(quota)) => bucket.refund(*quota, amount, now),
            _ => {}
        }
    }

    /// Leaves no room before `until`; only a gate, which is a bucket, can.
    pub fn close(&mut self, until: Timestamp) {
        if let State::Bucket(bucket) = self.state_mut() {
            bucket.fill_until(until);
        }
    }

    /// Charges `amount` at `now` whether or not it fits, beside the use that `mark` describes.
    pub fn charge_debt(&mut self, mark: Mark, amount: u64, now: Timestamp) {
        match (self.state_mut(), mark) {
            (State::Log(log), Mark::Log(_)) => log.take(now, amount),
            (State::Slices(slices), Mark::Slice(_, window)) => {
                slices.take(window::Quota { limit: 0, window }.slice(now), amount);
            }
            (State::Slices(slices), Mark::Period(end, boundaries)) => {
                // Settled later than the periods that were known: it belongs to the one it began in.
                let end = Boundaries(boundaries).period(now).map_or(end, |(_, end)| end);
                slices.take(end, amount);
            }
            (State::Bucket(bucket), Mark::Bucket { drain_ns, grain, .. }) => {
                bucket.take(bucket::Quota::raw(drain_ns, grain), now, amount);
            }
            _ => {}
        }
    }

    /// Ends the lease of `id`; whether it was still held.
    pub fn release(&mut self, id: Id, mark: Mark) -> bool {
        match (self.state_mut(), mark) {
            (State::Leases(leases), Mark::Lease(until)) => leases.release(id, until),
            _ => false,
        }
    }

    /// Makes the lease of `id` last until `later`; its new mark, unless it has expired.
    pub fn renew(&mut self, id: Id, mark: Mark, later: Timestamp) -> Option<Mark> {
        match (self.state_mut(), mark) {
            (State::Leases(leases), Mark::Lease(until)) => {
                leases.renew(id, until, later).then_some(Mark::Lease(later.max(until)))
            }
            _ => None,
        }
    }

    /// Whether the lease of `id` is still there.
    pub fn leased(&self, id: Id, mark: Mark) -> bool {
        match (self.state(), mark) {
            (State::Leases(leases), Mark::Lease(until)) => leases.held(id, until),
            _ => false,
        }
    }

    /// Gives the use back by itself at `until`, unless [`Cell::unhold`] comes before.
    pub fn hold(&mut self, id: Id, until: Timestamp, used: Use) {
        let holds = &mut self.make_rare().holds;
        let place = holds.partition_point(|hold| hold.until <= until);
        holds.insert(place, Hold { until, id, used });
    }

    /// Ends a hold, unless it was due before.
    pub fn unhold(&mut self, id: Id, until: Timestamp) {
        if let Some(rare) = self.rare_mut() {
            rare.holds.retain(|hold| hold.until != until || hold.id != id);
        }
    }

    /// Forgets everything that was written until `now`.
    pub fn reset(&mut self, meter: &Meter<'_>, now: Timestamp) {
        *self = Self::new(meter);
        self.make_rare().reset_at = Some(now);
    }

    /// Whether what was written at `at` has been forgotten.
    pub fn forgot(&self, at: Timestamp) -> bool {
        self.rare().is_some_and(|rare| rare.reset_at.is_some_and(|reset| at <= reset))
    }

    /// Tells what each limit of the meter shows at `now`.
    pub fn readings(&self, meter: &Meter<'_>, now: Timestamp, mut tell: impl FnMut(Reading)) {
        match (self.state(), meter) {
            (State::Log(log), Meter::Log(quotas)) => {
                for &quota in quotas.iter() {
                    let mut reading = log.reading(quota, now);
                    if let Some((amount, at)) = self.inherited()
                        && at + quota.window > now
                    {
                        reading.used += amount;
                        reading.shared = true;
                        reading.reset = reading.reset.max(at + quota.window);
                    }
                    tell(reading);
                }
            }
            (State::Slices(slices), Meter::Windowed(quota)) => tell(slices.reading(*quota, now)),
            (State::Slices(slices), Meter::Calendar(quota)) => {
                tell(slices.reading_in_calendar(*quota, now));
            }
            (State::Bucket(bucket), Meter::Bucket(quota)) => tell(bucket.reading(*quota, now)),
            (State::Leases(leases), Meter::Leases(_)) => tell(leases.reading(now)),
            _ => unreachable!("a cell's identity includes the kind of its meter"),
        }
    }

    /// When nothing is left of it, for uses that count for `window`.
    pub fn expires(&self, window: Span) -> Timestamp {
        let state = match self.state() {
            State::Log(log) => log.last().map(|last| last + window),
            State::Slices(slices) => slices.last().map(|last| last + window),
            State::Bucket(bucket) => Some(bucket.empty_at()),
            State::Leases(leases) => leases.last(),
        };
        let Some(rare) = self.rare() else { return state.unwrap_or_default() };
        let hold = rare.holds.last().map(|hold| hold.until);
        let inherited = rare.inherited.map(|(_, at)| at + window);
        [state, hold, inherited].into_iter().flatten().max().unwrap_or_default()
    }
}

/// When a log fits beside entries that were inherited: before they leave, if both together have
/// room, or after.
fn earliest_of_heir(
    log: &Log,
    quotas: &[log::Quota],
    (amount, at): (u64, Timestamp),
    from: Timestamp,
    need: u64,
) -> Earliest {
    let mut earliest = Earliest::at(from);
    for (index, quota) in quotas.iter().enumerate() {
        let alone = log.earliest(&[*quota], from, need);
        let beside = log.earliest(&[*quota], from, need.saturating_add(amount));
        let start = match (alone, beside) {
            (Earliest::At { start: alone, .. }, Earliest::At { start: beside, .. }) => {
                beside.min(alone.max(at + quota.window))
            }
            (Earliest::At { start: alone, .. }, _) => alone.max(at + quota.window),
            (never, _) => return never.of_limit(index),
        };
        if let Earliest::At { start: other, .. } = earliest
            && start > other
        {
            earliest = Earliest::At { start, limit: index };
        }
    }
    earliest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{concurrency, log};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn start(cell: &Cell, meter: &Meter<'_>, from: u64, need: u64) -> Earliest {
        cell.earliest(meter, at(from), need, Span::ZERO)
    }

    #[test]
    fn a_cell_leaves_room_for_its_name_in_a_cache_line() {
        assert_eq!(size_of::<Option<Cell>>(), 40);
    }

    #[test]
    fn an_heir_starts_with_all_that_was_counted_together() {
        let quotas = [log::Quota { limit: 5, window: Span::from_secs(10) }];
        let meter = Meter::Log((&quotas[..]).into());
        let mut shared = Cell::new(&meter);
        for second in [1, 2, 3] {
            shared.take(&meter, at(second), Span::ZERO, 1, Id::from_bits(0));
        }
        let mut heir = shared.heir();
        assert_eq!(start(&heir, &meter, 4, 2), Earliest::at(at(4)));
        assert_eq!(start(&heir, &meter, 4, 3), Earliest::at(at(13)));
        heir.take(&meter, at(4), Span::ZERO, 2, Id::from_bits(0));
        assert_eq!(start(&heir, &meter, 5, 1), Earliest::at(at(13)));
        assert_eq!(start(&heir, &meter, 5, 4), Earliest::at(at(14)));
        assert_eq!(start(&heir, &meter, 5, 6), Earliest::Never { limit: 0 });
        let mut readings = Vec::new();
        heir.readings(&meter, at(5), |reading| readings.push(reading));
        heir.readings(&meter, at(13), |reading| readings.push(reading));
        assert_eq!(readings.iter().map(|reading| reading.used).collect::<Vec<_>>(), [5, 2]);
        assert_eq!(heir.expires(Span::from_secs(10)), at(14));
    }

    #[test]
    fn every_kind_of_cell_has_heirs() {
        let window = Meter::Windowed(window::Quota { limit: 9, window: Span::from_secs(10) });
        let slots = Meter::Leases(concurrency::Quota { limit: 3, lease: Span::from_secs(30) });
        for (meter, amounts, free) in [(window, [4, 3], at(12)), (slots, [1, 1], at(32))] {
            let mut shared = Cell::new(&meter);
            for (second, amount) in (1..).zip(amounts) {
                shared.take(&meter, at(second), Span::ZERO, amount, Id::from_bits(second.into()));
            }
            let heir = shared.heir();
            let limit = meter.limit(0);
            let rest = limit - amounts.iter().sum::<u64>();
            assert_eq!(start(&heir, &meter, 3, rest), Earliest::at(at(3)));
            assert_eq!(start(&heir, &meter, 3, rest + 1), Earliest::at(free));
        }
    }
}
