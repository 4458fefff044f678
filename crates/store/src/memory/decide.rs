//! Acquire, peek and book: one decision, written or not.

use sluicegate_core::algorithm::{Cell, Earliest};
use sluicegate_core::decision::{Allow, Deny, Never, Readings};
use sluicegate_core::plan::Start;
use sluicegate_core::store::{Error, Shut, Usage};
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_core::{Decision, Plan};
use smallvec::SmallVec;

use super::locked::{Locked, Site, live};
use super::record::{Held, Record, State};
use super::table::{Name, Place, Table};
use super::{Memory, Padded, SWEEP, SWEEP_FULL};
use crate::sync::MutexGuard;

/// What an admission wrote.
pub(super) struct Written {
    pub(super) uses: SmallVec<[Held; 1]>,
    pub(super) shadowed: SmallVec<[u16; 4]>,
}

/// Which charges to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All of them, now.
    All,
    /// What can be booked.
    Bookable,
    /// What could not be booked, for an earlier booking.
    Leases,
}

impl<C: Clock> Memory<C> {
    pub(super) fn acquire_now(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        if !plan.recorded() {
            let names = self.names(plan);
            let mut locked = self.lock(names.iter().map(|name| name.shard()));
            let now = self.now();
            if let Some(places) = locked.in_place(plan, &names, now) {
                return locked.decide_in_place(plan, &places, now);
            }
            let mut sites = self.sites(plan, &names, &mut locked, now);
            return self.decide_locked(plan, &mut locked, &mut sites, now, |locked, sites| {
                self.write(plan, Part::All, locked, sites, now, now, None).shadowed
            });
        }
        let mut records = self.lock_records(plan);
        if let Some(place) = self.known(plan, &mut records) {
            let (record, _) = records.get(place);
            return match record.state {
                State::Cancelled => Err(Error::Gone),
                State::Booked => Err(Error::Conflict),
                _ if record.fingerprint != plan.fingerprint() => Err(Error::Conflict),
                _ if record.leased && !self.holds_leases(record, plan.id.id) => Err(Error::Lost),
                _ => Ok(self.replay(plan, record)),
            };
        }
        self.make_room(&mut records)?;
        let mut until = None;
        let (mut locked, mut sites, now) = self.hold(plan);
        let decision =
            self.decide_locked(plan, &mut locked, &mut sites, now, |locked, sites| {
                let record = Record::new(plan, State::Open(None), now, now);
                let hold = record.hold.map(|hold| hold.until);
                let written = self.write(plan, Part::All, locked, sites, now, now, hold);
                let record = record.with_uses(written.uses);
                until = record.until();
                self.remember(plan, record, &mut records, now);
                written.shadowed
            })?;
        Ok(match decision {
            Decision::Allow(allow) => Decision::Allow(Allow { until, ..allow }),
            denied => denied,
        })
    }

    pub(super) fn peek_now(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        let (mut locked, mut sites, now) = self.hold(plan);
        self.decide_locked(plan, &mut locked, &mut sites, now, |locked, sites| {
            shadowed(plan, locked, sites, now, Span::ZERO)
        })
    }

    /// Decides whether a plan can start now, and lets `admit` write it if so.
    fn decide_locked(
        &self,
        plan: &Plan<'_>,
        locked: &mut Locked<'_>,
        sites: &mut [Site],
        now: Timestamp,
        admit: impl FnOnce(&mut Locked<'_>, &mut [Site]) -> SmallVec<[u16; 4]>,
    ) -> Result<Decision, Error> {
        let start = plan.start(now, false, |index, from| {
            locked.earliest(&plan.charges()[index], &sites[index], from, Span::ZERO)
        });
        if start == Start::Now {
            let shadowed = admit(locked, sites);
            let readings = locked.readings(plan, sites, now);
            return Ok(Decision::Allow(Allow {
                at: now,
                start: now,
                until: None,
                replayed: false,
                shadowed,
                readings,
                charged_at: Vec::new(),
            }));
        }
        denied(start, now, locked.readings(plan, sites, now))
    }

    pub(super) fn book_now(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        let mut records = self.lock_records(plan);
        if let Some(place) = self.known(plan, &mut records) {
            let (record, _) = records.get(place);
            return match record.state {
                State::Cancelled => Err(Error::Gone),
                State::Booked if record.fingerprint == plan.fingerprint() => {
                    Ok(self.replay(plan, record))
                }
                _ => Err(Error::Conflict),
            };
        }
        self.make_room(&mut records)?;
        let (mut locked, mut sites, now) = self.hold(plan);
        match self.book_locked(plan, &mut locked, &mut sites, now) {
            Ok((start, written)) => {
                let record = Record::new(plan, State::Booked, now, start).with_uses(written.uses);
                self.remember(plan, record, &mut records, now);
                Ok(Decision::Allow(Allow {
                    at: now,
                    start,
                    until: Some(start + plan.slack),
                    replayed: false,
                    shadowed: written.shadowed,
                    readings: locked.readings(plan, &sites, now),
                    charged_at: Vec::new(),
                }))
            }
            Err(start) => denied(start, now, locked.readings(plan, &sites, now)),
        }
    }

    /// Books the first instant inside the horizon.
    pub(super) fn book_locked(
        &self,
        plan: &Plan<'_>,
        locked: &mut Locked<'_>,
        sites: &mut [Site],
        now: Timestamp,
    ) -> Result<(Timestamp, Written), Start> {
        let earliest = plan.start(now, true, |index, from| {
            locked.earliest(&plan.charges()[index], &sites[index], from, plan.slack)
        });
        let start = match earliest {
            Start::Now => now,
            Start::Later(start, _) if plan.reaches(now, start) => start,
            other => return Err(other),
        };
        Ok((start, self.write(plan, Part::Bookable, locked, sites, start, now, None)))
    }

    /// Writes the charges of a plan that was found to fit at `start`. A shadow charge is written
    /// only if it would have fitted, as it would be if it were not one.
    #[expect(clippy::too_many_arguments, reason = "all of them describe the one write")]
    pub(super) fn write(
        &self,
        plan: &Plan<'_>,
        part: Part,
        locked: &mut Locked<'_>,
        sites: &mut [Site],
        start: Timestamp,
        now: Timestamp,
        hold: Option<Timestamp>,
    ) -> Written {
        let slack = if part == Part::Bookable { plan.slack } else { Span::ZERO };
        let shadowed = shadowed(plan, locked, sites, start, slack);
        let recorded = part != Part::All || plan.recorded();
        let mut uses = SmallVec::new();
        for (index, charge) in plan.charges().iter().enumerate() {
            let wanted = match part {
                Part::All => true,
                Part::Bookable => charge.meter.bookable(),
                Part::Leases => !charge.meter.bookable(),
            };
            if !wanted || shadowed.iter().any(|&other| usize::from(other) == index) {
                continue;
            }
            let (id, window) = (plan.id.id, charge.meter.window());
            let used = if charge.take == 0 {
                // Nothing to count yet, but settling has to know where it would have been.
                Cell::new(&charge.meter).take(&charge.meter, start, slack, 0, id)
            } else {
                let place = self.make(charge, &mut sites[index], locked, now);
                let address = sites[index].address;
                let table = locked.shard(address.shard).table(address.overflow);
                let (cell, expires) = table.get_mut(place);
                let used = cell.take(&charge.meter, start, slack, charge.take, id);
                if let Some(until) = hold.filter(|_| charge.refunds()) {
                    cell.hold(id, until, used);
                }
                *expires = (*expires).max(cell.expires(window));
                used
            };
            if recorded {
                let refunds = charge.refunds() && charge.take > 0;
                let address = sites[index].address;
                uses.push(Held { address, at: now, unit: charge.unit(), window, used, refunds });
            }
        }
        Written { uses, shadowed }
    }

    /// The admission of before, with what the limits show now.
    pub(super) fn replay(&self, plan: &Plan<'_>, record: &Record) -> Decision {
        let usage = self.usage_now(plan);
        let until = match record.state {
            State::Booked => Some(record.start + record.slack),
            _ => record.until(),
        };
        Decision::Allow(Allow {
            at: usage.at,
            start: record.start,
            until,
            replayed: true,
            shadowed: SmallVec::new(),
            readings: usage.readings,
            charged_at: Vec::new(),
        })
    }

    pub(super) fn usage_now(&self, plan: &Plan<'_>) -> Usage {
        let (locked, sites, now) = self.hold(plan);
        Usage { at: now, readings: locked.readings(plan, &sites, now) }
    }

    pub(super) fn refund_now(&self, plan: &Plan<'_>) -> Usage {
        let names = self.names(plan);
        let mut locked = self.lock(names.iter().map(|name| name.shard()));
        let now = self.now();
        for (charge, name) in plan.charges().iter().zip(names) {
            let cells = &mut locked.shard(name.shard()).cells;
            if let Some(place) = live(cells, name, now) {
                let cell = &mut cells.get_mut(place).0;
                cell.advance(&charge.meter, now);
                cell.refund(&charge.meter, now, charge.take);
            }
        }
        drop(locked);
        self.usage_now(plan)
    }

    pub(super) fn close_now(&self, plan: &Plan<'_>, wait: Span) -> Shut {
        let (mut locked, mut sites, now) = self.hold(plan);
        let mut until = now;
        for (index, gate) in plan.gates() {
            let place = self.make(gate, &mut sites[index], &mut locked, now);
            let address = sites[index].address;
            let table = locked.shard(address.shard).table(address.overflow);
            let (cell, expires) = table.get_mut(place);
            cell.close(now + wait);
            until = until.max(cell.expires(Span::ZERO));
            *expires = (*expires).max(until);
        }
        Shut { at: now, until }
    }

    pub(super) fn reset_now(&self, plan: &Plan<'_>) -> Timestamp {
        let names = self.names(plan);
        let mut locked = self.lock(names.iter().map(|name| name.shard()));
        let now = self.now();
        for (charge, name) in plan.charges().iter().zip(names) {
            let cells = &mut locked.shard(name.shard()).cells;
            if let Some(place) = cells.find(name) {
                // It stays, empty, for as long as something of it could still be settled.
                cells.get_mut(place).0.reset(&charge.meter, now);
            }
        }
        now
    }

    fn lock_records(&self, plan: &Plan<'_>) -> MutexGuard<'_, Table<Record>> {
        let shard = self.name_of_id(plan.id.id).shard();
        let Padded(records) = &self.records[usize::from(shard)];
        records.lock()
    }

    /// The record of a plan's id, unless it has expired or lapsed.
    fn known(&self, plan: &Plan<'_>, records: &mut Table<Record>) -> Option<Place> {
        let place = self.live_record(self.name_of_id(plan.id.id), records)?;
        (records.get(place).0.state != State::Lapsed).then_some(place)
    }

    pub(super) fn make_room(&self, records: &mut Table<Record>) -> Result<(), Error> {
        let now = self.now();
        records.sweep(now, SWEEP, |_| false);
        if records.len() >= self.records_per_shard {
            records.sweep(now, SWEEP_FULL, Record::droppable);
        }
        if records.len() >= self.records_per_shard { Err(Error::Full) } else { Ok(()) }
    }

    /// Writes the record of a plan, in the place of one that has lapsed.
    fn remember(
        &self,
        plan: &Plan<'_>,
        mut record: Record,
        records: &mut Table<Record>,
        now: Timestamp,
    ) {
        let name = self.name_of_id(plan.id.id);
        let mut expires = record.kept_until(now);
        if let Some(lapsed) = records.find(name) {
            // Whoever was told to go is remembered for as long as before.
            expires = expires.max(records.get(lapsed).1);
            record.told = records.remove(lapsed).told;
        }
        records.insert(name, record, expires);
    }
}

/// Where counters are: which of the shards that are held, and the place in it.
type Places = SmallVec<[(usize, Place); 4]>;

impl Locked<'_> {
    /// The counters of the common plan: every one is there, under its own name, and no charge is a
    /// special one. `None` if that is not so.
    fn in_place(&mut self, plan: &Plan<'_>, names: &[Name], now: Timestamp) -> Option<Places> {
        let mut places = Places::new();
        for (charge, &name) in plan.charges().iter().zip(names) {
            if charge.take == 0 || charge.shadow() {
                return None;
            }
            let guard = self.guard(name.shard());
            let cells = &mut self.shard_at(guard).cells;
            let place = live(cells, name, now)?;
            cells.get_mut(place).0.advance(&charge.meter, now);
            places.push((guard, place));
        }
        Some(places)
    }

    /// Decides the common plan without a detour.
    fn decide_in_place(
        &mut self,
        plan: &Plan<'_>,
        places: &Places,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let charges = plan.charges();
        let start = plan.start(now, false, |index, from| {
            let ((guard, place), charge) = (places[index], &charges[index]);
            let (cell, _) = self.shard_at(guard).cells.get(place);
            cell.earliest(&charge.meter, from, charge.need, Span::ZERO)
        });
        let mut readings = Readings::new();
        for (charge, &(guard, place)) in charges.iter().zip(places) {
            let (cell, expires) = self.shard_at(guard).cells.get_mut(place);
            if start == Start::Now {
                cell.take(&charge.meter, now, Span::ZERO, charge.take, plan.id.id);
                *expires = (*expires).max(cell.expires(charge.meter.window()));
            }
            cell.readings(&charge.meter, now, |reading| readings.push(reading));
        }
        if start == Start::Now {
            let shadowed = SmallVec::new();
            return Ok(Decision::Allow(Allow {
                at: now,
                start: now,
                until: None,
                replayed: false,
                shadowed,
                readings,
                charged_at: Vec::new(),
            }));
        }
        denied(start, now, readings)
    }
}

/// The shadow charges that do not fit at `start`.
fn shadowed(
    plan: &Plan<'_>,
    locked: &Locked<'_>,
    sites: &[Site],
    start: Timestamp,
    slack: Span,
) -> SmallVec<[u16; 4]> {
    let shadows = plan.charges().iter().enumerate().filter(|(_, charge)| charge.shadow());
    let fits = Earliest::At { start, limit: 0 };
    shadows
        .filter(|(index, charge)| locked.earliest(charge, &sites[*index], start, slack) != fits)
        .map(|(index, _)| u16::try_from(index).unwrap_or(u16::MAX))
        .collect()
}

/// The decision on a plan that can't start now.
fn denied(start: Start, at: Timestamp, readings: Readings) -> Result<Decision, Error> {
    match start {
        Start::Later(start, hit) => Ok(Decision::Deny(Deny { at, start, hit, readings })),
        Start::Never(hit) => Ok(Decision::Never(Never { at, hit, readings })),
        Start::Skew => Err(Error::ClockSkew),
        Start::Now => unreachable!("a plan that can start now is admitted"),
    }
}
