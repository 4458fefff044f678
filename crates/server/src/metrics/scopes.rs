//! [`Scopes`]: counts each decision for the rules that it was checked against.

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use prometheus::proto::MetricFamily;
use sluicegate_core::decision::Hit;
use sluicegate_core::rule::InlineRule;
use sluicegate_core::ruleset::Ruleset;
use sluicegate_core::{Charge, Decision, Plan};

use super::Outcome;
use super::family::{Family, Gathering};
use super::labels::{Labels, Options, Who};
use super::scope::{FAMILIES, Scope};
use crate::answer::Answer;

/// The scope of all inline rules of queries: clients choose their names, so names have no separate
/// series.
pub const INLINE: &str = "~inline";

/// The counters of all rules.
#[derive(Debug)]
pub(super) struct Scopes(ArcSwap<Directory>);

/// The index of all counters. It is replaced as a whole when a rule or label is added, which
/// clients can cause only a limited number of times; the counters themselves are shared.
#[derive(Clone, Debug)]
struct Directory {
    labels: Labels,
    rules: Arc<HashMap<Arc<str>, Scope, RandomState>>,
    inline: Scope,
}

impl Scopes {
    pub(super) fn new(options: &Options) -> Self {
        let labels = Labels::new(options);
        let inline = Scope::new(labels.capacity());
        Self(ArcSwap::from_pointee(Directory { labels, rules: Arc::default(), inline }))
    }

    pub(super) fn know(&self, rules: &Ruleset) {
        self.0.rcu(|directory| {
            let mut directory = Directory::clone(directory);
            directory.know(rules);
            directory
        });
    }

    pub(super) fn decided(&self, answer: &Answer<'_, '_>, who: Who<'_>) {
        let directory = self.0.load();
        let place = directory.labels.find(who).unwrap_or_else(|| self.learn(who));
        directory.decided(answer, place);
    }

    pub(super) fn failed(&self, plan: &Plan<'_>, who: Who<'_>) {
        let directory = self.0.load();
        let place = directory.labels.find(who).unwrap_or_else(|| self.learn(who));
        let charges = plan.charges();
        for (first, _) in runs(charges).filter(|&(first, _)| is_new(charges, first)) {
            directory.scope(&charges[first]).slot(place).count(Outcome::Error);
        }
    }

    /// Adds new labels and returns their index, which is valid in older directories, too.
    #[cold]
    fn learn(&self, who: Who<'_>) -> usize {
        let mut place = 0;
        self.0.rcu(|directory| {
            let mut directory = Directory::clone(directory);
            place = directory.labels.learn(who);
            directory
        });
        place
    }

    pub(super) fn collect(&self) -> Vec<MetricFamily> {
        let directory = self.0.load_full();
        let labels: Vec<_> = directory.labels.pairs().collect();
        let mut families = FAMILIES.each_ref().map(Family::gather);
        for (name, scope) in directory.rules.iter() {
            scope.collect(name, &labels, &mut families);
        }
        directory.inline.collect(INLINE, &labels, &mut families);
        families.map(Gathering::end).into()
    }
}

impl Directory {
    fn know(&mut self, rules: &Ruleset) {
        self.labels.know(rules);
        let mut known = HashMap::clone(&self.rules);
        // A rule of this name would share the series of the inline rules, so it counts as one of
        // them.
        let rules = rules.groups().flat_map(|(_, rules)| rules).filter(|rule| rule.name != INLINE);
        for rule in rules {
            let scope = known.entry(rule.name.as_str().into());
            let scope = scope.or_insert_with(|| Scope::new(self.labels.capacity()));
            scope.know(&rule.limits);
        }
        self.rules = Arc::new(known);
    }

    fn decided(&self, answer: &Answer<'_, '_>, place: usize) {
        let (charges, decision) = (answer.plan().charges(), answer.decision());
        let charged = match decision {
            Decision::Allow(allow) => !allow.replayed,
            Decision::Deny(_) | Decision::Never(_) | Decision::Closed(_) => false,
        };
        let mut readings = decision.readings().iter();
        for (first, run) in runs(charges) {
            let scope = self.scope(&run[0]);
            let slot = scope.slot(place);
            let mut usage = None;
            for charge in run {
                for (limit, reading) in charge.limits().iter().zip(readings.by_ref()) {
                    if charge.is_gate() {
                        continue;
                    }
                    scope.seen(limit, reading.used);
                    let ratio = reading.used as f64 / limit.amount().get().max(1) as f64;
                    usage = Some(usage.map_or(ratio, |most: f64| most.max(ratio)));
                }
            }
            if let Some(usage) = usage {
                slot.show(usage);
            }
            if charged && answer.over().is_none() && is_new(charges, first) {
                slot.count(Outcome::Allowed);
            }
        }
        let outcome = Outcome::of(answer);
        match decision {
            Decision::Allow(allow) if charged => {
                let shadowed = allow.shadowed.iter().map(|&index| &charges[usize::from(index)]);
                for charge in shadowed.filter(|charge| charge.rule().shadow) {
                    self.scope(charge).shadow_denied();
                }
                if let Some(hit) = answer.over() {
                    self.denied(charges, hit, outcome, place);
                }
            }
            // A denial by outage policy is counted as a failure.
            Decision::Allow(_) | Decision::Closed(_) => {}
            Decision::Deny(deny) => self.denied(charges, deny.hit, outcome, place),
            Decision::Never(never) => self.denied(charges, never.hit, outcome, place),
        }
    }

    fn denied(&self, charges: &[Charge<'_>], hit: Hit, outcome: Outcome, place: usize) {
        let charge = &charges[hit.charge];
        let scope = self.scope(charge);
        scope.slot(place).count(outcome);
        scope.denied_by(&charge.limits()[hit.limit]);
    }

    fn scope(&self, charge: &Charge<'_>) -> &Scope {
        // A client can give its inline rule the name of a configured rule.
        if charge.key.as_bytes().starts_with(InlineRule::KEY_START.as_bytes()) {
            return &self.inline;
        }
        self.rules.get(charge.rule().name.as_str()).unwrap_or(&self.inline)
    }
}

/// Returns runs of adjacent charges of one rule, with the position of the first: a rule with
/// several counters is still one rule.
fn runs<'p, 'a>(charges: &'p [Charge<'a>]) -> impl Iterator<Item = (usize, &'p [Charge<'a>])> {
    charges.chunk_by(is_same_rule).scan(0, |next, run| {
        let first = *next;
        *next += run.len();
        Some((first, run))
    })
}

fn is_same_rule(one: &Charge<'_>, other: &Charge<'_>) -> bool {
    ptr::eq(one.rule(), other.rule())
}

/// Returns true if no earlier charge is of the same rule: a plan of several queries can contain a
/// rule repeatedly, but it is one decision.
fn is_new(charges: &[Charge<'_>], index: usize) -> bool {
    !charges[..index].iter().any(|earlier| is_same_rule(earlier, &charges[index]))
}
