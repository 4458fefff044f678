//! Every counter that a log speaks of.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

use sluicegate_checker::{Bound, Malformed, Scope};
use sluicegate_core::limit::{LimitError, Unit};
use sluicegate_core::time::SpanError;
use sluicegate_core::{Limit, Rule, Span, Timestamp};

use super::count::{Entry, Shown, Unexplained, Unlogged};
use super::counter::{Admit, Counter, DISORDER_MAX, Found, Proof};
use super::line::{By, Charge, Decision, Effect, Followed};
use super::logs::Place;
use super::slots::{Slots, Verdict};

/// Collects what happened and has it judged.
pub(super) struct Ledger {
    promise: Promise,
    counters: HashMap<String, Counter>,
    slots: HashMap<String, Slots>,
    /// What may still be settled, given back or renewed, by the name of the work.
    held: HashMap<String, Held>,
    /// Hashes of the names of all work that was let through.
    ids: HashSet<u64>,
    hasher: RandomState,
    /// What is to be proven, by the number of the terms.
    proofs: Vec<Proof>,
    /// Which terms are known, by the name of the rule.
    terms: HashMap<String, Vec<Known>>,
    /// The latest decision.
    now: Timestamp,
    /// From when on the log is whole.
    begin: Timestamp,
    /// Decisions that let something through.
    admits: u64,
    /// Those of them that nodes decided on their own.
    alone: u64,
    /// Admissions that came too late to be judged.
    late: u64,
    /// What may be charged although no admission tells of it.
    unlogged: Unlogged,
    /// Something was given back of work that was not known to be held.
    given_back: bool,
    /// What the store had counted beyond what the log explains, by the counter.
    unexplained: Vec<(String, Unexplained)>,
}

/// What is to be proven.
#[derive(Clone, Copy)]
pub(super) struct Promise {
    /// How many times each limit may be used by what the store admits.
    pub(super) store: Bound,
    /// The same, with what nodes admit on their own.
    pub(super) all: Bound,
    /// The largest difference between clocks.
    pub(super) spread: Span,
}

/// How many contradictions between the store and the log are kept: one is enough.
const UNEXPLAINED_MAX: usize = 10_000;

/// What one piece of work holds.
#[derive(Default)]
struct Held {
    /// Each admission.
    admits: Vec<HeldAdmit>,
    /// When it is over.
    until: Option<Timestamp>,
    /// Counter and number of each lease.
    leases: Vec<(String, u64)>,
    /// Who was told to go with a booking.
    claimant: Option<String>,
}

/// What a piece of work holds on one counter.
struct HeldAdmit {
    key: String,
    unit: String,
    /// Among the admissions of the counter; none if it came too late to be judged.
    number: Option<u64>,
    amount: u64,
    /// Its number among what the store counts.
    serial: u64,
}

/// The limits of a charge.
struct Known {
    texts: Vec<String>,
    amounts: Vec<u64>,
    /// What the limits count.
    unit: &'static str,
    terms: Terms,
}

impl Known {
    /// Whether a line shows the limits as they are written.
    fn check(&self, charge: &Charge) -> Result<(), Refusal> {
        if charge.unit != self.unit {
            let Charge { key, unit, .. } = charge;
            let counts = self.unit;
            return Err(Refusal::Shown(format!("{key}: {unit} are charged, it counts {counts}")));
        }
        for ((text, amount), (shown, _)) in self.texts.iter().zip(&self.amounts).zip(&charge.shown)
        {
            // The last digit of dollars may be wrong.
            if amount.abs_diff(*shown) > 2 * u64::from(charge.unit == Charge::MONEY) {
                let key = &charge.key;
                return Err(Refusal::Shown(format!("{key}: {text} is shown as {shown}")));
            }
        }
        Ok(())
    }
}

#[derive(Clone)]
enum Terms {
    /// The number of what is to be proven.
    Rated(usize),
    /// Slots.
    Leases(Limit),
}

/// What was found about a log.
pub(super) struct Outcome {
    /// Each limit of each counter, the fullest first.
    pub(super) rows: Vec<Row>,
    pub(super) admits: u64,
    pub(super) counters: usize,
    pub(super) limits: usize,
    pub(super) late: u64,
    /// Admissions that nodes decided on their own.
    pub(super) alone: u64,
    /// What the store had counted beyond what the log explains, the first first.
    pub(super) unexplained: Vec<(String, Unexplained)>,
}

/// One limit of one counter.
pub(super) struct Row {
    pub(super) key: String,
    /// How many admissions there were on the counter.
    pub(super) admits: u64,
    pub(super) found: Found,
}

/// Why a decision was not taken note of.
pub(super) enum Refusal {
    /// A limit in its line can't be read.
    Line(LimitError),
    /// The lease in its line can't be read.
    Lease(SpanError),
    /// A limit shows another amount than it is written with.
    Shown(String),
    /// What is asked for can't be proven of anything like it.
    Proof(Malformed),
}

impl From<LimitError> for Refusal {
    fn from(error: LimitError) -> Self {
        Self::Line(error)
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::Proof(malformed)
    }
}

impl Ledger {
    pub(super) fn new(promise: Promise) -> Self {
        Self {
            promise,
            counters: HashMap::new(),
            slots: HashMap::new(),
            held: HashMap::new(),
            ids: HashSet::new(),
            hasher: RandomState::new(),
            proofs: Vec::new(),
            terms: HashMap::new(),
            now: Timestamp::ZERO,
            begin: Timestamp::ZERO,
            admits: 0,
            alone: 0,
            late: 0,
            unlogged: Unlogged::default(),
            given_back: false,
            unexplained: Vec::new(),
        }
    }

    /// The log is whole from this instant on, as far as is known by now.
    pub(super) fn begins(&mut self, at: Timestamp) {
        self.begin = at;
    }

    /// The store did not answer.
    pub(super) fn unanswered(&mut self, at: Timestamp) {
        self.unlogged.unanswered(at);
    }

    /// Takes note of what a decision charged.
    pub(super) fn record(&mut self, place: Place, decision: &Decision) -> Result<(), Refusal> {
        self.now = self.now.max(decision.at);
        if decision.unanswered {
            self.unlogged.unanswered(decision.at);
        }
        let id = self.hasher.hash_one(&decision.id);
        let known = self.ids.contains(&id);
        let claim = decision.claimant.is_some();
        let (alone, first_time) = match decision.by {
            By::Nobody => {
                if !decision.allowed {
                    self.unlogged.denied(decision.at);
                    self.unlogged.denials_sampled |= decision.sampled;
                }
                return Ok(());
            }
            By::Store => (false, !(claim && known)),
            By::Node => (true, true),
            By::Before { node } => (node, !known),
        };
        let replayed = matches!(decision.by, By::Before { .. });
        if replayed && known {
            return Ok(());
        }
        self.ids.insert(id);
        let mut held = Held { claimant: decision.claimant.clone(), ..Held::default() };
        held.until = decision.until;
        // The store tells what it counted of work that is charged with this decision.
        let shows = decision.by == By::Store && !claim;
        let terms = Admitted { place, decision, alone, shows, rated: first_time };
        let admitted = self.charge(&terms, &decision.charges, &mut held)?;
        if decision.allowed {
            self.admits += u64::from(admitted && first_time);
            self.alone += u64::from(admitted && alone);
        }
        if held.admits.is_empty() && held.leases.is_empty() && held.claimant.is_none() {
            return Ok(());
        }
        match self.held.get_mut(&decision.id) {
            // A booking that was claimed: the leases come to what was charged before.
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

    /// Takes note of what became of something.
    pub(super) fn follow(&mut self, place: Place, followed: &Followed) -> Result<(), Refusal> {
        let Followed { id, at, effect, .. } = followed;
        self.now = self.now.max(*at);
        match effect {
            Effect::Settled(cost) => {
                let Some(held) = self.held.remove(id) else {
                    self.settled_unknown(followed, cost);
                    return Ok(());
                };
                let over = held.until.is_some_and(|until| until <= *at);
                for admit in &held.admits {
                    let actual = cost.get(&admit.unit).copied();
                    self.settle(admit, actual.unwrap_or(u64::MAX));
                    if !over {
                        let back = admit.amount.saturating_sub(actual.unwrap_or(u64::MAX));
                        self.give_back(admit, followed, back);
                    }
                    // What is beyond the estimate is a debt. An estimate that was over may have
                    // been given back by then.
                    let charged = if over { 0 } else { admit.amount };
                    self.owe(&admit.key, followed, actual.unwrap_or(0).saturating_sub(charged));
                }
                self.end_leases(&held, *at);
            }
            Effect::Released => {
                if let Some(held) = self.held.get_mut(id) {
                    let leases = std::mem::take(&mut held.leases);
                    self.end_leases(&Held { leases, ..Held::default() }, *at);
                }
            }
            Effect::Cancelled { claimant } => {
                let Some(held) = self.held.remove(id) else {
                    self.given_back = true;
                    return Ok(());
                };
                // Whoever was told to go may have gone.
                let used = held.claimant.is_some() && held.claimant != *claimant;
                for admit in &held.admits {
                    self.settle(admit, if used { u64::MAX } else { 0 });
                    self.give_back(admit, followed, if used { 0 } else { admit.amount });
                }
                if !used {
                    self.end_leases(&held, *at);
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
                    self.give_back(admit, followed, if used { 0 } else { admit.amount });
                }
                let mut held = Held::default();
                let decision = Decision {
                    id: id.clone(),
                    allowed: true,
                    by: By::Store,
                    at: *at,
                    earliest: followed.earliest,
                    start: *start,
                    latest: *start + BOOKED_LATE_MAX,
                    until: Some(*start),
                    firm: false,
                    claimant: None,
                    charges: Vec::new(),
                    unanswered: false,
                    sampled: false,
                };
                let terms = Admitted {
                    place,
                    decision: &decision,
                    alone: false,
                    shows: false,
                    rated: true,
                };
                self.charge(&terms, charges, &mut held)?;
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

    /// Something was settled that is not known to be held: it was admitted before the log begins,
    /// or not held at all.
    fn settled_unknown(&mut self, followed: &Followed, cost: &HashMap<String, u64>) {
        self.given_back = true;
        for (unit, amount) in cost {
            self.unlogged.settled(followed.at, unit, *amount);
        }
    }

    /// The store counts so much less of an admission from then on.
    fn give_back(&mut self, admit: &HeldAdmit, followed: &Followed, amount: u64) {
        if let Some(counter) = self.counters.get_mut(&admit.key) {
            counter.store.returned((followed.earliest, followed.at), admit.serial, amount);
        }
    }

    /// Charges a debt.
    fn owe(&mut self, key: &str, followed: &Followed, amount: u64) {
        if let Some(counter) = self.counters.get_mut(key).filter(|_| amount > 0) {
            let (earliest, latest, from) = (followed.earliest, followed.at, followed.at);
            let (until, serial) = (None, 0);
            counter.store.charged(Entry { earliest, latest, from, amount, until, serial });
        }
    }

    /// Whether anything was let through that is judged.
    fn charge(
        &mut self,
        admitted: &Admitted<'_>,
        charges: &[Charge],
        held: &mut Held,
    ) -> Result<bool, Refusal> {
        let Decision { at, earliest, start, latest, firm, .. } = *admitted.decision;
        let charges = charges.iter().filter(|charge| charge.is_judged());
        let charges = charges.map(|charge| Ok((charge, self.terms(charge)?)));
        let charges: Vec<_> = charges.collect::<Result<_, Refusal>>()?;
        let any = !charges.is_empty();
        for (charge, terms) in charges {
            let (key, amount) = (&charge.key, charge.take);
            let charged_at = charge.charged_at.unwrap_or(start);
            match terms {
                Terms::Leases(limit) => {
                    let length = match &charge.lease {
                        Some(text) => text.parse().map_err(Refusal::Lease)?,
                        None => Rule::LEASE,
                    };
                    let at = charge.charged_at.unwrap_or(at);
                    let slots = self.slots.entry(key.clone());
                    let slots = slots.or_insert_with(|| Slots::new(limit.clone()));
                    let number = slots.start(&limit, at, amount, length, admitted.alone);
                    held.leases.push((key.clone(), number));
                    if slots.is_due() {
                        slots.judge(key, self.now, self.promise.store, self.promise.all)?;
                    }
                }
                Terms::Rated(_) if !admitted.rated => {}
                Terms::Rated(terms) => {
                    // Where servers differ, the time of the counter's own counts.
                    let own = |instant: Timestamp| match charge.charged_at {
                        Some(charged_at) => charged_at - at.since(instant),
                        None => instant,
                    };
                    let from = latest.max(start).since(start);
                    let entry = Entry {
                        earliest: own(earliest).min(charged_at),
                        latest: own(at).max(charged_at),
                        from: charged_at + from,
                        amount,
                        until: (!firm).then_some(admitted.decision.until).flatten(),
                        serial: 0,
                    };
                    let (place, alone) = (admitted.place, admitted.alone);
                    let counter = match self.counters.get_mut(key) {
                        Some(counter) => counter,
                        None => self.counters.entry(key.to_owned()).or_default(),
                    };
                    counter.store.across_slots |= charge.charged_at.is_some();
                    if counter.store.unit.is_empty() {
                        counter.store.unit.clone_from(&charge.unit);
                    }
                    for (limit, &(_, count)) in charge.shown.iter().enumerate() {
                        let at = own(at);
                        // A part of a cluster may have been asked twice.
                        let by = match charge.charged_at {
                            Some(_) => at + entry.latest.since(entry.earliest),
                            None => at,
                        };
                        if admitted.shows {
                            counter.store.show(Shown { at, by, count, place, terms, limit });
                        }
                    }
                    let serial = counter.store.charged(entry);
                    if !admitted.decision.allowed {
                        // Counted, but whoever asked was told no.
                        continue;
                    }
                    let need = charge.need.unwrap_or(amount);
                    let start = charged_at;
                    let admit =
                        Admit { at, start, amount, need, alone, place, terms, firm, number: 0 };
                    let number = counter.record(admit).ok();
                    self.late += u64::from(number.is_none());
                    if counter.is_due() {
                        self.judge(key, false)?;
                    }
                    if !firm {
                        let (key, unit) = (key.clone(), charge.unit.clone());
                        held.admits.push(HeldAdmit { key, unit, number, amount, serial });
                    }
                }
            }
        }
        Ok(any)
    }

    /// Judges a counter, and compares it with what the store had counted.
    fn judge(&mut self, key: &str, end: bool) -> Result<(), Malformed> {
        let Some(counter) = self.counters.get_mut(key) else { return Ok(()) };
        self.unlogged.sort();
        let until = if end { Timestamp::MAX } else { self.now - DISORDER_MAX };
        let found =
            counter.compare(self.begin, until, self.given_back, &self.unlogged, &self.proofs);
        let room = UNEXPLAINED_MAX.saturating_sub(self.unexplained.len());
        self.unexplained.extend(found.into_iter().take(room).map(|one| (key.to_owned(), one)));
        counter.judge(key, self.now, &self.proofs, end)
    }

    fn settle(&mut self, admit: &HeldAdmit, at_most: u64) {
        let counter = self.counters.get_mut(&admit.key);
        if let Some((counter, number)) = counter.zip(admit.number) {
            counter.settle(number, at_most);
        }
    }

    fn end_leases(&mut self, held: &Held, at: Timestamp) {
        for (key, number) in &held.leases {
            if let Some(slots) = self.slots.get_mut(key) {
                slots.end(*number, at);
            }
        }
    }

    /// The limits of a charge. They are read once: a log repeats them in every line.
    fn terms(&mut self, charge: &Charge) -> Result<Terms, Refusal> {
        // A key begins with the name of its rule.
        let rule = charge.key.split([':', '#']).next().unwrap_or_default();
        if let Some(known) = self.terms.get(rule)
            && let Some(known) = known.iter().find(|known| known.texts == charge.limits)
        {
            known.check(charge)?;
            return Ok(known.terms.clone());
        }
        let limits: Vec<Limit> =
            charge.limits.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let amounts = limits.iter().map(|limit| limit.amount().get()).collect();
        let unit = limits.first().map(Limit::unit);
        let slots = limits.iter().filter(|limit| matches!(limit, Limit::Concurrent(_)));
        let terms = match slots.max_by_key(|limit| limit.amount()) {
            Some(limit) => Terms::Leases(limit.clone()),
            None => {
                let Promise { store, all, spread } = self.promise;
                let scopes = |bound| {
                    let scope = |limit: &Limit| Scope::new(limit.clone()).bound(bound);
                    limits.iter().map(|limit| scope(limit).spread(spread)).collect()
                };
                self.proofs.push(Proof { store: scopes(store), all: scopes(all) });
                Terms::Rated(self.proofs.len() - 1)
            }
        };
        let unit = match unit {
            Some(Unit::Usd) => Charge::MONEY,
            Some(unit) => unit.name(),
            None => "",
        };
        let known = Known { texts: charge.limits.clone(), amounts, unit, terms: terms.clone() };
        known.check(charge)?;
        self.terms.entry(rule.to_owned()).or_default().push(known);
        Ok(terms)
    }

    /// Judges everything.
    pub(super) fn finish(mut self) -> Result<Outcome, Malformed> {
        let counters = self.counters.len() + self.slots.len();
        let rated: usize = self.proofs.iter().map(|proof| proof.store.len()).sum();
        let leased = self.terms.values().flatten();
        let leased = leased.filter(|known| matches!(known.terms, Terms::Leases(_))).count();
        let mut rows = Vec::new();
        for (key, mut slots) in std::mem::take(&mut self.slots) {
            slots.judge(&key, self.now, self.promise.store, self.promise.all)?;
            let admits = slots.count;
            for Verdict { scope, worst, first } in slots.verdicts() {
                let exceeded = first.map(|finding| (finding, None));
                let found = Found { scope, worst, exceeded, unsettled: None };
                rows.push(Row { key: key.clone(), admits, found });
            }
        }
        let keys: Vec<_> = self.counters.keys().cloned().collect();
        for key in keys {
            self.judge(&key, true)?;
        }
        for (key, counter) in self.counters {
            let row = |found| Row { key: key.clone(), admits: counter.count, found };
            rows.extend(counter.found.into_iter().map(row));
        }
        rows.sort_by(|a, b| {
            let order = b.fullness().total_cmp(&a.fullness());
            order.then_with(|| a.key.cmp(&b.key))
        });
        let mut unexplained = self.unexplained;
        unexplained.sort_by_key(|(_, found)| found.at);
        Ok(Outcome {
            rows,
            admits: self.admits,
            counters,
            limits: rated + leased,
            late: self.late,
            alone: self.alone,
            unexplained,
        })
    }
}

/// An admission and what is known of it.
struct Admitted<'d> {
    place: Place,
    decision: &'d Decision,
    /// A node decided it on its own.
    alone: bool,
    /// The store told what it had counted.
    shows: bool,
    /// It is charged now, not only leased.
    rated: bool,
}

/// How much later than its start a booking that was moved may be used: its line does not say.
const BOOKED_LATE_MAX: Span = Span::from_secs(60);

impl Row {
    /// How near the fullest window came to the limit; more than 1 is beyond it.
    fn fullness(&self) -> f64 {
        let worst = self.found.worst;
        worst.sum as f64 / worst.allowed.max(1) as f64
    }
}
