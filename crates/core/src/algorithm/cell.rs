//! One cell: the state of one key, whichever algorithm measures it.
//!
//! A store finds the cells of a Plan and holds them still; what happens inside is decided here.

use serde::{Deserialize, Serialize};

use super::bucket::{self, Bucket};
use super::concurrency::Leases;
use super::log::Log;
use super::window::{self, Slices};
use super::{Earliest, Meter, Reading};
use crate::id::Id;
use crate::limit::Boundaries;
use crate::time::{Span, Timestamp};

/// The usage of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    state: State,
    /// Most cells have none, and spend a pointer on it.
    rare: Option<Box<Rare>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Rare {
    /// Estimates that are given back if nobody settles them in time, the first due first.
    holds: Vec<Hold>,
    /// What was written until then is forgotten: amending it would touch what others wrote since.
    reset_at: Option<Timestamp>,
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
        /// When this use has drained.
        drained_at_ns: u64,
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
        Self { state, rare: None }
    }

    /// An unused cell of the kind in which this use was written.
    pub fn for_mark(mark: Mark) -> Self {
        let state = match mark {
            Mark::Log(_) => State::Log(Log::default()),
            Mark::Slice(..) | Mark::Period(..) => State::Slices(Slices::default()),
            Mark::Bucket { .. } => State::Bucket(Bucket::default()),
            Mark::Lease(_) => State::Leases(Leases::default()),
        };
        Self { state, rare: None }
    }

    /// Brings the cell to `now`: estimates that are due are given back, what has left is forgotten.
    pub fn advance(&mut self, meter: &Meter<'_>, now: Timestamp) {
        self.give_back_due(now);
        match (&mut self.state, meter) {
            (State::Log(log), Meter::Log(quotas)) => log.purge(quotas, now),
            (State::Slices(slices), Meter::Windowed(quota)) => slices.purge(quota.window, now),
            (State::Slices(slices), Meter::Calendar(_)) => slices.purge(Span::ZERO, now),
            (State::Leases(leases), _) => leases.purge(now),
            _ => {}
        }
    }

    /// Gives back the estimates that nobody settled in time.
    pub fn give_back_due(&mut self, now: Timestamp) {
        let Some(rare) = &mut self.rare else { return };
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
        match (&self.state, meter) {
            (State::Log(log), Meter::Log(quotas)) => log.earliest(quotas, from, need),
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
        let mark = match (&mut self.state, meter) {
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
                drained_at_ns: bucket.take(*quota, latest, amount),
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
        match (&mut self.state, used.mark) {
            (State::Log(log), Mark::Log(at)) => log.give_back(at, used.amount),
            (State::Slices(slices), Mark::Slice(end, _) | Mark::Period(end, _)) => {
                slices.give_back(end, used.amount);
            }
            (State::Bucket(bucket), Mark::Bucket { drained_at_ns, drain_ns, grain }) => {
                let quota = bucket::Quota::raw(drain_ns, grain);
                bucket.give_back(quota, drained_at_ns, used.amount, now);
            }
            _ => {}
        }
    }

    /// Charges `amount` at `now` whether or not it fits, beside the use that `mark` describes.
    pub fn charge_debt(&mut self, mark: Mark, amount: u64, now: Timestamp) {
        match (&mut self.state, mark) {
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
        match (&mut self.state, mark) {
            (State::Leases(leases), Mark::Lease(until)) => leases.release(id, until),
            _ => false,
        }
    }

    /// Makes the lease of `id` last until `later`; its new mark, unless it has expired.
    pub fn renew(&mut self, id: Id, mark: Mark, later: Timestamp) -> Option<Mark> {
        match (&mut self.state, mark) {
            (State::Leases(leases), Mark::Lease(until)) => {
                leases.renew(id, until, later).then_some(Mark::Lease(later.max(until)))
            }
            _ => None,
        }
    }

    /// Whether the lease of `id` is still there.
    pub fn leased(&self, id: Id, mark: Mark) -> bool {
        match (&self.state, mark) {
            (State::Leases(leases), Mark::Lease(until)) => leases.held(id, until),
            _ => false,
        }
    }

    /// Gives the use back by itself at `until`, unless [`Cell::unhold`] comes before.
    pub fn hold(&mut self, id: Id, until: Timestamp, used: Use) {
        let holds = &mut self.rare.get_or_insert_default().holds;
        let place = holds.partition_point(|hold| hold.until <= until);
        holds.insert(place, Hold { until, id, used });
    }

    /// Ends a hold, unless it was due before.
    pub fn unhold(&mut self, id: Id, until: Timestamp) {
        if let Some(rare) = &mut self.rare {
            rare.holds.retain(|hold| hold.until != until || hold.id != id);
        }
    }

    /// Forgets everything that was written until `now`.
    pub fn reset(&mut self, meter: &Meter<'_>, now: Timestamp) {
        *self = Self::new(meter);
        self.rare.get_or_insert_default().reset_at = Some(now);
    }

    /// Whether what was written at `at` has been forgotten.
    pub fn forgot(&self, at: Timestamp) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.reset_at.is_some_and(|reset| at <= reset))
    }

    /// What each limit of the meter shows at `now`.
    pub fn readings(&self, meter: &Meter<'_>, now: Timestamp, out: &mut impl Extend<Reading>) {
        match (&self.state, meter) {
            (State::Log(log), Meter::Log(quotas)) => {
                out.extend(quotas.iter().map(|&quota| log.reading(quota, now)));
            }
            (State::Slices(slices), Meter::Windowed(quota)) => {
                out.extend([slices.reading(*quota, now)]);
            }
            (State::Slices(slices), Meter::Calendar(quota)) => {
                out.extend([slices.reading_in_calendar(*quota, now)]);
            }
            (State::Bucket(bucket), Meter::Bucket(quota)) => {
                out.extend([bucket.reading(*quota, now)]);
            }
            (State::Leases(leases), Meter::Leases(_)) => out.extend([leases.reading(now)]),
            _ => unreachable!("a cell's identity includes the kind of its meter"),
        }
    }

    /// When nothing is left of it, for uses that count for `window`.
    pub fn expires(&self, window: Span) -> Timestamp {
        let state = match &self.state {
            State::Log(log) => log.last().map(|last| last + window),
            State::Slices(slices) => slices.last().map(|last| last + window),
            State::Bucket(bucket) => Some(bucket.empty_at()),
            State::Leases(leases) => leases.last(),
        };
        let hold = self.rare.as_ref().and_then(|rare| rare.holds.last());
        state.unwrap_or_default().max(hold.map_or(Timestamp::ZERO, |hold| hold.until))
    }
}
