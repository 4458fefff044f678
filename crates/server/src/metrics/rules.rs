//! [`RuleMetricsTable`]: counts each decision for the rules that it was checked against.

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use sluicegate_core::decision::Hit;
use sluicegate_core::rule::InlineRule;
use sluicegate_core::ruleset::Ruleset;
use sluicegate_core::{Charge, Decision, Plan};
use sluicegate_service::metrics::{FamilyBuilder, Registry};

use super::labels::{Labels, Options, QueryLabels};
use super::rule::{FAMILIES, RuleMetrics};
use super::{Outcome, RuleCounts};
use crate::answer::Answer;

/// The scope of all inline rules of queries: clients choose their names, so names have no separate
/// series.
pub const INLINE: &str = "~inline";

/// The counters of all rules.
#[derive(Debug)]
pub(super) struct RuleMetricsTable(ArcSwap<CounterIndex>);

/// The index of all counters. It is replaced as a whole when a rule or label is added, which
/// clients can cause only a limited number of times; the counters themselves are shared.
#[derive(Clone, Debug)]
struct CounterIndex {
    labels: Labels,
    rules: Arc<HashMap<Arc<str>, RuleMetrics, RandomState>>,
    inline: RuleMetrics,
}

impl RuleMetricsTable {
    pub(super) fn new(options: &Options, registry: &Registry) -> Arc<Self> {
        let labels = Labels::new(options);
        let inline = RuleMetrics::new(labels.capacity());
        let index = CounterIndex { labels, rules: Arc::default(), inline };
        let table = Arc::new(Self(ArcSwap::from_pointee(index)));
        let collected = table.clone();
        registry.on_scrape(&FAMILIES, move |families| collected.collect(families));
        table
    }

    pub(super) fn register_rules(&self, rules: &Ruleset) {
        self.0.rcu(|index| {
            let mut index = CounterIndex::clone(index);
            index.register_rules(rules);
            index
        });
    }

    pub(super) fn decided(&self, answer: &Answer<'_, '_>, query_labels: QueryLabels<'_>) {
        let index = self.0.load();
        let place = index.labels.find(query_labels).unwrap_or_else(|| self.learn(query_labels));
        index.decided(answer, place);
    }

    pub(super) fn failed(&self, plan: &Plan<'_>, query_labels: QueryLabels<'_>) {
        let index = self.0.load();
        let place = index.labels.find(query_labels).unwrap_or_else(|| self.learn(query_labels));
        let charges = plan.charges();
        for (first, _) in runs(charges).filter(|&(first, _)| is_new(charges, first)) {
            index.scope(&charges[first]).counters_of(place).count(Outcome::Error);
        }
    }

    /// Adds new labels and returns their position, which is also valid for an older index.
    #[cold]
    fn learn(&self, query_labels: QueryLabels<'_>) -> usize {
        let mut place = 0;
        self.0.rcu(|index| {
            let mut index = CounterIndex::clone(index);
            place = index.labels.learn(query_labels);
            index
        });
        place
    }

    /// Returns the counts of each rule, in the order of their names.
    pub(super) fn counts(&self) -> Vec<(Arc<str>, RuleCounts)> {
        let index = self.0.load_full();
        let mut counts: Vec<_> =
            index.rules.iter().map(|(name, rule)| (name.clone(), rule.counts())).collect();
        counts.push((INLINE.into(), index.inline.counts()));
        counts.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        counts
    }

    fn collect(&self, families: &mut [FamilyBuilder; FAMILIES.len()]) {
        let index = self.0.load_full();
        let labels: Vec<_> = index.labels.pairs().collect();
        for (name, scope) in index.rules.iter() {
            scope.collect(name, &labels, families);
        }
        index.inline.collect(INLINE, &labels, families);
    }
}

impl CounterIndex {
    fn register_rules(&mut self, rules: &Ruleset) {
        self.labels.register_rules(rules);
        let mut known = HashMap::clone(&self.rules);
        // A rule of this name would share the series of the inline rules, so it counts as one of
        // them.
        let rules = rules.groups().flat_map(|(_, rules)| rules).filter(|rule| rule.name != INLINE);
        for rule in rules {
            let scope = known.entry(rule.name.as_str().into());
            let scope = scope.or_insert_with(|| RuleMetrics::new(self.labels.capacity()));
            scope.set_limits(&rule.limits);
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
            let counters = scope.counters_of(place);
            let mut usage = None;
            for charge in run {
                for (limit, reading) in charge.limits().iter().zip(readings.by_ref()) {
                    if charge.is_gate() {
                        continue;
                    }
                    scope.observe(limit, reading.used);
                    let ratio = reading.used as f64 / limit.amount().get().max(1) as f64;
                    usage = Some(usage.map_or(ratio, |most: f64| most.max(ratio)));
                }
            }
            if let Some(usage) = usage {
                counters.set_usage(usage);
            }
            if charged && answer.over().is_none() && is_new(charges, first) {
                counters.count(Outcome::Allowed);
            }
        }
        let outcome = Outcome::of(answer);
        match decision {
            Decision::Allow(allow) if charged => {
                let shadowed = allow.shadowed.iter().map(|&index| &charges[usize::from(index)]);
                for charge in shadowed.filter(|charge| charge.rule().shadow) {
                    self.scope(charge).count_shadow_denial();
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
        scope.counters_of(place).count(outcome);
        scope.count_denial(&charge.limits()[hit.limit]);
    }

    fn scope(&self, charge: &Charge<'_>) -> &RuleMetrics {
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
