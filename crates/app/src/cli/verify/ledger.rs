//! The ledger: replays the log entries onto counters and slots, and has each of them checked.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

use sluicegate_checker::{Bound, CheckedScope, Finding, LogError};
use sluicegate_core::limit::{LimitError, Unit};
use sluicegate_core::time::SpanError;
use sluicegate_core::{Limit, Rule, Span, Timestamp};

use super::counter::{Admit, Counter, DISORDER_MAX, LimitBounds, LimitResult};
use super::line::{
    Charge, Decider, Decision, DecisionUpdate, Effect, ROUNDING, ShownCount, UnansweredCall,
    UnconfirmedCharge,
};
use super::logs::LogPosition;
use super::processes::{Process, Processes};
use super::slots::{ConcurrencyCounter, SlotReport, SlotVerdict};
use super::store_counts::{ReportedCount, StoreCharge, UnexplainedCount, UnloggedCharges};

/// Collects admissions and their settlements, and checks every counter.
pub(super) struct Ledger {
    options: ProofOptions,
    counters: HashMap<String, Counter>,
    slots: HashMap<String, ConcurrencyCounter>,
    /// Reservations, bookings and leases that may still change, by request id.
    held: HashMap<String, HeldRequest>,
    /// Hashes of the ids of all admitted requests.
    ids: HashSet<u64>,
    hasher: RandomState,
    /// Bounds to prove, by index of the limit set.
    limit_bounds: Vec<LimitBounds>,
    /// Limit sets seen so far, by name of the rule.
    limit_sets: HashMap<String, Vec<KnownLimits>>,
    /// Time of the latest decision.
    now: Timestamp,
    /// Time from which the log is complete.
    begin: Timestamp,
    /// Number of admitted requests.
    admits: u64,
    /// Number of admissions that nodes decided on their own.
    by_node: u64,
    /// Number of admissions that arrived too late to be checked.
    late: u64,
    /// Charges that may exist although no admission reports them.
    unlogged: UnloggedCharges,
    /// True if something was given back that was not known to be held.
    given_back: bool,
    /// Number of reported counts that contain usage of other keys.
    shared: u64,
    /// Counts that the log does not explain, with the keys of their counters.
    unexplained: Vec<(String, UnexplainedCount)>,
}

/// The bounds to prove, from the command line.
#[derive(Clone, Copy)]
pub(super) struct ProofOptions {
    /// Multiple of each limit that the store may admit.
    pub(super) store: Bound,
    /// Multiple of each limit that the store and nodes on their own may admit together.
    pub(super) all: Bound,
    /// Maximum clock difference.
    pub(super) spread: Span,
}

/// Maximum number of unexplained counts to keep: one is enough to fail the check.
const UNEXPLAINED_MAX: usize = 10_000;

/// The reservation, booking and leases of one request.
#[derive(Default)]
struct HeldRequest {
    /// One entry per counter.
    admits: Vec<HeldCharge>,
    /// Expiry of the reservation or booking.
    until: Option<Timestamp>,
    /// Counter key and number of each lease.
    leases: Vec<(String, u64)>,
    /// Keys of the leases that it had before its booking was moved.
    leased_before: Vec<String>,
    /// Process that claimed the booking.
    claimant: Option<String>,
}

/// The part of a reservation or booking that is on one counter.
struct HeldCharge {
    key: String,
    unit: String,
    /// Number among the admissions of the counter; none if it arrived too late to be checked.
    number: Option<u64>,
    amount: u64,
    /// Index of the limit set that it was admitted under.
    limit_set: usize,
    /// Sequence number among the charges that the store counts.
    serial: u64,
}

/// A parsed limit set.
struct KnownLimits {
    texts: Vec<String>,
    amounts: Vec<u64>,
    /// Unit that the limits count.
    unit: &'static str,
    limit_set: LimitSet,
}

impl KnownLimits {
    /// Checks that the amounts and the unit in a line match the limits in it.
    fn check(&self, charge: &Charge) -> Result<(), RecordError> {
        if charge.unit != self.unit {
            let Charge { key, unit, .. } = charge;
            let counts = self.unit;
            return Err(RecordError::Contradiction(format!(
                "{key}: charged in {unit}, but its limit counts {counts}"
            )));
        }
        for ((text, amount), shown) in self.texts.iter().zip(&self.amounts).zip(&charge.shown) {
            let shown = shown.limit;
            // Dollars are parsed as floats, so the last digit may be off.
            if amount.abs_diff(shown) > 2 * u64::from(charge.unit == Charge::MONEY) {
                let key = &charge.key;
                return Err(RecordError::Contradiction(format!(
                    "{key}: limit {text} is logged with the amount {shown}"
                )));
            }
        }
        Ok(())
    }
}

#[derive(Clone)]
enum LimitSet {
    /// Index into the bounds to prove.
    Rated(usize),
    /// Limit on concurrent slots.
    Leases(Limit),
}

/// Result of the check of all logs.
pub(super) struct Outcome {
    /// Every limit of every counter, the fullest first.
    pub(super) rows: Vec<Row>,
    pub(super) admits: u64,
    pub(super) counters: usize,
    pub(super) limits: usize,
    pub(super) late: u64,
    /// Number of admissions that nodes decided on their own.
    pub(super) by_node: u64,
    /// Number of reported counts that contain usage of other keys.
    pub(super) shared: u64,
    /// Counts that the log does not explain, in order of time.
    pub(super) unexplained: Vec<(String, UnexplainedCount)>,
}

/// Result for one limit of one counter.
pub(super) struct Row {
    pub(super) key: String,
    /// Number of requests admitted on the counter.
    pub(super) admits: u64,
    /// The fullest window of those to show; none if all windows are later than the proof.
    pub(super) peak: Option<Finding>,
    pub(super) found: LimitResult,
}

/// Reason for which a log entry could not be recorded.
pub(super) enum RecordError {
    /// A limit in the line can't be parsed.
    Line(LimitError),
    /// The lease in the line can't be parsed.
    Lease(SpanError),
    /// The amount or unit in the line contradicts the limit.
    Contradiction(String),
    /// The bounds of the command line can't be applied.
    Bounds(LogError),
}

impl From<LimitError> for RecordError {
    fn from(error: LimitError) -> Self {
        Self::Line(error)
    }
}

impl From<LogError> for RecordError {
    fn from(malformed: LogError) -> Self {
        Self::Bounds(malformed)
    }
}

impl Ledger {
    pub(super) fn new(options: ProofOptions) -> Self {
        Self {
            options,
            counters: HashMap::new(),
            slots: HashMap::new(),
            held: HashMap::new(),
            ids: HashSet::new(),
            hasher: RandomState::new(),
            limit_bounds: Vec::new(),
            limit_sets: HashMap::new(),
            now: Timestamp::ZERO,
            begin: Timestamp::ZERO,
            admits: 0,
            by_node: 0,
            late: 0,
            unlogged: UnloggedCharges::default(),
            given_back: false,
            shared: 0,
            unexplained: Vec::new(),
        }
    }

    /// Sets the time from which the log is complete, as far as it has been read.
    pub(super) fn begins(&mut self, at: Timestamp) {
        self.begin = at;
    }

    /// Records that the store did not respond to a call, with the charges that it may have made.
    pub(super) fn unanswered(&mut self, at: Timestamp, call: &UnansweredCall) {
        self.unlogged.add_unanswered(at);
        for UnconfirmedCharge { key, take } in &call.unconfirmed {
            self.unlogged.add_unconfirmed(at, key, *take);
        }
        match self.held.get(&call.id) {
            Some(held) => {
                for admit in &held.admits {
                    let debt = call.cost.get(&admit.unit).copied().unwrap_or(0);
                    self.unlogged.add_unconfirmed(at, &admit.key, debt);
                }
            }
            None => {
                for (unit, amount) in &call.cost {
                    self.unlogged.add_settlement(at, unit, *amount);
                }
            }
        }
    }

    /// Records the charges of a decision.
    pub(super) fn record(
        &mut self,
        position: LogPosition,
        decision: &Decision,
    ) -> Result<(), RecordError> {
        self.now = self.now.max(decision.at);
        if decision.unanswered {
            self.unlogged.add_unanswered(decision.at);
        }
        // An admission by an outage policy reports its charges anyway.
        for charge in decision.unconfirmed.iter().filter(|_| !decision.allowed) {
            self.unlogged.add_unconfirmed(decision.at, &charge.key, charge.take);
        }
        let id = self.hasher.hash_one(&decision.id);
        let known = self.ids.contains(&id);
        let claim = decision.claimant.is_some();
        let (by_node, first_time) = match decision.by {
            Decider::None => {
                if !decision.allowed {
                    self.unlogged.add_denial(decision.at);
                    self.unlogged.denials_sampled |= decision.sampled;
                }
                return Ok(());
            }
            Decider::Store => (false, !(claim && known)),
            Decider::Node => (true, true),
            Decider::Replay { node } => (node, !known),
        };
        let replayed = matches!(decision.by, Decider::Replay { .. });
        if replayed && known {
            return Ok(());
        }
        self.ids.insert(id);
        let mut held =
            HeldRequest { claimant: decision.claimant.clone(), ..HeldRequest::default() };
        held.until = decision.until;
        // The store reports its count only for charges made by this decision.
        let shows = decision.by == Decider::Store && !claim;
        let admission = AdmissionRecord {
            position,
            decision,
            by_node,
            shows,
            rated: first_time,
            moved_from: &[],
        };
        let admitted = self.charge(&admission, &decision.charges, &mut held)?;
        if decision.allowed {
            self.admits += u64::from(admitted && first_time);
            self.by_node += u64::from(admitted && by_node);
        }
        if held.admits.is_empty() && held.leases.is_empty() && held.claimant.is_none() {
            return Ok(());
        }
        match self.held.get_mut(&decision.id) {
            // A claimed booking: adds the leases to the charges of the booking.
            Some(known) if claim => {
                known.claimant = held.claimant;
                known.leases.extend(held.leases);
                known.admits.extend(held.admits);
            }
            _ => {
                self.held.insert(decision.id.clone(), held);
            }
        }
        Ok(())
    }

    /// Records a settlement, release, cancellation or another change of earlier work.
    pub(super) fn follow(
        &mut self,
        position: LogPosition,
        update: &DecisionUpdate,
    ) -> Result<(), RecordError> {
        let DecisionUpdate { id, at, effect, .. } = update;
        self.now = self.now.max(*at);
        match effect {
            Effect::Settled(cost) => {
                let Some(held) = self.held.remove(id) else {
                    self.settled_unknown(update, cost);
                    return Ok(());
                };
                let over = held.until.is_some_and(|until| until <= *at);
                for admit in &held.admits {
                    let actual = cost.get(&admit.unit).copied();
                    self.settle(admit, actual.unwrap_or(u64::MAX));
                    if !over {
                        let back = admit.amount.saturating_sub(actual.unwrap_or(u64::MAX));
                        self.give_back(admit, update, back);
                    }
                    self.owe(admit, over, actual.unwrap_or(0), update, position);
                }
                self.end_leases(&held, update);
            }
            Effect::Released => {
                if let Some(held) = self.held.get_mut(id) {
                    let leases = std::mem::take(&mut held.leases);
                    self.end_leases(&HeldRequest { leases, ..HeldRequest::default() }, update);
                }
            }
            Effect::Cancelled { claimant } => {
                let Some(held) = self.held.remove(id) else {
                    self.given_back = true;
                    return Ok(());
                };
                // Another claimant may already have started the work.
                let used = held.claimant.is_some() && held.claimant != *claimant;
                for admit in &held.admits {
                    self.settle(admit, if used { u64::MAX } else { 0 });
                    self.give_back(admit, update, if used { 0 } else { admit.amount });
                }
                if !used {
                    self.end_leases(&held, update);
                }
            }
            Effect::Renewed => {
                for (key, number) in self.held.get(id).into_iter().flat_map(|held| &held.leases) {
                    if let Some(slots) = self.slots.get_mut(key) {
                        slots.renew(*number, *at);
                    }
                }
            }
            Effect::Rebooked { start, charges } => {
                let before = self.held.remove(id).unwrap_or_default();
                for admit in &before.admits {
                    let used = before.claimant.is_some();
                    self.settle(admit, if used { u64::MAX } else { 0 });
                    self.give_back(admit, update, if used { 0 } else { admit.amount });
                }
                let mut held = HeldRequest::default();
                held.leased_before.clone_from(&before.leased_before);
                held.leased_before.extend(before.leases.iter().map(|(key, _)| key.clone()));
                let decision = Decision {
                    id: id.clone(),
                    allowed: true,
                    by: Decider::Store,
                    at: *at,
                    earliest: update.earliest,
                    start: *start,
                    latest: *start + BOOKED_LATE_MAX,
                    until: Some(*start),
                    firm: false,
                    claimant: None,
                    charges: Vec::new(),
                    unanswered: false,
                    unconfirmed: Vec::new(),
                    sampled: false,
                };
                let admission = AdmissionRecord {
                    position,
                    decision: &decision,
                    by_node: false,
                    shows: false,
                    rated: true,
                    moved_from: &before.admits,
                };
                let admitted = self.charge(&admission, charges, &mut held)?;
                // Its claim does not charge it again, also if it was booked before the log begins.
                let first_time = self.ids.insert(self.hasher.hash_one(id));
                self.admits += u64::from(admitted && first_time);
                self.held.insert(id.clone(), held);
            }
            Effect::Refunded { charges } => {
                for charge in charges {
                    if let Some(counter) = self.counters.get_mut(&charge.key) {
                        counter.refund(*at, charge.take);
                    }
                }
            }
            Effect::Reset { keys } => {
                for key in keys {
                    if let Some(counter) = self.counters.get_mut(key) {
                        counter.reset(*at);
                    }
                    if let Some(slots) = self.slots.get_mut(key) {
                        slots.reset(*at);
                    }
                }
            }
            Effect::Nothing => {}
        }
        Ok(())
    }

    /// Records a settlement of a request that is not known to be held: it was admitted before the log
    /// begins, or was never a reservation.
    fn settled_unknown(&mut self, update: &DecisionUpdate, cost: &HashMap<String, u64>) {
        self.given_back = true;
        for (unit, amount) in cost {
            self.unlogged.add_settlement(update.at, unit, *amount);
        }
    }

    /// Records that the store subtracts `amount` of an admission.
    fn give_back(&mut self, admit: &HeldCharge, update: &DecisionUpdate, amount: u64) {
        if let Some(counter) = self.counters.get_mut(&admit.key) {
            counter.store.give_back((update.earliest, update.at), admit.serial, amount);
        }
    }

    /// Records a debt: the actual cost beyond the estimate, which the store charges at the settlement.
    fn owe(
        &mut self,
        admit: &HeldCharge,
        expired: bool,
        actual: u64,
        update: &DecisionUpdate,
        position: LogPosition,
    ) {
        let Some(counter) = self.counters.get_mut(&admit.key) else { return };
        let debt = actual.saturating_sub(admit.amount);
        if debt > 0 {
            counter.owe(update.at, debt, position, admit.limit_set);
        }
        // The store may have given back an expired estimate, and then charges all of the cost.
        let amount = if expired { actual } else { debt };
        if amount > 0 {
            let (earliest, latest, from) = (update.earliest, update.at, update.at);
            let (until, serial) = (None, 0);
            let at = update.at;
            counter.store.charge(StoreCharge { at, earliest, latest, from, amount, until, serial });
        }
    }

    /// Records charges on their counters. Returns true if any of them is checked.
    fn charge(
        &mut self,
        admitted: &AdmissionRecord<'_>,
        charges: &[Charge],
        held: &mut HeldRequest,
    ) -> Result<bool, RecordError> {
        let Decision { at, earliest, start, latest, firm, .. } = *admitted.decision;
        let charges = charges.iter().filter(|charge| charge.is_checked());
        let charges = charges.map(|charge| Ok((charge, self.limit_set(charge)?)));
        let charges: Vec<_> = charges.collect::<Result<_, RecordError>>()?;
        let any = !charges.is_empty();
        for (charge, limit_set) in charges {
            let (key, amount) = (&charge.key, charge.take);
            let charged_at = charge.charged_at.unwrap_or(start);
            match limit_set {
                LimitSet::Leases(limit) => {
                    let length = match &charge.lease {
                        Some(text) => text.parse().map_err(RecordError::Lease)?,
                        None => Rule::LEASE,
                    };
                    // A claim takes its leases when it is made, long after the charges of its booking.
                    let claimed = admitted.decision.claimant.is_some();
                    let taken = if claimed { at } else { at.min(start) };
                    let at = charge.charged_at.unwrap_or(taken);
                    let slots = self.slots.entry(key.clone());
                    let slots = slots.or_insert_with(|| ConcurrencyCounter::new(limit.clone()));
                    let known = self.held.get(&admitted.decision.id);
                    let again = known.is_some_and(|known| known.leased_before.contains(key));
                    slots.requests += u64::from(!again);
                    if admitted.shows && charge.charged_at.is_none() {
                        let shown = charge.shown.iter().filter(|shown| !shown.shared);
                        if let Some(count) = shown.map(|shown| shown.count).max() {
                            let reported_at = admitted.decision.at;
                            let own = if at == reported_at { amount } else { 0 };
                            let (at, position) = (reported_at, admitted.position);
                            slots.report(SlotReport { at, count, own, position });
                        }
                    }
                    let times = (earliest.min(at), at);
                    let number = slots.start(&limit, times, amount, length, admitted.by_node);
                    held.leases.push((key.clone(), number));
                    if slots.is_due() {
                        let until = self.now - DISORDER_MAX;
                        let found = slots.compare(self.begin, until, &self.unlogged);
                        add_unexplained(&mut self.unexplained, key, found);
                        slots.check(key, self.now, self.options.store, self.options.all)?;
                    }
                }
                LimitSet::Rated(_) if !admitted.rated => {}
                LimitSet::Rated(limit_set) => {
                    // In a cluster, the clock of the counter's own server counts.
                    let own = |instant: Timestamp| match charge.charged_at {
                        Some(charged_at) => charged_at - at.since(instant),
                        None => instant,
                    };
                    let from = latest.max(start).since(start) + rounded_up(key);
                    let entry = StoreCharge {
                        at: own(at).min(charged_at),
                        earliest: own(earliest).min(charged_at),
                        latest: own(at).max(charged_at),
                        from: charged_at + from,
                        amount,
                        until: (!firm).then_some(admitted.decision.until).flatten(),
                        serial: 0,
                    };
                    let (position, by_node) = (admitted.position, admitted.by_node);
                    let counter = match self.counters.get_mut(key) {
                        Some(counter) => counter,
                        None => self.counters.entry(key.to_owned()).or_default(),
                    };
                    counter.store.across_slots |= charge.charged_at.is_some();
                    if counter.store.unit.is_empty() {
                        counter.store.unit.clone_from(&charge.unit);
                    }
                    for (limit, &ShownCount { count, shared, reset, .. }) in
                        charge.shown.iter().enumerate()
                    {
                        let at = own(at);
                        // A cluster node may have been called twice.
                        let by = match charge.charged_at {
                            Some(_) => at + entry.latest.since(entry.earliest),
                            None => at,
                        };
                        if admitted.shows {
                            self.shared += u64::from(shared);
                            counter.store.report(ReportedCount {
                                at,
                                by,
                                count,
                                shared,
                                // Computed with the clock of another server in a cluster.
                                reset: reset.filter(|_| charge.charged_at.is_none()),
                                position,
                                limit_set,
                                limit,
                            });
                        }
                    }
                    let ahead = match entry.from > own(at) {
                        true => entry.from.since(entry.earliest),
                        false => Span::ZERO,
                    };
                    counter.store.ahead = counter.store.ahead.max(ahead);
                    let serial = counter.store.charge(entry);
                    if !admitted.decision.allowed {
                        // Counted by the store, but the caller was denied.
                        continue;
                    }
                    let is_moved = admitted.moved_from.iter().any(|before| before.key == *key);
                    counter.requests += u64::from(!is_moved);
                    let need = charge.need.unwrap_or(amount);
                    let start = charged_at;
                    let admit = Admit {
                        at,
                        start,
                        amount,
                        need,
                        by_node,
                        position,
                        limit_set,
                        firm,
                        debt: false,
                        number: 0,
                    };
                    let number = counter.record(admit).ok();
                    self.late += u64::from(number.is_none());
                    if counter.is_due() {
                        self.check(key, false)?;
                    }
                    if !firm {
                        let (key, unit) = (key.clone(), charge.unit.clone());
                        held.admits.push(HeldCharge {
                            key,
                            unit,
                            number,
                            amount,
                            limit_set,
                            serial,
                        });
                    }
                }
            }
        }
        Ok(any)
    }

    /// Checks a counter, and compares it with the counts that the store reported.
    fn check(&mut self, key: &str, end: bool) -> Result<(), LogError> {
        let Some(counter) = self.counters.get_mut(key) else { return Ok(()) };
        self.unlogged.sort(key);
        let until = if end { Timestamp::MAX } else { self.now - DISORDER_MAX };
        let unlogged = (key, &self.unlogged);
        let found =
            counter.compare(self.begin, until, self.given_back, unlogged, &self.limit_bounds);
        add_unexplained(&mut self.unexplained, key, found);
        counter.check(key, self.now, &self.limit_bounds, end)
    }

    fn settle(&mut self, admit: &HeldCharge, at_most: u64) {
        let counter = self.counters.get_mut(&admit.key);
        if let Some((counter, number)) = counter.zip(admit.number) {
            counter.settle(number, at_most);
        }
    }

    fn end_leases(&mut self, held: &HeldRequest, update: &DecisionUpdate) {
        for (key, number) in &held.leases {
            if let Some(slots) = self.slots.get_mut(key) {
                slots.end(*number, (update.earliest, update.at));
            }
        }
    }

    /// Returns the limit set of a charge. Each set is parsed once, because every line repeats it.
    fn limit_set(&mut self, charge: &Charge) -> Result<LimitSet, RecordError> {
        // A key starts with the name of its rule.
        let rule = charge.key.split([':', '#']).next().unwrap_or_default();
        if let Some(known) = self.limit_sets.get(rule)
            && let Some(known) = known.iter().find(|known| known.texts == charge.limits)
        {
            known.check(charge)?;
            return Ok(known.limit_set.clone());
        }
        let limits: Vec<Limit> =
            charge.limits.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let amounts = limits.iter().map(|limit| limit.amount().get()).collect();
        let unit = limits.first().map(Limit::unit);
        let slots = limits.iter().filter(|limit| matches!(limit, Limit::Concurrent(_)));
        let limit_set = match slots.max_by_key(|limit| limit.amount()) {
            Some(limit) => LimitSet::Leases(limit.clone()),
            None => {
                let ProofOptions { store, all, spread } = self.options;
                let scopes = |bound| {
                    let scope = |limit: &Limit| CheckedScope::new(limit.clone()).bound(bound);
                    limits.iter().map(|limit| scope(limit).spread(spread)).collect()
                };
                self.limit_bounds.push(LimitBounds { store: scopes(store), all: scopes(all) });
                LimitSet::Rated(self.limit_bounds.len() - 1)
            }
        };
        let unit = match unit {
            Some(Unit::Usd) => Charge::MONEY,
            Some(unit) => unit.name(),
            None => "",
        };
        let known = KnownLimits {
            texts: charge.limits.clone(),
            amounts,
            unit,
            limit_set: limit_set.clone(),
        };
        known.check(charge)?;
        self.limit_sets.entry(rule.to_owned()).or_default().push(known);
        Ok(limit_set)
    }

    /// Checks all counters and returns the result. Windows after the end of the logs are shown only if
    /// they exceed a limit.
    pub(super) fn finish(mut self, processes: &mut Processes) -> Result<Outcome, LogError> {
        let counters = self.counters.len() + self.slots.len();
        let rated: usize = self.limit_bounds.iter().map(|proof| proof.store.len()).sum();
        let leased = self.limit_sets.values().flatten();
        let leased = leased.filter(|known| matches!(known.limit_set, LimitSet::Leases(_))).count();
        let mut slots = std::mem::take(&mut self.slots);
        for (key, slots) in &mut slots {
            let found = slots.compare(self.begin, Timestamp::MAX, &self.unlogged);
            add_unexplained(&mut self.unexplained, key, found);
            slots.check(key, self.now, self.options.store, self.options.all)?;
        }
        let keys: Vec<_> = self.counters.keys().cloned().collect();
        for key in keys {
            self.check(&key, true)?;
        }
        let mut unexplained = self.unexplained;
        unexplained.sort_by_key(|(_, found)| found.at);
        let relevant = unexplained.iter().filter(|(_, found)| found.at >= self.begin);
        let since = relevant.map(|(_, found)| found.since).min();
        // If there are too many, the first of them may not be among those that were kept.
        if let Some(since) = since.filter(|_| unexplained.len() < UNEXPLAINED_MAX) {
            processes.allow_for_decisions_in_progress(since);
        }
        let up_to = processes.up_to().map_or(Timestamp::MAX, Process::known_until);
        let mut rows = Vec::new();
        for (key, slots) in slots {
            let admits = slots.requests;
            for SlotVerdict { scope, peaks, first } in slots.verdicts() {
                let exceeded = first.map(|finding| (finding, None));
                let found = LimitResult { scope, peaks, exceeded, unsettled: None };
                rows.push(Row::new(key.clone(), admits, found, up_to));
            }
        }
        for (key, counter) in self.counters {
            let row = |found| Row::new(key.clone(), counter.requests, found, up_to);
            rows.extend(counter.found.into_iter().map(row));
        }
        rows.sort_by(|a, b| {
            let order = b.fullness().total_cmp(&a.fullness());
            order.then_with(|| a.key.cmp(&b.key))
        });
        Ok(Outcome {
            rows,
            admits: self.admits,
            counters,
            limits: rated + leased,
            late: self.late,
            by_node: self.by_node,
            shared: self.shared,
            unexplained,
        })
    }
}

/// Adds counts that the log does not explain, up to the maximum.
fn add_unexplained(
    all: &mut Vec<(String, UnexplainedCount)>,
    key: &str,
    found: Vec<UnexplainedCount>,
) {
    let room = UNEXPLAINED_MAX.saturating_sub(all.len());
    all.extend(found.into_iter().take(room).map(|one| (key.to_owned(), one)));
}

/// An admission that is being recorded.
struct AdmissionRecord<'d> {
    position: LogPosition,
    decision: &'d Decision,
    /// True if a node decided it on its own.
    by_node: bool,
    /// True if the line contains the store's counts.
    shows: bool,
    /// True if it is charged on rate limits now; false if only leases are added.
    rated: bool,
    /// Charges of the booking that it replaces: the request is not another one on their counters.
    moved_from: &'d [HeldCharge],
}

/// Maximum time after its start at which a moved booking may be used: its line does not contain it.
const BOOKED_LATE_MAX: Span = Span::from_secs(60);

/// Returns the time that Redis may count a charge longer than its window: under a literal key, which
/// has no `#`, times are milliseconds and rounded up.
fn rounded_up(key: &str) -> Span {
    if key.contains('#') { Span::ZERO } else { ROUNDING }
}

impl Row {
    fn new(key: String, admits: u64, found: LimitResult, up_to: Timestamp) -> Self {
        let mut row = Self { key, admits, peak: None, found };
        row.peak = row.found.peaks.until(if row.fails() { Timestamp::MAX } else { up_to });
        row
    }

    /// Returns true if the limit was exceeded, or if that depends on what was given back.
    pub(super) const fn fails(&self) -> bool {
        self.found.exceeded.is_some() || self.found.unsettled.is_some()
    }

    /// Returns the usage of the fullest window as a fraction of the limit; above 1 exceeds it.
    fn fullness(&self) -> f64 {
        self.peak.map_or(0.0, |peak| peak.sum as f64 / peak.allowed.max(1) as f64)
    }
}
