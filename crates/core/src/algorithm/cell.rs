//! [`Cell`]: the usage of one key, for every algorithm.
//!
//! A store finds and locks the cells of a plan; the operations in this file change them.

use serde::{Deserialize, Serialize};

use super::bucket::{self, Bucket};
use super::concurrency::Leases;
use super::log::{self, Log};
use super::window::{self, Slices};
use super::{EarliestStart, Meter, Reading, Slack};
use crate::id::Id;
use crate::limit::Boundaries;
use crate::time::{Span, Timestamp};

/// The usage of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell(CellContent);

/// Content of a cell. Most cells have only a state, and pay no memory for the extras.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum CellContent {
    Plain(CellState),
    Extended(Box<(CellState, CellExtras)>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct CellExtras {
    /// Estimates that are given back unless they are settled in time, the first due first.
    holds: Vec<Hold>,
    /// Time of the last reset. Earlier uses are not amended any more, because that would change
    /// usage written after the reset.
    reset_at: Option<Timestamp>,
    /// Usage taken over from a shared cell: the number of log entries, and the time of the newest.
    inherited: Option<(u64, Timestamp)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum CellState {
    Log(Log),
    Slices(Slices),
    Bucket(Bucket),
    Leases(Leases),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hold {
    until: Timestamp,
    id: Id,
    used: CellCharge,
}

/// An amount written to a cell, and its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellCharge {
    /// The amount.
    pub amount: u64,
    /// Its position.
    pub position: CellPosition,
}

/// Position of a charge in its cell, with everything that is needed to change it without its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CellPosition {
    /// Entries of a log with this score.
    Log(Timestamp),
    /// The slice with this end, of a window of this length.
    Slice(Timestamp, Span),
    /// The period with this end, one of those between the boundaries.
    Period(Timestamp, [Timestamp; 3]),
    /// A bucket.
    Bucket {
        /// Record of the amount taken.
        charge: bucket::BucketWithdrawal,
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
            Meter::Log(_) => CellState::Log(Log::default()),
            Meter::Windowed(_) | Meter::Calendar(_) => CellState::Slices(Slices::default()),
            Meter::Bucket(_) => CellState::Bucket(Bucket::default()),
            Meter::Leases(_) => CellState::Leases(Leases::default()),
        };
        Self(CellContent::Plain(state))
    }

    fn state(&self) -> &CellState {
        match &self.0 {
            CellContent::Plain(state) => state,
            CellContent::Extended(both) => &both.0,
        }
    }

    fn state_mut(&mut self) -> &mut CellState {
        match &mut self.0 {
            CellContent::Plain(state) => state,
            CellContent::Extended(both) => &mut both.0,
        }
    }

    fn extras(&self) -> Option<&CellExtras> {
        match &self.0 {
            CellContent::Plain(_) => None,
            CellContent::Extended(both) => Some(&both.1),
        }
    }

    fn extras_mut(&mut self) -> Option<&mut CellExtras> {
        match &mut self.0 {
            CellContent::Plain(_) => None,
            CellContent::Extended(both) => Some(&mut both.1),
        }
    }

    /// Adds the extras if there are none, and returns them.
    fn add_extras(&mut self) -> &mut CellExtras {
        if let CellContent::Plain(state) = &mut self.0 {
            let state = std::mem::replace(state, CellState::Log(Log::default()));
            self.0 = CellContent::Extended(Box::new((state, CellExtras::default())));
        }
        self.extras_mut().expect("it was just made one")
    }

    /// Creates an unused cell of the kind in which this use was written.
    pub fn for_position(position: CellPosition) -> Self {
        let state = match position {
            CellPosition::Log(_) => CellState::Log(Log::default()),
            CellPosition::Slice(..) | CellPosition::Period(..) => {
                CellState::Slices(Slices::default())
            }
            CellPosition::Bucket { .. } => CellState::Bucket(Bucket::default()),
            CellPosition::Lease(_) => CellState::Leases(Leases::default()),
        };
        Self(CellContent::Plain(state))
    }

    /// Creates a cell for a key that was counted in this cell together with other keys.
    ///
    /// It assumes that all usage belongs to the key and is as recent as the newest use, so the key
    /// can't start from zero. Its size does not depend on the usage.
    #[must_use]
    pub fn successor(&self) -> Self {
        let state = match self.state() {
            CellState::Log(log) => {
                let inherited = log.last().map(|last| (log.scores().len() as u64, last));
                let extras = CellExtras { inherited, ..CellExtras::default() };
                return Self(CellContent::Extended(Box::new((
                    CellState::Log(Log::default()),
                    extras,
                ))));
            }
            CellState::Slices(slices) => CellState::Slices(slices.merged()),
            CellState::Bucket(bucket) => CellState::Bucket(bucket.without_run()),
            CellState::Leases(leases) => CellState::Leases(leases.merged()),
        };
        Self(CellContent::Plain(state))
    }

    fn inherited(&self) -> Option<(u64, Timestamp)> {
        self.extras()?.inherited
    }

    /// Updates the cell to `now`: gives back estimates that are due and removes expired usage.
    pub fn advance(&mut self, meter: &Meter<'_>, now: Timestamp) {
        self.give_back_due(now);
        match (self.state_mut(), meter) {
            (CellState::Log(log), Meter::Log(quotas)) => log.purge(quotas, now),
            (CellState::Slices(slices), Meter::Windowed(quota)) => slices.purge(quota.window, now),
            (CellState::Slices(slices), Meter::Calendar(_)) => slices.purge(Span::ZERO, now),
            (CellState::Leases(leases), _) => leases.purge(now),
            _ => {}
        }
    }

    /// Gives back the estimates that were not settled in time.
    pub fn give_back_due(&mut self, now: Timestamp) {
        let Some(extras) = self.extras_mut() else { return };
        let due = extras.holds.iter().take_while(|hold| hold.until <= now).count();
        let due: Vec<Hold> = extras.holds.drain(..due).collect();
        for hold in due {
            // As of the due time, so that the result does not depend on the time of this call.
            self.give_back(hold.used, hold.until);
        }
    }

    /// Returns the first instant from `from` on at which `need` fits and may be used up to `slack`
    /// later.
    pub fn earliest(
        &self,
        meter: &Meter<'_>,
        from: Timestamp,
        need: u64,
        slack: Slack,
    ) -> EarliestStart {
        match (self.state(), meter) {
            (CellState::Log(log), Meter::Log(quotas)) => match self.inherited() {
                None => log.earliest(quotas, from, need),
                Some(inherited) => earliest_with_inherited(log, quotas, inherited, from, need),
            },
            (CellState::Slices(slices), Meter::Windowed(quota)) => {
                slices.earliest(*quota, from, need)
            }
            (CellState::Slices(slices), Meter::Calendar(quota)) => {
                slices.earliest_in_calendar(*quota, from, need, slack.span)
            }
            (CellState::Bucket(bucket), Meter::Bucket(quota)) => {
                bucket.earliest(*quota, from, need, slack.owner)
            }
            (CellState::Leases(leases), Meter::Leases(quota)) => {
                leases.earliest(*quota, from, need)
            }
            _ => unreachable!("a cell's identity includes the kind of its meter"),
        }
    }

    /// Writes `amount` for `id`, to be used between `start` and `start + slack`.
    pub fn take(
        &mut self,
        meter: &Meter<'_>,
        start: Timestamp,
        slack: Slack,
        amount: u64,
        id: Id,
    ) -> CellCharge {
        let latest = start + slack.span;
        let position = match (self.state_mut(), meter) {
            (CellState::Log(log), Meter::Log(_)) => {
                log.take(latest, amount);
                CellPosition::Log(latest)
            }
            (CellState::Slices(slices), Meter::Windowed(quota)) => {
                let end = quota.slice(latest);
                return CellCharge {
                    amount: slices.take(end, amount),
                    position: CellPosition::Slice(end, quota.window),
                };
            }
            (CellState::Slices(slices), Meter::Calendar(quota)) => {
                let end = quota.boundaries.period(start).map_or(start, |(_, end)| end);
                let position = CellPosition::Period(end, quota.boundaries.0);
                return CellCharge { amount: slices.take(end, amount), position };
            }
            (CellState::Bucket(bucket), Meter::Bucket(quota)) => CellPosition::Bucket {
                charge: bucket.take(*quota, start, slack, amount),
                drain_ns: quota.drain_ns(),
                grain: quota.grain(),
            },
            (CellState::Leases(leases), Meter::Leases(quota)) => {
                let until = start + quota.lease;
                leases.take(id, amount, until);
                CellPosition::Lease(until)
            }
            _ => unreachable!("a cell's identity includes the kind of its meter"),
        };
        CellCharge { amount, position }
    }

    /// Gives back a charge. The entry is amended at its own time, so nothing is given back twice,
    /// and nothing at all if it has expired since. A lease is ended by [`Cell::release`].
    pub fn give_back(&mut self, used: CellCharge, now: Timestamp) {
        match (self.state_mut(), used.position) {
            (CellState::Log(log), CellPosition::Log(at)) => log.give_back(at, used.amount),
            (
                CellState::Slices(slices),
                CellPosition::Slice(end, _) | CellPosition::Period(end, _),
            ) => {
                slices.give_back(end, used.amount);
            }
            (CellState::Bucket(bucket), CellPosition::Bucket { charge, drain_ns, grain }) => {
                let quota = bucket::BucketQuota::raw(drain_ns, grain);
                bucket.give_back(quota, charge, used.amount, now);
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
            (CellState::Log(log), Meter::Log(_)) => log.refund(now, amount),
            (CellState::Slices(slices), Meter::Windowed(quota)) => {
                slices.refund(quota.slice(now), amount);
            }
            (CellState::Slices(slices), Meter::Calendar(quota)) => {
                let end = quota.boundaries.period(now).map_or(now, |(_, end)| end);
                slices.give_back(end, amount);
            }
            (CellState::Bucket(bucket), Meter::Bucket(quota)) => bucket.refund(*quota, amount, now),
            _ => {}
        }
    }

    /// Leaves no room before `until`. Works only on a gate, which is a bucket.
    pub fn close(&mut self, until: Timestamp) {
        if let CellState::Bucket(bucket) = self.state_mut() {
            bucket.fill_until(until);
        }
    }

    /// Charges `amount` at `now` even if it does not fit, next to the charge at `position`.
    pub fn charge_debt(&mut self, position: CellPosition, amount: u64, now: Timestamp) {
        match (self.state_mut(), position) {
            (CellState::Log(log), CellPosition::Log(_)) => log.take(now, amount),
            (CellState::Slices(slices), CellPosition::Slice(_, window)) => {
                slices.take(window::WindowQuota { limit: 0, window }.slice(now), amount);
            }
            (CellState::Slices(slices), CellPosition::Period(end, boundaries)) => {
                // A settlement after the known periods belongs to the period of its use.
                let end = Boundaries(boundaries).period(now).map_or(end, |(_, end)| end);
                slices.take(end, amount);
            }
            (CellState::Bucket(bucket), CellPosition::Bucket { drain_ns, grain, .. }) => {
                bucket.take(bucket::BucketQuota::raw(drain_ns, grain), now, Slack::NONE, amount);
            }
            _ => {}
        }
    }

    /// Ends the lease of `id`. Returns true if it was still held.
    pub fn release(&mut self, id: Id, position: CellPosition) -> bool {
        match (self.state_mut(), position) {
            (CellState::Leases(leases), CellPosition::Lease(until)) => leases.release(id, until),
            _ => false,
        }
    }

    /// Extends the lease of `id` to `later`. Returns its new position, or `None` if it has expired.
    pub fn renew(
        &mut self,
        id: Id,
        position: CellPosition,
        later: Timestamp,
    ) -> Option<CellPosition> {
        match (self.state_mut(), position) {
            (CellState::Leases(leases), CellPosition::Lease(until)) => {
                leases.renew(id, until, later).then_some(CellPosition::Lease(later.max(until)))
            }
            _ => None,
        }
    }

    /// Returns true if the lease of `id` is still held.
    pub fn has_lease(&self, id: Id, position: CellPosition) -> bool {
        match (self.state(), position) {
            (CellState::Leases(leases), CellPosition::Lease(until)) => leases.is_held(id, until),
            _ => false,
        }
    }

    /// Gives the use back automatically at `until`, unless [`Cell::end_hold`] is called before.
    pub fn hold(&mut self, id: Id, until: Timestamp, used: CellCharge) {
        let holds = &mut self.add_extras().holds;
        let place = holds.partition_point(|hold| hold.until <= until);
        holds.insert(place, Hold { until, id, used });
    }

    /// Ends a hold, unless it was due before.
    pub fn end_hold(&mut self, id: Id, until: Timestamp) {
        if let Some(extras) = self.extras_mut() {
            extras.holds.retain(|hold| hold.until != until || hold.id != id);
        }
    }

    /// Removes everything that was written until `now`.
    pub fn reset(&mut self, meter: &Meter<'_>, now: Timestamp) {
        *self = Self::new(meter);
        self.add_extras().reset_at = Some(now);
    }

    /// Returns true if a use written at `at` was removed by a reset.
    pub fn was_reset_after(&self, at: Timestamp) -> bool {
        self.extras().is_some_and(|extras| extras.reset_at.is_some_and(|reset| at <= reset))
    }

    /// Calls `visit` with the usage of each limit of the meter at `now`.
    pub fn readings(&self, meter: &Meter<'_>, now: Timestamp, mut visit: impl FnMut(Reading)) {
        match (self.state(), meter) {
            (CellState::Log(log), Meter::Log(quotas)) => {
                for &quota in quotas.iter() {
                    let mut reading = log.reading(quota, now);
                    if let Some((amount, at)) = self.inherited()
                        && at + quota.window > now
                    {
                        reading.used += amount;
                        reading.shared = true;
                        reading.reset = reading.reset.max(at + quota.window);
                    }
                    visit(reading);
                }
            }
            (CellState::Slices(slices), Meter::Windowed(quota)) => {
                visit(slices.reading(*quota, now))
            }
            (CellState::Slices(slices), Meter::Calendar(quota)) => {
                visit(slices.reading_in_calendar(*quota, now));
            }
            (CellState::Bucket(bucket), Meter::Bucket(quota)) => visit(bucket.reading(*quota, now)),
            (CellState::Leases(leases), Meter::Leases(_)) => visit(leases.reading(now)),
            _ => unreachable!("a cell's identity includes the kind of its meter"),
        }
    }

    /// Returns the time at which all usage has expired, if uses count for `window`.
    pub fn expires(&self, window: Span) -> Timestamp {
        let state = match self.state() {
            CellState::Log(log) => log.last().map(|last| last + window),
            CellState::Slices(slices) => slices.last().map(|last| last + window),
            CellState::Bucket(bucket) => Some(bucket.empty_at()),
            CellState::Leases(leases) => leases.last(),
        };
        let Some(extras) = self.extras() else { return state.unwrap_or_default() };
        let hold = extras.holds.last().map(|hold| hold.until);
        let inherited = extras.inherited.map(|(_, at)| at + window);
        [state, hold, inherited].into_iter().flatten().max().unwrap_or_default()
    }
}

/// Returns the earliest time for a log with inherited entries: before these expire, if there is
/// room for both, or after.
fn earliest_with_inherited(
    log: &Log,
    quotas: &[log::LogQuota],
    (amount, at): (u64, Timestamp),
    from: Timestamp,
    need: u64,
) -> EarliestStart {
    let mut earliest = EarliestStart::at(from);
    for (index, quota) in quotas.iter().enumerate() {
        let alone = log.earliest(&[*quota], from, need);
        let beside = log.earliest(&[*quota], from, need.saturating_add(amount));
        let start = match (alone, beside) {
            (EarliestStart::At { start: alone, .. }, EarliestStart::At { start: beside, .. }) => {
                beside.min(alone.max(at + quota.window))
            }
            (EarliestStart::At { start: alone, .. }, _) => alone.max(at + quota.window),
            (never, _) => return never.of_limit(index),
        };
        if let EarliestStart::At { start: other, .. } = earliest
            && start > other
        {
            earliest = EarliestStart::At { start, limit: index };
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

    fn start(cell: &Cell, meter: &Meter<'_>, from: u64, need: u64) -> EarliestStart {
        cell.earliest(meter, at(from), need, Slack::NONE)
    }

    #[test]
    fn a_cell_leaves_room_for_its_name_in_a_cache_line() {
        assert_eq!(size_of::<Option<Cell>>(), 40);
    }

    #[test]
    fn a_successor_starts_with_all_usage_of_the_shared_cell() {
        let quotas = [log::LogQuota { limit: 5, window: Span::from_secs(10) }];
        let meter = Meter::Log((&quotas[..]).into());
        let mut shared = Cell::new(&meter);
        for second in [1, 2, 3] {
            shared.take(&meter, at(second), Slack::NONE, 1, Id::from_bits(0));
        }
        let mut successor = shared.successor();
        assert_eq!(start(&successor, &meter, 4, 2), EarliestStart::at(at(4)));
        assert_eq!(start(&successor, &meter, 4, 3), EarliestStart::at(at(13)));
        successor.take(&meter, at(4), Slack::NONE, 2, Id::from_bits(0));
        assert_eq!(start(&successor, &meter, 5, 1), EarliestStart::at(at(13)));
        assert_eq!(start(&successor, &meter, 5, 4), EarliestStart::at(at(14)));
        assert_eq!(start(&successor, &meter, 5, 6), EarliestStart::Never { limit: 0 });
        let mut readings = Vec::new();
        successor.readings(&meter, at(5), |reading| readings.push(reading));
        successor.readings(&meter, at(13), |reading| readings.push(reading));
        assert_eq!(readings.iter().map(|reading| reading.used).collect::<Vec<_>>(), [5, 2]);
        assert_eq!(successor.expires(Span::from_secs(10)), at(14));
    }

    #[test]
    fn every_kind_of_cell_has_a_successor() {
        let window = Meter::Windowed(window::WindowQuota { limit: 9, window: Span::from_secs(10) });
        let slots = Meter::Leases(concurrency::SlotQuota { limit: 3, lease: Span::from_secs(30) });
        for (meter, amounts, free) in [(window, [4, 3], at(12)), (slots, [1, 1], at(32))] {
            let mut shared = Cell::new(&meter);
            for (second, amount) in (1..).zip(amounts) {
                shared.take(&meter, at(second), Slack::NONE, amount, Id::from_bits(second.into()));
            }
            let successor = shared.successor();
            let limit = meter.limit(0);
            let rest = limit - amounts.iter().sum::<u64>();
            assert_eq!(start(&successor, &meter, 3, rest), EarliestStart::at(at(3)));
            assert_eq!(start(&successor, &meter, 3, rest + 1), EarliestStart::at(free));
        }
    }
}
