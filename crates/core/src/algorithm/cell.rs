//! [`Cell`]: the usage of one key, for every algorithm.
//!
//! A store finds and locks the cells of a plan; the operations in this file change them.

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

/// Content of a cell. Most cells have only a state, and pay no memory for the extras.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Plain(State),
    Rare(Box<(State, Rare)>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Rare {
    /// Estimates that are given back unless they are settled in time, the first due first.
    holds: Vec<Hold>,
    /// Time of the last reset. Uses written until then are not amended, because that would change
    /// usage written since.
    reset_at: Option<Timestamp>,
    /// Number of log entries that were counted in a shared cell before, and the newest of their
    /// times.
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

/// An amount written to a cell, and its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// The amount.
    pub amount: u64,
    /// Its position.
    pub mark: Mark,
}

/// Position of a use, with all that is needed to amend it without knowing its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    /// Entries of a log with this score.
    Log(Timestamp),
    /// The slice with this end, of a window of this length.
    Slice(Timestamp, Span),
    /// The period with this end, one of those between the boundaries.
    Period(Timestamp, [Timestamp; 3]),
    /// A bucket.
    Bucket {
        /// Record of the amount taken.
        pour: bucket::Pour,
        /// Time in which one grain drains, in nanoseconds.
        drain_ns: u64,
        /// Number of units that drain as one.
        grain: u64,
    },
    /// A lease until this instant.
    Lease(Timestamp),
}

impl Cell {
    /// Creates an unused cell for this meter.
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

    /// Adds the extras if there are none, and returns them.
    fn make_rare(&mut self) -> &mut Rare {
        if let Kind::Plain(state) = &mut self.0 {
            let state = std::mem::replace(state, State::Log(Log::default()));
            self.0 = Kind::Rare(Box::new((state, Rare::default())));
        }
        self.rare_mut().expect("it was just made one")
    }

    /// Creates an unused cell of the kind in which this use was written.
    pub fn for_mark(mark: Mark) -> Self {
        let state = match mark {
            Mark::Log(_) => State::Log(Log::default()),
            Mark::Slice(..) | Mark::Period(..) => State::Slices(Slices::default()),
            Mark::Bucket { .. } => State::Bucket(Bucket::default()),
            Mark::Lease(_) => State::Leases(Leases::default()),
        };
        Self(Kind::Plain(state))
    }

    /// Creates a cell for a key whose usage was counted in this one together with other keys.
    ///
    /// It assumes that all usage is of this key and as new as the newest, so the key can't start
    /// from zero. Its size does not depend on the usage.
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

    /// Updates the cell to `now`: gives back estimates that are due and removes expired usage.
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

    /// Gives back the estimates that were not settled in time.
    pub fn give_back_due(&mut self, now: Timestamp) {
        let Some(rare) = self.rare_mut() else { return };
        let due = rare.holds.iter().take_while(|hold| hold.until <= now).count();
        let due: Vec<Hold> = rare.holds.drain(..due).collect();
        for hold in due {
            // As of the due time, so that the result does not depend on the time of this call.
            self.give_back(hold.used, hold.until);
        }
    }

    /// Returns the first instant from `from` on at which `need` fits and may be used up to `slack`
    /// later.
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

    /// Writes `amount` for `id`, to be used between `start` and `start + slack`.
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

    /// Gives back a use. The entry is amended at its own time, so nothing is given back twice, and
    /// nothing at all if it has expired since. A lease is ended by [`Cell::release`].
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

    /// Gives back up to `amount` of what was written until `now`, for callers that can't name the
    /// use.
    ///
    /// The oldest goes first, so what remains counts longest.
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

    /// Leaves no room before `until`. Works only on a gate, which is a bucket.
    pub fn close(&mut self, until: Timestamp) {
        if let State::Bucket(bucket) = self.state_mut() {
            bucket.fill_until(until);
        }
    }

    /// Charges `amount` at `now` even if it does not fit, next to the use at `mark`.
    pub fn charge_debt(&mut self, mark: Mark, amount: u64, now: Timestamp) {
        match (self.state_mut(), mark) {
            (State::Log(log), Mark::Log(_)) => log.take(now, amount),
            (State::Slices(slices), Mark::Slice(_, window)) => {
                slices.take(window::Quota { limit: 0, window }.slice(now), amount);
            }
            (State::Slices(slices), Mark::Period(end, boundaries)) => {
                // A settlement after the known periods belongs to the period of its use.
                let end = Boundaries(boundaries).period(now).map_or(end, |(_, end)| end);
                slices.take(end, amount);
            }
            (State::Bucket(bucket), Mark::Bucket { drain_ns, grain, .. }) => {
                bucket.take(bucket::Quota::raw(drain_ns, grain), now, amount);
            }
            _ => {}
        }
    }

    /// Ends the lease of `id`. Returns true if it was still held.
    pub fn release(&mut self, id: Id, mark: Mark) -> bool {
        match (self.state_mut(), mark) {
            (State::Leases(leases), Mark::Lease(until)) => leases.release(id, until),
            _ => false,
        }
    }

    /// Extends the lease of `id` to `later`. Returns its new mark, or `None` if it has expired.
    pub fn renew(&mut self, id: Id, mark: Mark, later: Timestamp) -> Option<Mark> {
        match (self.state_mut(), mark) {
            (State::Leases(leases), Mark::Lease(until)) => {
                leases.renew(id, until, later).then_some(Mark::Lease(later.max(until)))
            }
            _ => None,
        }
    }

    /// Returns true if the lease of `id` is still held.
    pub fn leased(&self, id: Id, mark: Mark) -> bool {
        match (self.state(), mark) {
            (State::Leases(leases), Mark::Lease(until)) => leases.held(id, until),
            _ => false,
        }
    }

    /// Gives the use back automatically at `until`, unless [`Cell::unhold`] is called before.
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

    /// Removes everything that was written until `now`.
    pub fn reset(&mut self, meter: &Meter<'_>, now: Timestamp) {
        *self = Self::new(meter);
        self.make_rare().reset_at = Some(now);
    }

    /// Returns true if a use written at `at` was removed by a reset.
    pub fn forgot(&self, at: Timestamp) -> bool {
        self.rare().is_some_and(|rare| rare.reset_at.is_some_and(|reset| at <= reset))
    }

    /// Passes the reading of each limit of the meter at `now` to `tell`.
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

    /// Returns the time at which all usage has expired, if uses count for `window`.
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

/// Returns the earliest time for a log with inherited entries: before these expire, if there is
/// room for both, or after.
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
