//! What happens to an admission afterwards: claim, cancel, settle, release, renew.

use sluicegate_core::algorithm::log::ENTRIES_PER_CHARGE_MAX;
use sluicegate_core::algorithm::{Earliest, Mark, Use};
use sluicegate_core::decision::{Allow, Deny, Hit};
use sluicegate_core::plan::{Handle, Start};
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Claim, Ended, Error, Renewed};
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_core::{Id, Plan};
use smallvec::SmallVec;

use super::decide::Part;
use super::locked::{Locked, Site};
use super::record::{Held, Hold, Record, State};
use super::table::{Name, Place, Table};
use super::{Memory, Padded};

const fn first_time(at: Timestamp) -> Ended {
    Ended { at, replayed: false }
}

const fn replayed(at: Timestamp) -> Ended {
    Ended { at, replayed: true }
}

impl<C: Clock> Memory<C> {
    pub(super) fn claim_now(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        self.with_record(plan.id.id, |memory, records, place| {
            let (record, expires) = records.get_mut(place);
            let claimed_by = match record.state {
                State::Booked => None,
                State::Open(Some(other)) => Some(other),
                State::Open(None) | State::Settled(_) => return Err(Error::Conflict),
                State::Cancelled => return Err(Error::Gone),
                State::Lapsed => return Err(Error::Unknown),
            };
            if record.stated.is_some_and(|stated| stated != plan.stated()) {
                return Err(Error::Differs);
            }
            let reloaded = record.fingerprint != plan.fingerprint();
            let names = memory.names(plan);
            let shards = names.iter().map(|name| name.shard());
            let held = record.uses.iter().map(|held| held.address.shard);
            let mut locked = memory.lock(shards.chain(held));
            let now = memory.now();
            let mut sites = memory.sites(plan, &names, &mut locked, now);
            let (start, good_until) = (record.start, record.start + record.slack);
            let go = |record: &Record, replayed, locked: &Locked<'_>, sites: &[Site]| {
                let (until, shadowed) = (record.until(), SmallVec::new());
                let readings = locked.readings(plan, sites, now);
                let charged_at = Vec::new();
                let allow =
                    Allow { at: now, start, until, replayed, shadowed, readings, charged_at };
                Ok(Claim::Go { allow, good_until })
            };
            if record.told.contains(&claimant) {
                let again = claimed_by == Some(claimant) && now <= good_until;
                return if again { go(record, true, &locked, &sites) } else { Ok(Claim::Spent) };
            }
            if now < start {
                return Ok(Claim::Early { at: now, start });
            }
            // Before anything is changed: a plan from another day can't be booked anew.
            if !plan.reaches(now, now) {
                return Err(Error::ClockSkew);
            }
            let good = claimed_by.is_none() && now <= good_until && !reloaded;
            if good && is_open(plan, &locked, &sites, now) {
                if let Some((start, hit)) = missing_lease(plan, &locked, &sites, now) {
                    let readings = locked.readings(plan, &sites, now);
                    return Ok(Claim::Deny(Deny { at: now, start, hit, readings }));
                }
                let leases =
                    memory.write(plan, Part::Leases, &mut locked, &mut sites, now, now, None);
                record.leased = !leases.uses.is_empty();
                record.uses.extend(leases.uses);
                record.state = State::Open(Some(claimant));
                record.told.push(claimant);
                record.hold = plan.hold.map(|ttl| Hold { ttl, until: now + ttl });
                hold_estimates(record, plan.id.id, &mut locked, now);
                *expires = (*expires).max(record.kept_until(now));
                return go(record, false, &locked, &sites);
            }
            // Late, somebody else's by now, closed, or charged by rules of before. What nobody has claimed was never used.
            if claimed_by.is_none() {
                give_back(record, plan.id.id, &mut locked, now);
            }
            let told = std::mem::take(&mut record.told);
            let rebooked = memory.book_locked(plan, &mut locked, &mut sites, now);
            let (state, start, uses, answer) = match rebooked {
                Ok((start, written)) => {
                    let answer = Ok(Claim::Rebooked { at: now, start });
                    (State::Booked, start, written.uses, answer)
                }
                Err(refused) => {
                    let readings = locked.readings(plan, &sites, now);
                    let (start, hit) = match refused {
                        Start::Later(start, hit) => (start, hit),
                        // A limit that was lowered below what one piece of work needs.
                        Start::Never(hit) => (Timestamp::MAX, hit),
                        Start::Now | Start::Skew => unreachable!("both were looked at before"),
                    };
                    let answer = Ok(Claim::Deny(Deny { at: now, start, hit, readings }));
                    (State::Lapsed, now, SmallVec::new(), answer)
                }
            };
            *record = Record { told, ..Record::new(plan, state, now, start).with_uses(uses) };
            *expires = (*expires).max(record.kept_until(now));
            answer
        })
    }

    pub(super) fn cancel_now(&self, handle: &Handle) -> Result<Ended, Error> {
        let id = handle.id;
        let name = self.name_of_id(id);
        let Padded(records) = &self.records[usize::from(name.shard())];
        let records = &mut *records.lock();
        let Some(place) = self.live_record(name, records) else {
            // The attempt itself may still be on its way.
            self.make_room(records)?;
            let now = self.now();
            let record = Record::tombstone(now);
            let expires = record.kept_until(now);
            records.insert(name, record, expires);
            return Ok(first_time(now));
        };
        let (record, expires) = records.get_mut(place);
        match record.state {
            State::Cancelled => return Ok(replayed(self.now())),
            State::Settled(_) => return Err(Error::Conflict),
            State::Booked | State::Open(_) | State::Lapsed => {}
        }
        let mut locked = self.lock_uses(record);
        let now = self.now();
        let claimed_by_other = match record.state {
            State::Open(Some(claimant)) => handle.claimant != Some(claimant),
            _ => false,
        };
        if !claimed_by_other {
            give_back(record, id, &mut locked, now);
        }
        record.state = State::Cancelled;
        record.hold = None;
        record.uses.clear();
        *expires = (*expires).max(record.kept_until(now));
        Ok(first_time(now))
    }

    pub(super) fn settle_now(&self, id: Id, actual: &Cost) -> Result<Ended, Error> {
        self.with_record(id, |memory, records, place| {
            let (record, expires) = records.get_mut(place);
            match record.state {
                State::Open(_) => {}
                State::Booked => return Err(Error::NotClaimed),
                State::Cancelled => return Err(Error::Gone),
                State::Lapsed => return Err(Error::Unknown),
                State::Settled(before) if before == *actual => return Ok(replayed(memory.now())),
                State::Settled(_) => return Err(Error::Conflict),
            }
            let in_log = |held: &Held| matches!(held.used.mark, Mark::Log(_));
            let requests = actual.requests.unwrap_or_default();
            if requests > ENTRIES_PER_CHARGE_MAX && record.uses.iter().any(in_log) {
                return Err(Error::TooMany);
            }
            let mut locked = memory.lock_uses(record);
            let now = memory.now();
            for held in &record.uses {
                let due = record.refunded_at(held);
                locked.amend(held, now, |cell| {
                    cell.release(id, held.used.mark);
                    if let Some(due) = due {
                        cell.unhold(id, due);
                    }
                });
                // What was due has been given back by itself.
                let charged = if due.is_some_and(|due| due <= now) { 0 } else { held.used.amount };
                let Some(actual) = actual.of(held.unit) else {
                    continue;
                };
                if actual > charged {
                    locked.charge_debt(held, actual - charged, now);
                } else {
                    let back = Use { amount: charged - actual, ..held.used };
                    locked.amend(held, now, |cell| cell.give_back(back, now));
                }
            }
            record.state = State::Settled(*actual);
            record.hold = None;
            record.uses.clear();
            *expires = (*expires).max(record.kept_until(now));
            Ok(first_time(now))
        })
    }

    pub(super) fn release_now(&self, id: Id) -> Result<Ended, Error> {
        self.with_record(id, |memory, records, place| {
            let (record, _) = records.get_mut(place);
            match record.state {
                State::Open(_) if record.released => return Ok(replayed(memory.now())),
                State::Open(_) => {}
                State::Settled(_) => return Ok(replayed(memory.now())),
                State::Booked => return Err(Error::NotClaimed),
                State::Cancelled => return Err(Error::Gone),
                State::Lapsed => return Err(Error::Unknown),
            }
            let mut locked = memory.lock_uses(record);
            let now = memory.now();
            for held in &record.uses {
                if held.lease().is_some() {
                    locked.amend(held, now, |cell| cell.release(id, held.used.mark));
                }
            }
            record.uses.retain(|held| held.lease().is_none());
            record.released = true;
            Ok(first_time(now))
        })
    }

    pub(super) fn renew_now(&self, id: Id) -> Result<Renewed, Error> {
        self.with_record(id, |memory, records, place| {
            let (record, expires) = records.get_mut(place);
            match record.state {
                State::Open(_) => {}
                State::Booked => return Err(Error::NotClaimed),
                State::Settled(_) => return Err(Error::Conflict),
                State::Cancelled => return Err(Error::Gone),
                State::Lapsed => return Err(Error::Unknown),
            }
            let mut locked = memory.lock_uses(record);
            let now = memory.now();
            let Some(first) = record.until() else {
                return Err(Error::Unknown);
            };
            if first <= now || !leases_held(record, id, &mut locked, now) {
                return Err(Error::Lost);
            }
            let before = record.hold;
            let after = before.map(|hold| Hold { until: hold.until.max(now + hold.ttl), ..hold });
            for held in &mut record.uses {
                let mut mark = held.used.mark;
                locked.amend(held, now, |cell| {
                    mark = cell.renew(id, mark, now + held.window).unwrap_or(mark);
                    if let (Some(before), Some(after), true) = (before, after, held.refunds) {
                        cell.unhold(id, before.until);
                        cell.hold(id, after.until, held.used);
                    }
                });
                held.used.mark = mark;
            }
            record.hold = after;
            *expires = (*expires).max(record.kept_until(now));
            record.until().map(|until| Renewed { at: now, until }).ok_or(Error::Unknown)
        })
    }

    /// Runs `change` on the record of an id, with its shard locked.
    fn with_record<T>(
        &self,
        id: Id,
        change: impl FnOnce(&Self, &mut Table<Record>, Place) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let name = self.name_of_id(id);
        let Padded(records) = &self.records[usize::from(name.shard())];
        let records = &mut *records.lock();
        let place = self.live_record(name, records).ok_or(Error::Unknown)?;
        change(self, records, place)
    }

    /// The record under a name, unless it has expired: then it is gone.
    pub(super) fn live_record(&self, name: Name, records: &mut Table<Record>) -> Option<Place> {
        let place = records.find(name)?;
        let (_, expires) = records.get(place);
        if expires > self.now() {
            return Some(place);
        }
        records.remove(place);
        None
    }

    /// Whether an admission that was given leases still has all of them.
    pub(super) fn holds_leases(&self, record: &Record, id: Id) -> bool {
        let mut locked = self.lock_uses(record);
        let now = self.now();
        let any = record.uses.iter().any(|held| held.lease().is_some());
        any && leases_held(record, id, &mut locked, now)
    }

    fn lock_uses(&self, record: &Record) -> Locked<'_> {
        self.lock(record.uses.iter().map(|held| held.address.shard))
    }
}

/// Whether no lease of a record has expired or was forgotten by a reset.
fn leases_held(record: &Record, id: Id, locked: &mut Locked<'_>, now: Timestamp) -> bool {
    record.uses.iter().all(|held| match held.lease() {
        None => true,
        Some(until) => {
            let there = locked.amend(held, now, |cell| cell.leased(id, held.used.mark));
            until > now && there == Some(true)
        }
    })
}

/// The first lease of a plan that is not to be had now.
/// Whether every gate of a plan is open.
fn is_open(plan: &Plan<'_>, locked: &Locked<'_>, sites: &[Site], now: Timestamp) -> bool {
    plan.gates().all(|(index, gate)| {
        let earliest = locked.earliest(gate, &sites[index], now, Span::ZERO);
        matches!(earliest, Earliest::At { start, .. } if start == now)
    })
}

fn missing_lease(
    plan: &Plan<'_>,
    locked: &Locked<'_>,
    sites: &[Site],
    now: Timestamp,
) -> Option<(Timestamp, Hit)> {
    let leases = plan
        .charges()
        .iter()
        .enumerate()
        .filter(|(_, charge)| !charge.meter.bookable() && !charge.shadow());
    leases
        .map(|(index, charge)| (index, locked.earliest(charge, &sites[index], now, Span::ZERO)))
        .find_map(|(charge, earliest)| match earliest {
            Earliest::At { start, .. } if start == now => None,
            Earliest::At { start, limit } => Some((start, Hit { charge, limit })),
            Earliest::Never { limit } => Some((Timestamp::MAX, Hit { charge, limit })),
        })
}

/// Lets the estimates of a claimed booking be given back by themselves, where the rule says so.
fn hold_estimates(record: &Record, id: Id, locked: &mut Locked<'_>, now: Timestamp) {
    for held in &record.uses {
        if let Some(due) = record.refunded_at(held) {
            locked.amend(held, now, |cell| cell.hold(id, due, held.used));
        }
    }
}

/// Gives back all that a record has charged.
fn give_back(record: &Record, id: Id, locked: &mut Locked<'_>, now: Timestamp) {
    for held in &record.uses {
        let due = record.refunded_at(held);
        locked.amend(held, now, |cell| {
            cell.release(id, held.used.mark);
            if let Some(due) = due {
                cell.unhold(id, due);
            }
            if due.is_none_or(|due| due > now) {
                cell.give_back(held.used, now);
            }
        });
    }
}
