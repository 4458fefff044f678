//! Every counter that a log speaks of.

use std::collections::HashMap;

use sluicegate_core::checker::{Bound, Malformed, Scope};
use sluicegate_core::limit::LimitError;
use sluicegate_core::time::SpanError;
use sluicegate_core::{Limit, Rule, Span, Timestamp};

use super::counter::{Admit, Counter, Found};
use super::line::{Charge, Decision, Effect, Followed};
use super::logs::Place;
use super::slots::{Slots, Verdict};

/// Collects what happened and has it judged.
pub(super) struct Ledger {
    bound: Bound,
    spread: Span,
    counters: HashMap<String, Counter>,
    slots: HashMap<String, Slots>,
    /// What may still be settled, given back or renewed, by the name of the work.
    held: HashMap<String, Held>,
    /// What is to be proven, by the number of the terms.
    scopes: Vec<Vec<Scope>>,
    /// Which terms are known, by the name of the rule.
    terms: HashMap<String, Vec<Known>>,
    /// The latest decision.
    now: Timestamp,
    /// Decisions that let something through.
    admits: u64,
    /// Admissions that came too late to be judged.
    late: u64,
}

/// What one piece of work holds.
#[derive(Default)]
struct Held {
    /// Counter, unit and number of each admission.
    admits: Vec<(String, String, u64)>,
    /// Counter and number of each lease.
    leases: Vec<(String, u64)>,
    /// Who was told to go with a booking.
    claimant: Option<String>,
}

/// The limits of a charge.
struct Known {
    texts: Vec<String>,
    terms: Terms,
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
    pub(super) fn new(bound: Bound, spread: Span) -> Self {
        Self {
            bound,
            spread,
            counters: HashMap::new(),
            slots: HashMap::new(),
            held: HashMap::new(),
            scopes: Vec::new(),
            terms: HashMap::new(),
            now: Timestamp::ZERO,
            admits: 0,
            late: 0,
        }
    }

    /// Takes note of what a decision charged.
    pub(super) fn record(&mut self, place: Place, decision: &Decision) -> Result<(), Refusal> {
        self.now = self.now.max(decision.at);
        let Decision { at, start, firm, .. } = *decision;
        let mut held = Held { claimant: decision.claimant.clone(), ..Held::default() };
        let admitted = self.charge(place, at, start, firm, &decision.charges, &mut held)?;
        self.admits += u64::from(admitted);
        if held.admits.is_empty() && held.leases.is_empty() && held.claimant.is_none() {
            return Ok(());
        }
        match self.held.get_mut(&decision.id) {
            // A booking that was claimed: the leases come to what was charged before.
            Some(known) if decision.claimant.is_some() => {
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
                let Some(held) = self.held.remove(id) else { return Ok(()) };
                for (key, unit, number) in &held.admits {
                    let actual = cost.get(unit).copied().unwrap_or(u64::MAX);
                    self.settle(key, *number, actual);
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
                let Some(held) = self.held.remove(id) else { return Ok(()) };
                // Whoever was told to go may have gone.
                let used = held.claimant.is_some() && held.claimant != *claimant;
                for (key, _, number) in &held.admits {
                    self.settle(key, *number, if used { u64::MAX } else { 0 });
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
                for (key, _, number) in &before.admits {
                    let used = before.claimant.is_some();
                    self.settle(key, *number, if used { u64::MAX } else { 0 });
                }
                let mut held = Held::default();
                self.charge(place, *at, *start, false, charges, &mut held)?;
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

    /// Whether anything was let through that is judged.
    fn charge(
        &mut self,
        place: Place,
        at: Timestamp,
        start: Timestamp,
        firm: bool,
        charges: &[Charge],
        held: &mut Held,
    ) -> Result<bool, Refusal> {
        let charges = charges.iter().filter(|charge| !charge.shadow);
        let charges = charges.map(|charge| Ok((charge, self.terms(charge)?)));
        let charges: Vec<_> = charges.collect::<Result<_, Refusal>>()?;
        let admitted = !charges.is_empty();
        for (charge, terms) in charges {
            let (key, amount) = (&charge.key, charge.take);
            match terms {
                Terms::Leases(limit) => {
                    let length = match &charge.lease {
                        Some(text) => text.parse().map_err(Refusal::Lease)?,
                        None => Rule::LEASE,
                    };
                    let slots = self.slots.entry(key.clone());
                    let slots = slots.or_insert_with(|| Slots::new(limit.clone()));
                    let number = slots.start(&limit, at, amount, length);
                    held.leases.push((key.clone(), number));
                    if slots.is_due() {
                        slots.judge(key, self.now, self.bound)?;
                    }
                }
                Terms::Rated(terms) => {
                    let admit = Admit { at, start, amount, place, terms, firm, number: 0 };
                    if let Some(number) = self.admit(key, admit)?
                        && !firm
                    {
                        held.admits.push((key.clone(), charge.unit.clone(), number));
                    }
                }
            }
        }
        Ok(admitted)
    }

    /// The number of the admission, unless it came too late.
    fn admit(&mut self, key: &str, admit: Admit) -> Result<Option<u64>, Malformed> {
        let counter = match self.counters.get_mut(key) {
            Some(counter) => counter,
            None => self.counters.entry(key.to_owned()).or_default(),
        };
        let number = counter.record(admit).ok();
        self.late += u64::from(number.is_none());
        if counter.is_due() {
            counter.judge(key, self.now, &self.scopes, false)?;
        }
        Ok(number)
    }

    fn settle(&mut self, key: &str, number: u64, at_most: u64) {
        if let Some(counter) = self.counters.get_mut(key) {
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
    fn terms(&mut self, charge: &Charge) -> Result<Terms, LimitError> {
        // A key begins with the name of its rule.
        let rule = charge.key.split([':', '#']).next().unwrap_or_default();
        if let Some(known) = self.terms.get(rule)
            && let Some(known) = known.iter().find(|known| known.texts == charge.limits)
        {
            return Ok(known.terms.clone());
        }
        let limits: Vec<Limit> =
            charge.limits.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let slots = limits.iter().filter(|limit| matches!(limit, Limit::Concurrent(_)));
        let terms = match slots.max_by_key(|limit| limit.amount()) {
            Some(limit) => Terms::Leases(limit.clone()),
            None => {
                let scope = |limit| Scope::new(limit).bound(self.bound).spread(self.spread);
                self.scopes.push(limits.into_iter().map(scope).collect());
                Terms::Rated(self.scopes.len() - 1)
            }
        };
        let known = Known { texts: charge.limits.clone(), terms: terms.clone() };
        self.terms.entry(rule.to_owned()).or_default().push(known);
        Ok(terms)
    }

    /// Judges everything.
    pub(super) fn finish(self) -> Result<Outcome, Malformed> {
        let counters = self.counters.len() + self.slots.len();
        let rated: usize = self.scopes.iter().map(Vec::len).sum();
        let leased = self.terms.values().flatten();
        let leased = leased.filter(|known| matches!(known.terms, Terms::Leases(_))).count();
        let mut rows = Vec::new();
        for (key, mut slots) in self.slots {
            slots.judge(&key, self.now, self.bound)?;
            let admits = slots.count;
            if let Some(Verdict { scope, worst, first }) = slots.verdict(self.bound) {
                let exceeded = first.map(|finding| (finding, None));
                let found = Found { scope, worst, exceeded, unsettled: None };
                rows.push(Row { key, admits, found });
            }
        }
        for (key, mut counter) in self.counters {
            counter.judge(&key, self.now, &self.scopes, true)?;
            let row = |found| Row { key: key.clone(), admits: counter.count, found };
            rows.extend(counter.found.into_iter().map(row));
        }
        rows.sort_by(|a, b| {
            let order = b.fullness().total_cmp(&a.fullness());
            order.then_with(|| a.key.cmp(&b.key))
        });
        let (admits, late, limits) = (self.admits, self.late, rated + leased);
        Ok(Outcome { rows, admits, counters, limits, late })
    }
}

impl Row {
    /// How near the fullest window came to the limit; more than 1 is beyond it.
    fn fullness(&self) -> f64 {
        let worst = self.found.worst;
        worst.sum as f64 / worst.allowed.max(1) as f64
    }
}
