//! Operations on an admission that exists already: claim, cancel, settle, release and renew.

use sluicegate_core::algorithm::log::ENTRIES_PER_CHARGE_MAX;
use sluicegate_core::algorithm::{CellCharge, CellPosition, EarliestStart, Slack};
use sluicegate_core::decision::{Allow, Deny, Hit};
use sluicegate_core::plan::{Handle, PlanStart};
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Claim, EndResult, Error, Renewal};
use sluicegate_core::time::{Clock, Timestamp};
use sluicegate_core::{Id, Plan};
use smallvec::SmallVec;

use super::decide::ChargeSelection;
use super::locked::{CounterLookup, LockedShards};
use super::record::{Hold, Record, RecordState, RecordedCharge};
use super::table::{EntryIndex, NameHash, Table};
use super::{CachePadded, Memory};

const fn first_time(at: Timestamp) -> EndResult {
    EndResult { at, replayed: false }
}

const fn replayed(at: Timestamp) -> EndResult {
    EndResult { at, replayed: true }
}

impl<C: Clock> Memory<C> {
    pub(super) fn claim_now(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        self.with_record(plan.id.id, |memory, records, entry| {
            let (record, expires) = records.get_mut(entry);
            let claimed_by = match record.state {
                RecordState::Booked => None,
                RecordState::Open(Some(other)) => Some(other),
                RecordState::Open(None) | RecordState::Settled(_) => return Err(Error::Conflict),
                RecordState::Cancelled => return Err(Error::Gone),
                RecordState::Lapsed => return Err(Error::Unknown),
            };
            if record.stated.is_some_and(|stated| stated != plan.statement_fingerprint()) {
                return Err(Error::Differs);
            }
            let reloaded = record.fingerprint != plan.fingerprint();
            let names = memory.names(plan);
            let shards = names.iter().map(|name| name.shard());
            let charged = record.charges.iter().map(|charge| charge.address.shard);
            let mut locked = memory.lock(shards.chain(charged));
            let now = memory.now();
            let mut counters = memory.find_counters(plan, &names, &mut locked, now);
            let (start, good_until) = (record.start, record.start + record.slack);
            let go = |record: &Record,
                      replayed,
                      locked: &LockedShards<'_>,
                      counters: &[CounterLookup]| {
                let (until, shadowed) = (record.until(), SmallVec::new());
                let readings = locked.readings(plan, counters, now);
                let charged_at = Vec::new();
                let allow =
                    Allow { at: now, start, until, replayed, shadowed, readings, charged_at };
                Ok(Claim::Go { allow, good_until })
            };
            if record.started_claimants.contains(&claimant) {
                let again = claimed_by == Some(claimant) && now <= good_until;
                return if again { go(record, true, &locked, &counters) } else { Ok(Claim::Spent) };
            }
            if plan.after_lead(now) < start {
                return Ok(Claim::Early { at: now, start });
            }
            // Checked before anything changes: a plan of another calendar period can't be booked
            // again.
            if !plan.can_start_at(now, now) {
                return Err(Error::ClockSkew);
            }
            let good = claimed_by.is_none() && now <= good_until && !reloaded;
            if good && gates_are_open(plan, &locked, &counters, start.max(now)) {
                if let Some((start, hit)) = unavailable_lease(plan, &locked, &counters, now) {
                    let readings = locked.readings(plan, &counters, now);
                    return Ok(Claim::Deny(Deny { at: now, start, hit, readings }));
                }
                let leases = memory.write(
                    plan,
                    ChargeSelection::Leases,
                    &mut locked,
                    &mut counters,
                    now,
                    now,
                    None,
                );
                record.leased = !leases.charges.is_empty();
                record.charges.extend(leases.charges);
                record.state = RecordState::Open(Some(claimant));
                record.started_claimants.push(claimant);
                record.hold = plan.hold.map(|ttl| Hold { ttl, until: now + ttl });
                schedule_refunds(record, plan.id.id, &mut locked, now);
                *expires = (*expires).max(record.kept_until(now));
                return go(record, false, &locked, &counters);
            }
            // The booking is late, claimed by another claimant, closed by a gate, or charged under
            // old rules. An unclaimed booking was never used, so its charges are returned.
            if claimed_by.is_none() {
                return_charges(record, plan.id.id, &mut locked, now);
            }
            let started_claimants = std::mem::take(&mut record.started_claimants);
            let rebooked = memory.book_locked(plan, &mut locked, &mut counters, now);
            let (state, start, charges, answer) = match rebooked {
                Ok((start, written)) => {
                    let answer = Ok(Claim::Rebooked { at: now, start });
                    (RecordState::Booked, start, written.charges, answer)
                }
                Err(refused) => {
                    let readings = locked.readings(plan, &counters, now);
                    let (start, hit) = match refused {
                        PlanStart::Later(start, hit) => (start, hit),
                        // A limit was lowered below what this one piece of work needs.
                        PlanStart::Never(hit) => (Timestamp::MAX, hit),
                        PlanStart::Now | PlanStart::Skew => {
                            unreachable!("both were looked at before")
                        }
                    };
                    let answer = Ok(Claim::Deny(Deny { at: now, start, hit, readings }));
                    (RecordState::Lapsed, now, SmallVec::new(), answer)
                }
            };
            *record = Record {
                started_claimants,
                ..Record::new(plan, state, now, start).with_charges(charges)
            };
            *expires = (*expires).max(record.kept_until(now));
            answer
        })
    }

    pub(super) fn cancel_now(&self, handle: &Handle) -> Result<EndResult, Error> {
        let id = handle.id;
        let name = self.name_of_id(id);
        let CachePadded(records) = &self.records[usize::from(name.shard())];
        let records = &mut *records.lock();
        let Some(entry) = self.live_record(name, records) else {
            // The attempt to acquire may still arrive, so its id has to be refused.
            self.ensure_record_space(records)?;
            let now = self.now();
            let record = Record::tombstone(now);
            let expires = record.kept_until(now);
            records.insert(name, record, expires);
            return Ok(first_time(now));
        };
        let (record, expires) = records.get_mut(entry);
        match record.state {
            RecordState::Cancelled => return Ok(replayed(self.now())),
            RecordState::Settled(_) => return Err(Error::Conflict),
            RecordState::Booked | RecordState::Open(_) | RecordState::Lapsed => {}
        }
        let mut locked = self.lock_charges(record);
        let now = self.now();
        let claimed_by_other = match record.state {
            RecordState::Open(Some(claimant)) => handle.claimant != Some(claimant),
            _ => false,
        };
        if !claimed_by_other {
            return_charges(record, id, &mut locked, now);
        }
        record.state = RecordState::Cancelled;
        record.hold = None;
        record.charges.clear();
        *expires = (*expires).max(record.kept_until(now));
        Ok(first_time(now))
    }

    pub(super) fn settle_now(&self, id: Id, actual: &Cost) -> Result<EndResult, Error> {
        self.with_record(id, |memory, records, entry| {
            let (record, expires) = records.get_mut(entry);
            match record.state {
                RecordState::Open(_) => {}
                RecordState::Booked => return Err(Error::NotClaimed),
                RecordState::Cancelled => return Err(Error::Gone),
                RecordState::Lapsed => return Err(Error::Unknown),
                RecordState::Settled(before) if before == *actual => {
                    return Ok(replayed(memory.now()));
                }
                RecordState::Settled(_) => return Err(Error::Conflict),
            }
            let in_log =
                |charge: &RecordedCharge| matches!(charge.used.position, CellPosition::Log(_));
            let requests = actual.requests.unwrap_or_default();
            if requests > ENTRIES_PER_CHARGE_MAX && record.charges.iter().any(in_log) {
                return Err(Error::TooMany);
            }
            let mut locked = memory.lock_charges(record);
            let now = memory.now();
            for charge in &record.charges {
                let due = record.refunded_at(charge);
                locked.update_counter(charge, now, |cell| {
                    cell.release(id, charge.used.position);
                    if let Some(due) = due {
                        cell.end_hold(id, due);
                    }
                });
                // A charge whose refund was due has been returned already.
                let charged =
                    if due.is_some_and(|due| due <= now) { 0 } else { charge.used.amount };
                let Some(actual) = actual.of(charge.unit) else {
                    continue;
                };
                if actual > charged {
                    locked.charge_debt(charge, actual - charged, now);
                } else {
                    let back = CellCharge { amount: charged - actual, ..charge.used };
                    locked.update_counter(charge, now, |cell| cell.give_back(back, now));
                }
            }
            record.state = RecordState::Settled(*actual);
            record.hold = None;
            record.charges.clear();
            *expires = (*expires).max(record.kept_until(now));
            Ok(first_time(now))
        })
    }

    pub(super) fn release_now(&self, id: Id) -> Result<EndResult, Error> {
        self.with_record(id, |memory, records, entry| {
            let (record, _) = records.get_mut(entry);
            match record.state {
                RecordState::Open(_) if record.released => return Ok(replayed(memory.now())),
                RecordState::Open(_) => {}
                RecordState::Settled(_) => return Ok(replayed(memory.now())),
                RecordState::Booked => return Err(Error::NotClaimed),
                RecordState::Cancelled => return Err(Error::Gone),
                RecordState::Lapsed => return Err(Error::Unknown),
            }
            let mut locked = memory.lock_charges(record);
            let now = memory.now();
            for charge in &record.charges {
                if charge.lease().is_some() {
                    locked
                        .update_counter(charge, now, |cell| cell.release(id, charge.used.position));
                }
            }
            record.charges.retain(|charge| charge.lease().is_none());
            record.released = true;
            Ok(first_time(now))
        })
    }

    pub(super) fn renew_now(&self, id: Id) -> Result<Renewal, Error> {
        self.with_record(id, |memory, records, entry| {
            let (record, expires) = records.get_mut(entry);
            match record.state {
                RecordState::Open(_) => {}
                RecordState::Booked => return Err(Error::NotClaimed),
                RecordState::Settled(_) => return Err(Error::Conflict),
                RecordState::Cancelled => return Err(Error::Gone),
                RecordState::Lapsed => return Err(Error::Unknown),
            }
            let mut locked = memory.lock_charges(record);
            let now = memory.now();
            let Some(first) = record.until() else {
                return Err(Error::Unknown);
            };
            if first <= now || !has_all_leases(record, id, &mut locked, now) {
                return Err(Error::Lost);
            }
            let before = record.hold;
            let after = before.map(|hold| Hold { until: hold.until.max(now + hold.ttl), ..hold });
            for charge in &mut record.charges {
                let mut position = charge.used.position;
                locked.update_counter(charge, now, |cell| {
                    position = cell.renew(id, position, now + charge.window).unwrap_or(position);
                    if let (Some(before), Some(after), true) = (before, after, charge.refunds) {
                        cell.end_hold(id, before.until);
                        cell.hold(id, after.until, charge.used);
                    }
                });
                charge.used.position = position;
            }
            record.hold = after;
            *expires = (*expires).max(record.kept_until(now));
            record.until().map(|until| Renewal { at: now, until }).ok_or(Error::Unknown)
        })
    }

    /// Runs `change` on the record of an id while the record's shard is locked.
    fn with_record<T>(
        &self,
        id: Id,
        change: impl FnOnce(&Self, &mut Table<Record>, EntryIndex) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let name = self.name_of_id(id);
        let CachePadded(records) = &self.records[usize::from(name.shard())];
        let records = &mut *records.lock();
        let entry = self.live_record(name, records).ok_or(Error::Unknown)?;
        change(self, records, entry)
    }

    /// Returns the record with this name. Removes it if it has expired.
    pub(super) fn live_record(
        &self,
        name: NameHash,
        records: &mut Table<Record>,
    ) -> Option<EntryIndex> {
        let entry = records.find(name)?;
        let (_, expires) = records.get(entry);
        if expires > self.now() {
            return Some(entry);
        }
        records.remove(entry);
        None
    }

    /// Returns true if an admission still has all the leases that it was given.
    pub(super) fn holds_leases(&self, record: &Record, id: Id) -> bool {
        let mut locked = self.lock_charges(record);
        let now = self.now();
        let any = record.charges.iter().any(|charge| charge.lease().is_some());
        any && has_all_leases(record, id, &mut locked, now)
    }

    fn lock_charges(&self, record: &Record) -> LockedShards<'_> {
        self.lock(record.charges.iter().map(|charge| charge.address.shard))
    }
}

/// Returns true if no lease of a record has expired or was removed by a reset.
fn has_all_leases(record: &Record, id: Id, locked: &mut LockedShards<'_>, now: Timestamp) -> bool {
    record.charges.iter().all(|charge| match charge.lease() {
        None => true,
        Some(until) => {
            let there =
                locked.update_counter(charge, now, |cell| cell.has_lease(id, charge.used.position));
            until > now && there == Some(true)
        }
    })
}

/// Returns true if every gate of a plan is open at a time.
fn gates_are_open(
    plan: &Plan<'_>,
    locked: &LockedShards<'_>,
    counters: &[CounterLookup],
    at: Timestamp,
) -> bool {
    plan.gates().all(|(index, gate)| {
        let earliest = locked.earliest(gate, &counters[index], at, Slack::NONE);
        matches!(earliest, EarliestStart::At { start, .. } if start == at)
    })
}

/// Returns the first lease of a plan that is not available now.
pub(super) fn unavailable_lease(
    plan: &Plan<'_>,
    locked: &LockedShards<'_>,
    counters: &[CounterLookup],
    now: Timestamp,
) -> Option<(Timestamp, Hit)> {
    let leases = plan
        .charges()
        .iter()
        .enumerate()
        .filter(|(_, charge)| !charge.meter.is_bookable() && !charge.shadow());
    leases
        .map(|(index, charge)| (index, locked.earliest(charge, &counters[index], now, Slack::NONE)))
        .find_map(|(charge, earliest)| match earliest {
            EarliestStart::At { start, .. } if start == now => None,
            EarliestStart::At { start, limit } => Some((start, Hit { charge, limit })),
            EarliestStart::Never { limit } => Some((Timestamp::MAX, Hit { charge, limit })),
        })
}

/// Marks the estimates of a claimed booking for an automatic refund, where their rule asks for one.
fn schedule_refunds(record: &Record, id: Id, locked: &mut LockedShards<'_>, now: Timestamp) {
    for charge in &record.charges {
        if let Some(due) = record.refunded_at(charge) {
            locked.update_counter(charge, now, |cell| cell.hold(id, due, charge.used));
        }
    }
}

/// Gives all charges of a record back to their counters.
fn return_charges(record: &Record, id: Id, locked: &mut LockedShards<'_>, now: Timestamp) {
    for charge in &record.charges {
        let due = record.refunded_at(charge);
        locked.update_counter(charge, now, |cell| {
            cell.release(id, charge.used.position);
            if let Some(due) = due {
                cell.end_hold(id, due);
            }
            if due.is_none_or(|due| due > now) {
                cell.give_back(charge.used, now);
            }
        });
    }
}
