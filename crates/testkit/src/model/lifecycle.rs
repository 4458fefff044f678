//! The operations on an existing admission, by the table of [`sluicegate_core::store`].

use super::{ChargeParams, ChargeSelection, Model, Record, RecordState, RecordUse};
use sluicegate_core::algorithm::log::ENTRIES_PER_CHARGE_MAX;
use sluicegate_core::algorithm::{EarliestStart, Slack};
use sluicegate_core::decision::{Allow, Deny, Hit};
use sluicegate_core::id::Id;
use sluicegate_core::plan::{Handle, Plan, PlanStart};
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Claim, EndResult, Error, Renewal};
use sluicegate_core::time::{Span, Timestamp};

const fn first_time(at: Timestamp) -> EndResult {
    EndResult { at, replayed: false }
}

const fn replayed(at: Timestamp) -> EndResult {
    EndResult { at, replayed: true }
}

impl Model {
    /// See [`crate::Store::claim`].
    pub fn claim(&mut self, plan: &Plan<'_>, claimant: Id, now: Timestamp) -> Result<Claim, Error> {
        self.advance(now);
        let id = plan.id.id;
        let mut record = self.known(id).ok_or(Error::Unknown)?.clone();
        let claimed_by = match record.state {
            RecordState::Booked => None,
            RecordState::Open(Some(other)) => Some(other),
            RecordState::Cancelled => return Err(Error::Gone),
            _ => return Err(Error::Conflict),
        };
        if record.stated != plan.statement_fingerprint() {
            return Err(Error::Differs);
        }
        let reloaded = record.fingerprint != plan.fingerprint();
        let (start, good_until) = (record.start, record.start + record.slack);
        if record.told.contains(&claimant) {
            if claimed_by != Some(claimant) || now > good_until {
                return Ok(Claim::Spent);
            }
            let allow = self.go(plan, &record, true, now);
            return Ok(Claim::Go { allow, good_until });
        }
        if plan.after_lead(now) < start {
            return Ok(Claim::Early { at: now, start });
        }
        if !plan.can_start_at(now, now) {
            return Err(Error::ClockSkew);
        }
        let good = claimed_by.is_none() && now <= good_until && !reloaded;
        if good && self.is_open(plan, start.max(now)) {
            if let Some((start, hit)) = self.missing_lease(plan, now) {
                let readings = self.readings(plan, now);
                return Ok(Claim::Deny(Deny { at: now, start, hit, readings }));
            }
            let (leases, _) = self.write(plan, ChargeSelection::Leases, now, now);
            record.leased = !leases.is_empty();
            record.uses.extend(leases);
            record.state = RecordState::Open(Some(claimant));
            record.told.push(claimant);
            self.hold(plan, &mut record, now);
            record.touch(now);
            self.records.insert(id, record.clone());
            let allow = self.go(plan, &record, false, now);
            return Ok(Claim::Go { allow, good_until });
        }
        if claimed_by.is_none() {
            self.give_back_all(&record, now);
        }
        match self.book_anew(plan, now) {
            Ok((start, _)) => Ok(Claim::Rebooked { at: now, start }),
            Err(start) => {
                let lapsed =
                    Record { state: RecordState::Lapsed, uses: Vec::new(), hold: None, ..record };
                self.records.insert(id, lapsed);
                let (start, hit) = match start {
                    PlanStart::Later(start, hit) => (start, hit),
                    PlanStart::Never(hit) => (Timestamp::MAX, hit),
                    PlanStart::Now | PlanStart::Skew => unreachable!("both were looked at before"),
                };
                let readings = self.readings(plan, now);
                Ok(Claim::Deny(Deny { at: now, start, hit, readings }))
            }
        }
    }

    fn go(&self, plan: &Plan<'_>, record: &Record, replayed: bool, now: Timestamp) -> Allow {
        Allow {
            at: now,
            start: record.start,
            until: record.until(),
            replayed,
            shadowed: Default::default(),
            readings: self.readings(plan, now),
            charged_at: Vec::new(),
        }
    }

    /// Returns true if an admission with leases still holds all of them.
    pub(super) fn holds_leases(&self, record: &Record, now: Timestamp) -> bool {
        let mut leases = record.uses.iter().filter(|used| used.lease().is_some()).peekable();
        leases.peek().is_some()
            && leases.all(|used| {
                let there = self.counters.get(&used.counter).is_some_and(|c| c.has(used.serial));
                there && used.lease().is_some_and(|until| until > now)
            })
    }

    /// Returns true if every gate of a plan is open at a time.
    fn is_open(&self, plan: &Plan<'_>, at: Timestamp) -> bool {
        plan.gates().all(|(_, gate)| {
            let counter = self.counters.get(&(gate.key.to_string(), gate.meter.kind()));
            counter.is_none_or(|counter| counter.fits(&gate.meter, at, gate.need, Slack::NONE))
        })
    }

    pub(super) fn missing_lease(
        &self,
        plan: &Plan<'_>,
        now: Timestamp,
    ) -> Option<(Timestamp, Hit)> {
        let empty = super::Counter::default();
        for (charge, wanted) in plan.charges().iter().enumerate() {
            if wanted.meter.is_bookable() || wanted.shadow() {
                continue;
            }
            let name = (wanted.key.to_string(), wanted.meter.kind());
            let counter = self.counters.get(&name).unwrap_or(&empty);
            match counter.earliest(&wanted.meter, now, wanted.need, Slack::NONE) {
                EarliestStart::At { start, limit } if start > now => {
                    return Some((start, Hit { charge, limit }));
                }
                EarliestStart::Never { limit } => {
                    return Some((Timestamp::MAX, Hit { charge, limit }));
                }
                _ => {}
            }
        }
        None
    }

    /// See [`crate::Store::cancel`].
    pub fn cancel(&mut self, handle: &Handle, now: Timestamp) -> Result<EndResult, Error> {
        let id = handle.id;
        self.advance(now);
        let record = self.records.get(&id).cloned();
        match record.as_ref().map(|record| record.state) {
            Some(RecordState::Cancelled) => return Ok(replayed(now)),
            Some(RecordState::Settled(_)) => return Err(Error::Conflict),
            _ => {}
        }
        if let Some(record) = &record {
            match record.state {
                RecordState::Open(Some(claimant)) if handle.claimant != Some(claimant) => {}
                _ => self.give_back_all(record, now),
            }
        }
        let mut tombstone = Record {
            state: RecordState::Cancelled,
            fingerprint: 0,
            stated: 0,
            start: now,
            slack: Span::ZERO,
            keep: record.as_ref().and_then(|record| record.keep),
            hold: None,
            released: false,
            leased: false,
            told: Vec::new(),
            window: Span::ZERO,
            uses: Vec::new(),
            expires: record.map_or(Timestamp::ZERO, |record| record.expires),
        };
        tombstone.touch(now);
        self.records.insert(id, tombstone);
        Ok(first_time(now))
    }

    /// See [`crate::Store::settle`].
    pub fn settle(&mut self, id: Id, actual: &Cost, now: Timestamp) -> Result<EndResult, Error> {
        self.advance(now);
        let mut record = self.known(id).ok_or(Error::Unknown)?.clone();
        match record.state {
            RecordState::Open(_) => {}
            RecordState::Booked => return Err(Error::NotClaimed),
            RecordState::Cancelled => return Err(Error::Gone),
            RecordState::Settled(before) if before == *actual => return Ok(replayed(now)),
            RecordState::Settled(_) => return Err(Error::Conflict),
            RecordState::Lapsed => return Err(Error::Unknown),
        }
        let in_log = record.uses.iter().any(|used| matches!(used.how, ChargeParams::Log));
        if in_log && actual.requests.unwrap_or_default() > ENTRIES_PER_CHARGE_MAX {
            return Err(Error::TooMany);
        }
        let hold = record.hold.map(|(_, until)| until);
        for used in &record.uses {
            let forgotten = self.forgotten(used);
            self.serial += 1;
            let serial = self.serial;
            let counter = self.counter(&used.counter);
            if used.lease().is_some() {
                counter.lease(used.serial, None);
                continue;
            }
            counter.due.retain(|(_, serial)| *serial != used.serial);
            let Some(actual) = actual.of(used.unit) else {
                continue;
            };
            let refunded = used.refunds && hold.is_some_and(|until| until <= now);
            let charged = if refunded { 0 } else { used.amount };
            if actual > charged {
                counter.add(used.how, now, actual - charged, serial);
            } else if !forgotten {
                counter.give_back(used.serial, charged - actual, now);
            }
        }
        record.state = RecordState::Settled(*actual);
        record.hold = None;
        record.uses.clear();
        record.touch(now);
        self.records.insert(id, record);
        Ok(first_time(now))
    }

    /// See [`crate::Store::release`].
    pub fn release(&mut self, id: Id, now: Timestamp) -> Result<EndResult, Error> {
        self.advance(now);
        let mut record = self.known(id).ok_or(Error::Unknown)?.clone();
        match record.state {
            RecordState::Open(_) if record.released => return Ok(replayed(now)),
            RecordState::Open(_) => {}
            RecordState::Settled(_) => return Ok(replayed(now)),
            RecordState::Booked => return Err(Error::NotClaimed),
            RecordState::Cancelled => return Err(Error::Gone),
            RecordState::Lapsed => return Err(Error::Unknown),
        }
        for used in record.uses.iter().filter(|used| used.lease().is_some()) {
            self.counter(&used.counter).lease(used.serial, None);
        }
        record.uses.retain(|used| used.lease().is_none());
        record.released = true;
        self.records.insert(id, record);
        Ok(first_time(now))
    }

    /// See [`crate::Store::renew`].
    pub fn renew(&mut self, id: Id, now: Timestamp) -> Result<Renewal, Error> {
        self.advance(now);
        let mut record = self.known(id).ok_or(Error::Unknown)?.clone();
        match record.state {
            RecordState::Open(_) => {}
            RecordState::Booked => return Err(Error::NotClaimed),
            RecordState::Settled(_) => return Err(Error::Conflict),
            RecordState::Cancelled => return Err(Error::Gone),
            RecordState::Lapsed => return Err(Error::Unknown),
        }
        let first = record.until().ok_or(Error::Unknown)?;
        let mut leases = record.uses.iter().filter(|used| used.lease().is_some());
        let gone = leases.any(|used| {
            self.counters.get(&used.counter).is_none_or(|counter| !counter.has(used.serial))
        });
        if first <= now || gone {
            return Err(Error::Lost);
        }
        let hold = record.hold.map(|(ttl, until)| (ttl, until.max(now + ttl)));
        for used in &mut record.uses {
            let counter = self.counters.entry(used.counter.clone()).or_default();
            if let ChargeParams::Lease { until, ttl } = used.how {
                let until = until.max(now + ttl);
                counter.lease(used.serial, Some(until));
                used.how = ChargeParams::Lease { until, ttl };
            }
            for (due, serial) in &mut counter.due {
                if let Some((_, until)) = hold
                    && *serial == used.serial
                {
                    *due = until;
                }
            }
        }
        record.hold = hold;
        record.touch(now);
        let until = record.until();
        self.records.insert(id, record);
        until.map(|until| Renewal { at: now, until }).ok_or(Error::Unknown)
    }

    /// Returns true if the counter of a use was reset since.
    fn forgotten(&self, used: &RecordUse) -> bool {
        let counter = self.counters.get(&used.counter);
        counter.and_then(|counter| counter.reset_at).is_some_and(|reset| used.at <= reset)
    }

    /// Refunds all charges of a record that were not refunded automatically.
    fn give_back_all(&mut self, record: &Record, now: Timestamp) {
        for used in &record.uses {
            let forgotten = self.forgotten(used);
            let counter = self.counter(&used.counter);
            if used.lease().is_some() {
                counter.lease(used.serial, None);
            } else if !forgotten {
                counter.due.retain(|(_, serial)| *serial != used.serial);
                counter.give_back(used.serial, u64::MAX, now);
            }
        }
    }
}
