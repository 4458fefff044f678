//! [`Model`]: the reference implementation of the [store port](sluicegate_core::store), written to
//! be obviously correct.
//!
//! It keeps every use ever written, and finds the first time that fits by trying every time at
//! which usage leaves, straight from the definition of each limit. It shares no code with
//! [`sluicegate_core::algorithm`] except the numbers of a quota. Random operations must get the
//! same results from the model, from the memory store and from Redis.

mod counter;
mod lifecycle;

use std::collections::BTreeMap;

use counter::Counter;

use sluicegate_core::algorithm::Slack;
use sluicegate_core::decision::{Allow, Decision, Deny, Never, Readings};
use sluicegate_core::id::Id;
use sluicegate_core::limit::Unit;
use sluicegate_core::plan::{Charge, Plan, PlanStart};
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Error, GateClosure, Usage, kept_until};
use sluicegate_core::time::{Span, Timestamp};

/// The usage of all keys, as a plain value. Time is an argument and must not go back.
#[derive(Clone, Debug, Default)]
pub struct Model {
    counters: BTreeMap<CounterName, Counter>,
    records: BTreeMap<Id, Record>,
    serial: u64,
}

/// Key of a counter and the kind of its meter.
type CounterName = (String, u8);

#[derive(Clone, Debug)]
struct Record {
    state: RecordState,
    fingerprint: u64,
    /// Hash of the cost that the caller stated.
    stated: u64,
    start: Timestamp,
    slack: Span,
    keep: Option<Span>,
    /// Time to live and end of the hold.
    hold: Option<(Span, Timestamp)>,
    released: bool,
    leased: bool,
    told: Vec<Id>,
    window: Span,
    uses: Vec<RecordUse>,
    expires: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    Booked,
    Open(Option<Id>),
    Settled(Cost),
    Cancelled,
    Lapsed,
}

/// One charge of a record.
#[derive(Clone, Debug)]
struct RecordUse {
    counter: CounterName,
    at: Timestamp,
    serial: u64,
    unit: Unit,
    amount: u64,
    refunds: bool,
    how: ChargeParams,
}

/// The parameters needed to charge more of the same later.
#[derive(Clone, Copy, Debug)]
enum ChargeParams {
    Log,
    Window(Span),
    Calendar([Timestamp; 3], Timestamp),
    Bucket { drain_ns: u64, grain: u64 },
    Lease { until: Timestamp, ttl: Span },
}

impl RecordUse {
    fn lease(&self) -> Option<Timestamp> {
        match self.how {
            ChargeParams::Lease { until, .. } => Some(until),
            _ => None,
        }
    }
}

impl Record {
    fn until(&self) -> Option<Timestamp> {
        self.ends().min()
    }

    fn ends(&self) -> impl Iterator<Item = Timestamp> {
        let hold = self.hold.map(|(_, until)| until);
        self.uses.iter().filter_map(RecordUse::lease).chain(hold)
    }

    fn touch(&mut self, now: Timestamp) {
        let booked = (self.state == RecordState::Booked).then_some(self.start + self.slack);
        let last = self.ends().chain(booked).max();
        self.expires = self.expires.max(kept_until(now, self.keep, last, self.window));
    }
}

/// The part of a plan's charges to process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChargeSelection {
    All,
    Bookable,
    Leases,
}

impl ChargeSelection {
    fn has(self, bookable: bool) -> bool {
        match self {
            Self::All => true,
            Self::Bookable => bookable,
            Self::Leases => !bookable,
        }
    }

    /// Returns the time after its start at which a charge is written.
    fn slack(self, plan: &Plan<'_>, charge: &Charge<'_>) -> Slack {
        match self {
            Self::Bookable => plan.slack_of(charge),
            Self::All if plan.lead.is_some() => plan.slack_of(charge),
            Self::All | Self::Leases => Slack::NONE,
        }
    }
}

impl Model {
    /// See [`crate::Store::acquire`].
    pub fn acquire(&mut self, plan: &Plan<'_>, now: Timestamp) -> Result<Decision, Error> {
        self.advance(now);
        if plan.needs_record()
            && let Some(record) = self.known(plan.id.id)
        {
            return match record.state {
                RecordState::Cancelled => Err(Error::Gone),
                RecordState::Booked => Err(Error::Conflict),
                _ if record.fingerprint != plan.fingerprint() => Err(Error::Conflict),
                _ if record.leased && !self.holds_leases(record, now) => Err(Error::Lost),
                _ => Ok(self.replay(plan, record, now)),
            };
        }
        let decision = self.peek(plan, now)?;
        let Decision::Allow(allow) = decision else {
            return Ok(decision);
        };
        let (uses, shadowed) = self.write(plan, ChargeSelection::All, allow.start, now);
        let mut until = None;
        if plan.needs_record() {
            let mut record = self.record(plan, RecordState::Open(None), allow.start, uses);
            self.hold(plan, &mut record, now);
            until = record.until();
            record.touch(now);
            self.records.insert(plan.id.id, record);
        }
        let readings = self.readings(plan, now);
        Ok(Decision::Allow(Allow { until, shadowed: shadowed.into(), readings, ..allow }))
    }

    /// See [`crate::Store::peek`].
    pub fn peek(&mut self, plan: &Plan<'_>, now: Timestamp) -> Result<Decision, Error> {
        self.advance(now);
        let earliest = self.start(plan, now, ChargeSelection::All);
        let readings = self.readings(plan, now);
        let start = match earliest {
            PlanStart::Now => now,
            PlanStart::Later(start, _)
                if start <= plan.after_lead(now)
                    && plan.can_start_at(now, start)
                    && self.missing_lease(plan, now).is_none() =>
            {
                start
            }
            other => return denied(other, now, readings),
        };
        Ok(Decision::Allow(Allow {
            at: now,
            start,
            until: None,
            replayed: false,
            shadowed: self.shadowed(plan, start, ChargeSelection::All).into(),
            readings,
            charged_at: Vec::new(),
        }))
    }

    /// See [`crate::Store::book`].
    pub fn book(&mut self, plan: &Plan<'_>, now: Timestamp) -> Result<Decision, Error> {
        self.advance(now);
        if let Some(record) = self.known(plan.id.id) {
            return match record.state {
                RecordState::Cancelled => Err(Error::Gone),
                RecordState::Booked if record.fingerprint == plan.fingerprint() => {
                    Ok(self.replay(plan, record, now))
                }
                _ => Err(Error::Conflict),
            };
        }
        match self.book_anew(plan, now) {
            Ok((start, shadowed)) => Ok(Decision::Allow(Allow {
                at: now,
                start,
                until: Some(start + plan.slack),
                replayed: false,
                shadowed: shadowed.into(),
                readings: self.readings(plan, now),
                charged_at: Vec::new(),
            })),
            Err(start) => denied(start, now, self.readings(plan, now)),
        }
    }

    /// Writes a booking and its record.
    fn book_anew(
        &mut self,
        plan: &Plan<'_>,
        now: Timestamp,
    ) -> Result<(Timestamp, Vec<u16>), PlanStart> {
        let from = plan.after_lead(now);
        let start = match self.start(plan, from, ChargeSelection::Bookable) {
            PlanStart::Now => from,
            PlanStart::Later(start, _) if plan.can_start_at(now, start) => start,
            other => return Err(other),
        };
        let (uses, shadowed) = self.write(plan, ChargeSelection::Bookable, start, now);
        let mut record = self.record(plan, RecordState::Booked, start, uses);
        record.touch(now);
        self.records.insert(plan.id.id, record);
        Ok((start, shadowed))
    }

    /// See [`crate::Store::usage`].
    pub fn usage(&mut self, plan: &Plan<'_>, now: Timestamp) -> Usage {
        self.advance(now);
        Usage { at: now, readings: self.readings(plan, now) }
    }

    /// See [`crate::Store::refund`].
    pub fn refund(&mut self, plan: &Plan<'_>, now: Timestamp) -> Usage {
        self.advance(now);
        for charge in plan.charges() {
            let name = (charge.key.to_string(), charge.meter.kind());
            if let Some(counter) = self.counters.get_mut(&name) {
                counter.refund(&charge.meter, now, charge.take);
            }
        }
        Usage { at: now, readings: self.readings(plan, now) }
    }

    /// See [`crate::Store::reset`].
    pub fn reset(&mut self, plan: &Plan<'_>, now: Timestamp) {
        self.advance(now);
        for charge in plan.charges() {
            let name = (charge.key.to_string(), charge.meter.kind());
            if let Some(counter) = self.counters.get_mut(&name) {
                counter.reset(now);
            }
        }
    }

    /// See [`crate::Store::close`].
    pub fn close(&mut self, plan: &Plan<'_>, wait: Span, now: Timestamp) -> GateClosure {
        self.advance(now);
        let mut until = now;
        for (_, gate) in plan.gates() {
            let name = (gate.key.to_string(), gate.meter.kind());
            self.counter(&name).close(now + wait);
            let readings = self.counter(&name).readings(&gate.meter, now);
            until = readings.iter().map(|reading| reading.reset).fold(until, Timestamp::max);
        }
        GateClosure { at: now, until }
    }

    /// Drops expired records and makes automatic refunds that are due.
    fn advance(&mut self, now: Timestamp) {
        self.records.retain(|_, record| record.expires > now);
        for counter in self.counters.values_mut() {
            counter.give_back_due(now);
        }
    }

    /// Returns the record of an id, unless it has lapsed.
    fn known(&self, id: Id) -> Option<&Record> {
        self.records.get(&id).filter(|record| record.state != RecordState::Lapsed)
    }

    fn counter(&mut self, name: &CounterName) -> &mut Counter {
        self.counters.entry(name.clone()).or_default()
    }

    fn start(&self, plan: &Plan<'_>, from: Timestamp, part: ChargeSelection) -> PlanStart {
        let empty = Counter::default();
        plan.start(from, part == ChargeSelection::Bookable, |index, from| {
            let charge = &plan.charges()[index];
            let name = (charge.key.to_string(), charge.meter.kind());
            let counter = self.counters.get(&name).unwrap_or(&empty);
            counter.earliest(&charge.meter, from, charge.need, part.slack(plan, charge))
        })
    }

    /// Returns the shadow charges that do not fit at `start`.
    fn shadowed(&self, plan: &Plan<'_>, start: Timestamp, part: ChargeSelection) -> Vec<u16> {
        let empty = Counter::default();
        let charges = (0..).zip(plan.charges()).filter(|(_, charge)| charge.shadow());
        let denied = charges.filter(|(_, charge)| {
            let name = (charge.key.to_string(), charge.meter.kind());
            let counter = self.counters.get(&name).unwrap_or(&empty);
            !counter.fits(&charge.meter, start, charge.need, part.slack(plan, charge))
        });
        denied.map(|(index, _)| index).collect()
    }

    fn write(
        &mut self,
        plan: &Plan<'_>,
        part: ChargeSelection,
        start: Timestamp,
        now: Timestamp,
    ) -> (Vec<RecordUse>, Vec<u16>) {
        let shadowed = self.shadowed(plan, start, part);
        let mut uses = Vec::new();
        for (index, charge) in (0_u16..).zip(plan.charges()) {
            if !part.has(charge.meter.is_bookable()) || shadowed.contains(&index) {
                continue;
            }
            let slack = part.slack(plan, charge);
            self.serial += 1;
            let serial = self.serial;
            let name = (charge.key.to_string(), charge.meter.kind());
            let how = if charge.take == 0 {
                Counter::default().write(&charge.meter, start, slack, 0, serial)
            } else {
                self.counter(&name).write(&charge.meter, start, slack, charge.take, serial)
            };
            uses.push(RecordUse {
                counter: name,
                at: now,
                serial,
                unit: charge.unit(),
                amount: charge.take,
                refunds: charge.refunds() && charge.take > 0,
                how,
            });
        }
        (uses, shadowed)
    }

    /// Creates a record. If it replaces a lapsed one, it keeps its claimants for as long as before.
    fn record(
        &self,
        plan: &Plan<'_>,
        state: RecordState,
        start: Timestamp,
        uses: Vec<RecordUse>,
    ) -> Record {
        let lapsed = self.records.get(&plan.id.id);
        Record {
            state,
            fingerprint: plan.fingerprint(),
            stated: plan.statement_fingerprint(),
            start,
            slack: plan.slack,
            keep: plan.id.keep,
            hold: None,
            released: false,
            leased: uses.iter().any(|used| used.lease().is_some()),
            told: lapsed.map_or(Vec::new(), |record| record.told.clone()),
            window: plan.window(),
            uses,
            expires: lapsed.map_or(Timestamp::ZERO, |record| record.expires),
        }
    }

    /// Starts the hold of a record, and of every use that is refunded at its end.
    fn hold(&mut self, plan: &Plan<'_>, record: &mut Record, now: Timestamp) {
        let Some(ttl) = plan.hold else { return };
        record.hold = Some((ttl, now + ttl));
        for used in record.uses.iter().filter(|used| used.refunds) {
            self.counter(&used.counter).due.push((now + ttl, used.serial));
        }
    }

    fn replay(&self, plan: &Plan<'_>, record: &Record, now: Timestamp) -> Decision {
        let booked = record.start + record.slack;
        Decision::Allow(Allow {
            at: now,
            start: record.start,
            until: if record.state == RecordState::Booked { Some(booked) } else { record.until() },
            replayed: true,
            shadowed: Default::default(),
            readings: self.readings(plan, now),
            charged_at: Vec::new(),
        })
    }

    fn readings(&self, plan: &Plan<'_>, now: Timestamp) -> Readings {
        let empty = Counter::default();
        let readings = plan.charges().iter().flat_map(|charge| {
            let name = (charge.key.to_string(), charge.meter.kind());
            let counter = self.counters.get(&name).unwrap_or(&empty);
            counter.readings(&charge.meter, now)
        });
        readings.collect()
    }
}

fn denied(start: PlanStart, at: Timestamp, readings: Readings) -> Result<Decision, Error> {
    match start {
        PlanStart::Later(start, hit) => Ok(Decision::Deny(Deny { at, start, hit, readings })),
        PlanStart::Never(hit) => Ok(Decision::Never(Never { at, hit, readings })),
        PlanStart::Skew => Err(Error::ClockSkew),
        PlanStart::Now => unreachable!("what can start now is admitted"),
    }
}
