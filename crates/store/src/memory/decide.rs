//! Decisions of the in-memory store: acquire, peek and book, plus the operations that only read or
//! change counters (usage, refund, close, reset).

use sluicegate_core::algorithm::{Cell, EarliestStart, Slack};
use sluicegate_core::decision::{Allow, Deny, Never, Readings};
use sluicegate_core::plan::PlanStart;
use sluicegate_core::store::{Error, GateClosure, Usage};
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_core::{Charge, Decision, Plan};
use smallvec::SmallVec;

use super::lifecycle::unavailable_lease;
use super::locked::{CounterLookup, LockedShards, find_live};
use super::record::{Record, RecordState, RecordedCharge};
use super::table::{EntryIndex, NameHash, Table};
use super::{CachePadded, Memory, SWEEP, SWEEP_FULL};
use crate::sync::MutexGuard;

/// Charges that one admission wrote.
pub(super) struct WrittenCharges {
    pub(super) charges: SmallVec<[RecordedCharge; 1]>,
    /// Indices of the shadow charges that did not fit, and so were not written.
    pub(super) shadowed: SmallVec<[u16; 4]>,
}

/// Selects the charges of a plan that a write covers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChargeSelection {
    /// Every charge, at the current time.
    All,
    /// Charges that can be booked ahead.
    Bookable,
    /// Leases: they can't be booked, so the claim of a booking writes them.
    Leases,
}

impl ChargeSelection {
    /// Returns the time after its start at which a charge is written: the slack of work that is
    /// booked or paced.
    fn slack(self, plan: &Plan<'_>, charge: &Charge<'_>) -> Slack {
        match self {
            Self::Bookable => plan.slack_of(charge),
            Self::All if plan.lead.is_some() => plan.slack_of(charge),
            Self::All | Self::Leases => Slack::NONE,
        }
    }
}

impl<C: Clock> Memory<C> {
    pub(super) fn acquire_now(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        if !plan.needs_record() {
            let names = self.names(plan);
            let mut locked = self.lock(names.iter().map(|name| name.shard()));
            let now = self.now();
            if let Some(positions) = locked.find_existing(plan, &names, now) {
                return locked.decide_existing(plan, &positions, now);
            }
            let mut counters = self.find_counters(plan, &names, &mut locked, now);
            return self.decide_locked(
                plan,
                &mut locked,
                &mut counters,
                now,
                |locked, counters, start| {
                    self.write(plan, ChargeSelection::All, locked, counters, start, now, None)
                        .shadowed
                },
            );
        }
        let mut records = self.lock_records(plan);
        if let Some(entry) = self.find_record(plan, &mut records) {
            let (record, _) = records.get(entry);
            return match record.state {
                RecordState::Cancelled => Err(Error::Gone),
                RecordState::Booked => Err(Error::Conflict),
                _ if record.fingerprint != plan.fingerprint() => Err(Error::Conflict),
                _ if record.leased && !self.holds_leases(record, plan.id.id) => Err(Error::Lost),
                _ => Ok(self.replay(plan, record)),
            };
        }
        self.ensure_record_space(&mut records)?;
        let mut until = None;
        let (mut locked, mut counters, now) = self.lock_counters(plan);
        let decision = self.decide_locked(
            plan,
            &mut locked,
            &mut counters,
            now,
            |locked, counters, start| {
                let record = Record::new(plan, RecordState::Open(None), now, start);
                let hold = record.hold.map(|hold| hold.until);
                let written =
                    self.write(plan, ChargeSelection::All, locked, counters, start, now, hold);
                let record = record.with_charges(written.charges);
                until = record.until();
                self.insert_record(plan, record, &mut records, now);
                written.shadowed
            },
        )?;
        Ok(match decision {
            Decision::Allow(allow) => Decision::Allow(Allow { until, ..allow }),
            denied => denied,
        })
    }

    pub(super) fn peek_now(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        let (mut locked, mut counters, now) = self.lock_counters(plan);
        self.decide_locked(plan, &mut locked, &mut counters, now, |locked, counters, start| {
            shadowed(plan, ChargeSelection::All, locked, counters, start)
        })
    }

    /// Decides whether a plan can start now, or within its lead, and lets `admit` write it if so.
    fn decide_locked(
        &self,
        plan: &Plan<'_>,
        locked: &mut LockedShards<'_>,
        counters: &mut [CounterLookup],
        now: Timestamp,
        admit: impl FnOnce(&mut LockedShards<'_>, &mut [CounterLookup], Timestamp) -> SmallVec<[u16; 4]>,
    ) -> Result<Decision, Error> {
        let earliest = plan.start(now, false, |index, from| {
            let charge = &plan.charges()[index];
            let slack = ChargeSelection::All.slack(plan, charge);
            locked.earliest(charge, &counters[index], from, slack)
        });
        let start = match earliest {
            PlanStart::Now => Some(now),
            // A lease is taken now, so it has to be free now.
            PlanStart::Later(start, _)
                if start <= plan.after_lead(now)
                    && plan.can_start_at(now, start)
                    && unavailable_lease(plan, locked, counters, now).is_none() =>
            {
                Some(start)
            }
            _ => None,
        };
        if let Some(start) = start {
            let shadowed = admit(locked, counters, start);
            let readings = locked.readings(plan, counters, now);
            return Ok(Decision::Allow(Allow {
                at: now,
                start,
                until: None,
                replayed: false,
                shadowed,
                readings,
                charged_at: Vec::new(),
            }));
        }
        denied(earliest, now, locked.readings(plan, counters, now))
    }

    pub(super) fn book_now(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        let mut records = self.lock_records(plan);
        if let Some(entry) = self.find_record(plan, &mut records) {
            let (record, _) = records.get(entry);
            return match record.state {
                RecordState::Cancelled => Err(Error::Gone),
                RecordState::Booked if record.fingerprint == plan.fingerprint() => {
                    Ok(self.replay(plan, record))
                }
                _ => Err(Error::Conflict),
            };
        }
        self.ensure_record_space(&mut records)?;
        let (mut locked, mut counters, now) = self.lock_counters(plan);
        match self.book_locked(plan, &mut locked, &mut counters, now) {
            Ok((start, written)) => {
                let record = Record::new(plan, RecordState::Booked, now, start)
                    .with_charges(written.charges);
                self.insert_record(plan, record, &mut records, now);
                Ok(Decision::Allow(Allow {
                    at: now,
                    start,
                    until: Some(start + plan.slack),
                    replayed: false,
                    shadowed: written.shadowed,
                    readings: locked.readings(plan, &counters, now),
                    charged_at: Vec::new(),
                }))
            }
            Err(start) => denied(start, now, locked.readings(plan, &counters, now)),
        }
    }

    /// Books the first instant inside the horizon. The start of paced work leaves time for its
    /// claim.
    pub(super) fn book_locked(
        &self,
        plan: &Plan<'_>,
        locked: &mut LockedShards<'_>,
        counters: &mut [CounterLookup],
        now: Timestamp,
    ) -> Result<(Timestamp, WrittenCharges), PlanStart> {
        let from = plan.after_lead(now);
        let earliest = plan.start(from, true, |index, from| {
            let charge = &plan.charges()[index];
            locked.earliest(charge, &counters[index], from, plan.slack_of(charge))
        });
        let start = match earliest {
            PlanStart::Now => from,
            PlanStart::Later(start, _) if plan.can_start_at(now, start) => start,
            other => return Err(other),
        };
        Ok((start, self.write(plan, ChargeSelection::Bookable, locked, counters, start, now, None)))
    }

    /// Writes the charges of a plan that fits at `start`. A shadow charge is written only if it
    /// would fit as a normal charge too.
    #[expect(clippy::too_many_arguments, reason = "all of them describe the one write")]
    pub(super) fn write(
        &self,
        plan: &Plan<'_>,
        selection: ChargeSelection,
        locked: &mut LockedShards<'_>,
        counters: &mut [CounterLookup],
        start: Timestamp,
        now: Timestamp,
        hold: Option<Timestamp>,
    ) -> WrittenCharges {
        let shadowed = shadowed(plan, selection, locked, counters, start);
        let recorded = selection != ChargeSelection::All || plan.needs_record();
        let mut charges = SmallVec::new();
        for (index, charge) in plan.charges().iter().enumerate() {
            let wanted = match selection {
                ChargeSelection::All => true,
                ChargeSelection::Bookable => charge.meter.is_bookable(),
                ChargeSelection::Leases => !charge.meter.is_bookable(),
            };
            if !wanted || shadowed.iter().any(|&other| usize::from(other) == index) {
                continue;
            }
            let (id, window) = (plan.id.id, charge.meter.window());
            let slack = selection.slack(plan, charge);
            let used = if charge.take == 0 {
                // Nothing to count yet, but a settlement has to know where to charge it.
                Cell::new(&charge.meter).take(&charge.meter, start, slack, 0, id)
            } else {
                let entry = self.find_or_create(charge, &mut counters[index], locked, now);
                let address = counters[index].address;
                let table = locked.shard(address.shard).table(address.overflow);
                let (cell, expires) = table.get_mut(entry);
                let used = cell.take(&charge.meter, start, slack, charge.take, id);
                if let Some(until) = hold.filter(|_| charge.refunds()) {
                    cell.hold(id, until, used);
                }
                *expires = (*expires).max(cell.expires(window));
                used
            };
            if recorded {
                let refunds = charge.refunds() && charge.take > 0;
                let address = counters[index].address;
                charges.push(RecordedCharge {
                    address,
                    at: now,
                    unit: charge.unit(),
                    window,
                    used,
                    refunds,
                });
            }
        }
        WrittenCharges { charges, shadowed }
    }

    /// Returns the recorded admission again, with the present readings of its limits.
    pub(super) fn replay(&self, plan: &Plan<'_>, record: &Record) -> Decision {
        let usage = self.usage_now(plan);
        let until = match record.state {
            RecordState::Booked => Some(record.start + record.slack),
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
        let (locked, counters, now) = self.lock_counters(plan);
        Usage { at: now, readings: locked.readings(plan, &counters, now) }
    }

    pub(super) fn refund_now(&self, plan: &Plan<'_>) -> Usage {
        let names = self.names(plan);
        let mut locked = self.lock(names.iter().map(|name| name.shard()));
        let now = self.now();
        for (charge, name) in plan.charges().iter().zip(names) {
            let cells = &mut locked.shard(name.shard()).cells;
            if let Some(entry) = find_live(cells, name, now) {
                let cell = &mut cells.get_mut(entry).0;
                cell.advance(&charge.meter, now);
                cell.refund(&charge.meter, now, charge.take);
            }
        }
        drop(locked);
        self.usage_now(plan)
    }

    pub(super) fn close_now(&self, plan: &Plan<'_>, wait: Span) -> GateClosure {
        let (mut locked, mut counters, now) = self.lock_counters(plan);
        let mut until = now;
        for (index, gate) in plan.gates() {
            let entry = self.find_or_create(gate, &mut counters[index], &mut locked, now);
            let address = counters[index].address;
            let table = locked.shard(address.shard).table(address.overflow);
            let (cell, expires) = table.get_mut(entry);
            cell.close(now + wait);
            until = until.max(cell.expires(Span::ZERO));
            *expires = (*expires).max(until);
        }
        GateClosure { at: now, until }
    }

    pub(super) fn reset_now(&self, plan: &Plan<'_>) -> Timestamp {
        let names = self.names(plan);
        let mut locked = self.lock(names.iter().map(|name| name.shard()));
        let now = self.now();
        for (charge, name) in plan.charges().iter().zip(names) {
            let cells = &mut locked.shard(name.shard()).cells;
            if let Some(entry) = cells.find(name) {
                // The empty counter stays for as long as one of its charges could still be settled.
                cells.get_mut(entry).0.reset(&charge.meter, now);
            }
        }
        now
    }

    fn lock_records(&self, plan: &Plan<'_>) -> MutexGuard<'_, Table<Record>> {
        let shard = self.name_of_id(plan.id.id).shard();
        let CachePadded(records) = &self.records[usize::from(shard)];
        records.lock()
    }

    /// Returns the record of a plan's id, unless it has expired or lapsed.
    fn find_record(&self, plan: &Plan<'_>, records: &mut Table<Record>) -> Option<EntryIndex> {
        let entry = self.live_record(self.name_of_id(plan.id.id), records)?;
        (records.get(entry).0.state != RecordState::Lapsed).then_some(entry)
    }

    pub(super) fn ensure_record_space(&self, records: &mut Table<Record>) -> Result<(), Error> {
        let now = self.now();
        records.sweep(now, SWEEP, |_| false);
        if records.len() >= self.records_per_shard {
            records.sweep(now, SWEEP_FULL, Record::droppable);
        }
        if records.len() >= self.records_per_shard { Err(Error::Full) } else { Ok(()) }
    }

    /// Inserts the record of a plan, replacing a lapsed record of the same id.
    fn insert_record(
        &self,
        plan: &Plan<'_>,
        mut record: Record,
        records: &mut Table<Record>,
        now: Timestamp,
    ) {
        let name = self.name_of_id(plan.id.id);
        let mut expires = record.kept_until(now);
        if let Some(lapsed) = records.find(name) {
            // Claimants that were allowed to start stay known for as long as before.
            expires = expires.max(records.get(lapsed).1);
            record.started_claimants = records.remove(lapsed).started_claimants;
        }
        records.insert(name, record, expires);
    }
}

/// Positions of counters: the index of the locked shard, and that of the entry in its table.
type CounterPositions = SmallVec<[(usize, EntryIndex); 4]>;

impl LockedShards<'_> {
    /// Finds the counters of a plan for the fast path: every counter exists under its own name, and
    /// no charge is a shadow charge or has an amount of zero. Returns `None` if the plan needs the
    /// general path.
    fn find_existing(
        &mut self,
        plan: &Plan<'_>,
        names: &[NameHash],
        now: Timestamp,
    ) -> Option<CounterPositions> {
        let mut positions = CounterPositions::new();
        for (charge, &name) in plan.charges().iter().zip(names) {
            if charge.take == 0 || charge.shadow() {
                return None;
            }
            let guard = self.guard(name.shard());
            let cells = &mut self.shard_at(guard).cells;
            let entry = find_live(cells, name, now)?;
            cells.get_mut(entry).0.advance(&charge.meter, now);
            positions.push((guard, entry));
        }
        Some(positions)
    }

    /// Decides a plan whose counters all exist, without building [`CounterLookup`]s.
    fn decide_existing(
        &mut self,
        plan: &Plan<'_>,
        positions: &CounterPositions,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let charges = plan.charges();
        let start = plan.start(now, false, |index, from| {
            let ((guard, entry), charge) = (positions[index], &charges[index]);
            let (cell, _) = self.shard_at(guard).cells.get(entry);
            cell.earliest(&charge.meter, from, charge.need, Slack::NONE)
        });
        let mut readings = Readings::new();
        for (charge, &(guard, entry)) in charges.iter().zip(positions) {
            let (cell, expires) = self.shard_at(guard).cells.get_mut(entry);
            if start == PlanStart::Now {
                cell.take(&charge.meter, now, Slack::NONE, charge.take, plan.id.id);
                *expires = (*expires).max(cell.expires(charge.meter.window()));
            }
            cell.readings(&charge.meter, now, |reading| readings.push(reading));
        }
        if start == PlanStart::Now {
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

/// Returns the indices of the shadow charges that do not fit at `start`.
fn shadowed(
    plan: &Plan<'_>,
    selection: ChargeSelection,
    locked: &LockedShards<'_>,
    counters: &[CounterLookup],
    start: Timestamp,
) -> SmallVec<[u16; 4]> {
    let shadows = plan.charges().iter().enumerate().filter(|(_, charge)| charge.shadow());
    let fits = EarliestStart::At { start, limit: 0 };
    shadows
        .filter(|(index, charge)| {
            let slack = selection.slack(plan, charge);
            locked.earliest(charge, &counters[*index], start, slack) != fits
        })
        .map(|(index, _)| u16::try_from(index).unwrap_or(u16::MAX))
        .collect()
}

/// Returns the decision on a plan that can't start now.
fn denied(start: PlanStart, at: Timestamp, readings: Readings) -> Result<Decision, Error> {
    match start {
        PlanStart::Later(start, hit) => Ok(Decision::Deny(Deny { at, start, hit, readings })),
        PlanStart::Never(hit) => Ok(Decision::Never(Never { at, hit, readings })),
        PlanStart::Skew => Err(Error::ClockSkew),
        PlanStart::Now => unreachable!("a plan that can start now is admitted"),
    }
}
