//! Every counter that a log speaks of.

use std::collections::{HashMap, HashSet};

use sluicegate_core::checker::{Bound, Malformed, Scope};
use sluicegate_core::limit::LimitError;
use sluicegate_core::{Limit, Span, Timestamp};

use super::counter::{Admit, Counter, Found, Late};
use super::line::{Charge, Decision};
use super::logs::Place;

/// Collects admissions and has them judged.
pub(super) struct Ledger {
    bound: Bound,
    spread: Span,
    counters: HashMap<String, Counter>,
    /// What is to be proven, by the number of the terms.
    scopes: Vec<Vec<Scope>>,
    /// Which terms are known, by the name of the rule.
    terms: HashMap<String, Vec<Known>>,
    /// The latest decision.
    now: Timestamp,
    /// Decisions that let something through under limits that can be judged.
    admits: u64,
    /// Admissions that came too late to be judged.
    late: u64,
    /// Counters of slots.
    leased: HashSet<String>,
}

/// The limits of a charge.
struct Known {
    texts: Vec<String>,
    terms: Terms,
}

#[derive(Clone, Copy)]
enum Terms {
    /// The number of what is to be proven.
    Rated(usize),
    /// Slots: when they were given back is not in the log.
    Leases,
}

/// What was found about a log.
pub(super) struct Outcome {
    /// Each limit of each counter, the fullest first.
    pub(super) rows: Vec<Row>,
    pub(super) admits: u64,
    pub(super) counters: usize,
    pub(super) limits: usize,
    pub(super) late: u64,
    pub(super) leased: usize,
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
            scopes: Vec::new(),
            terms: HashMap::new(),
            now: Timestamp::ZERO,
            admits: 0,
            late: 0,
            leased: HashSet::new(),
        }
    }

    /// Takes note of what a decision charged.
    pub(super) fn record(&mut self, place: Place, decision: &Decision) -> Result<(), Refusal> {
        self.now = self.now.max(decision.at);
        let charges = decision.charges.iter().filter(|charge| !charge.shadow);
        let charges = charges.map(|charge| Ok((charge, self.terms(charge)?)));
        let charges: Vec<_> = charges.collect::<Result<_, LimitError>>()?;
        let mut admitted = false;
        for (charge, terms) in charges {
            let Terms::Rated(terms) = terms else {
                if !self.leased.contains(&charge.key) {
                    self.leased.insert(charge.key.clone());
                }
                continue;
            };
            admitted = true;
            let (start, amount, firm) = (decision.start, charge.take, decision.firm);
            let admit = Admit { start, amount, place, terms, firm };
            self.admit(&charge.key, admit)?;
        }
        self.admits += u64::from(admitted);
        Ok(())
    }

    fn admit(&mut self, key: &str, admit: Admit) -> Result<(), Malformed> {
        let counter = match self.counters.get_mut(key) {
            Some(counter) => counter,
            None => self.counters.entry(key.to_owned()).or_default(),
        };
        if let Err(Late) = counter.record(admit) {
            self.late += 1;
        }
        if counter.is_due() {
            counter.judge(key, self.now, &self.scopes)?;
        }
        Ok(())
    }

    /// The limits of a charge. They are read once: a log repeats them in every line.
    fn terms(&mut self, charge: &Charge) -> Result<Terms, LimitError> {
        // A key begins with the name of its rule.
        let rule = charge.key.split([':', '#']).next().unwrap_or_default();
        if let Some(known) = self.terms.get(rule)
            && let Some(known) = known.iter().find(|known| known.texts == charge.limits)
        {
            return Ok(known.terms);
        }
        let limits: Vec<Limit> =
            charge.limits.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let slots = limits.iter().any(|limit| matches!(limit, Limit::Concurrent(_)));
        let terms = if slots { Terms::Leases } else { Terms::Rated(self.scopes.len()) };
        if !slots {
            let scope = |limit| Scope::new(limit).bound(self.bound).spread(self.spread);
            self.scopes.push(limits.into_iter().map(scope).collect());
        }
        let known = Known { texts: charge.limits.clone(), terms };
        self.terms.entry(rule.to_owned()).or_default().push(known);
        Ok(terms)
    }

    /// Judges everything.
    pub(super) fn finish(self) -> Result<Outcome, Malformed> {
        let (counters, limits) = (self.counters.len(), self.scopes.iter().map(Vec::len).sum());
        let mut rows = Vec::new();
        for (key, mut counter) in self.counters {
            counter.judge(&key, self.now, &self.scopes)?;
            let row = |found| Row { key: key.clone(), admits: counter.count, found };
            rows.extend(counter.found.into_iter().map(row));
        }
        rows.sort_by(|a, b| {
            let order = b.fullness().total_cmp(&a.fullness());
            order.then_with(|| a.key.cmp(&b.key))
        });
        let (admits, late, leased) = (self.admits, self.late, self.leased.len());
        Ok(Outcome { rows, admits, counters, limits, late, leased })
    }
}

impl Row {
    /// How near the fullest window came to the limit; more than 1 is beyond it.
    fn fullness(&self) -> f64 {
        let worst = self.found.worst;
        worst.sum as f64 / worst.allowed.max(1) as f64
    }
}
