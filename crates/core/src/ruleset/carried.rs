//! Usage that a rule keeps when its limit changes shape.
//!
//! Each shape counts in a counter of its own: `20/h` in a log, `20/h windowed` in sums, `20/h burst
//! 5` in a bucket. Without a transition a rule that changes from one to the other would start from
//! zero. For one window after the change the rule therefore charges both counters, and work has to
//! fit both. The old counter holds the usage of before and of after; when the window has passed,
//! the new one holds everything that still counts.
//!
//! In the old counter the amount of the new limit applies, so raising or lowering a limit takes
//! effect at once. Limits are paired by unit and window: `20/h` has nothing to hand over to
//! `100/day`.

use std::collections::{HashMap, HashSet};

use super::cells::{CellSpec, cells_with};
use super::{CompiledRule, Ruleset};
use crate::algorithm::bucket;
use crate::limit::{Limit, Rate, Unit, Window};
use crate::rule::Rule;
use crate::time::{Span, Timestamp};

/// Time that all nodes get to take up a changed limit. A node that changes first keeps charging the
/// old counter for this much longer than a window, because the others still charge only that one.
const ROLLOUT: Span = Span::from_secs(600);

/// A limit that a rule had, with usage under it that may still count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerLimit {
    /// Name of the rule.
    pub rule: String,
    /// The limit.
    pub limit: Limit,
    /// Time at which all of its usage has left the window.
    pub until: Timestamp,
}

impl FormerLimit {
    /// Creates the former limit for a limit that nodes stop using now. Returns `None` for a shape
    /// whose usage is not carried over.
    pub fn ending(rule: &str, limit: &Limit, now: Timestamp) -> Option<Self> {
        let (_, rate) = shape(limit)?;
        let until = now + rate.window.span() + ROLLOUT;
        Some(Self { rule: rule.to_owned(), limit: limit.clone(), until })
    }

    fn identity(&self) -> Option<CounterKind<'_>> {
        identity(&self.rule, &self.limit)
    }
}

/// The counters that a rule charges during the transition from former limits.
#[derive(Clone, Debug)]
pub(super) struct Transition {
    pub(super) until: Timestamp,
    /// All cells of the rule, with those of its former limits.
    pub(super) cells: Vec<CellSpec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Log,
    Sums,
    Bucket,
}

/// Returns the shape and rate of a limit over a rolling window.
const fn shape(limit: &Limit) -> Option<(Shape, Rate)> {
    match limit {
        Limit::Exact(rate) => Some((Shape::Log, *rate)),
        Limit::Windowed(rate) => Some((Shape::Sums, *rate)),
        Limit::Bucket { rate, .. } => Some((Shape::Bucket, *rate)),
        Limit::Calendar { .. } | Limit::Concurrent(_) | Limit::Banned { .. } => None,
    }
}

/// Identity of a rule's counters: the rule, and the shape, unit and window that end their keys.
type CounterKind<'a> = (&'a str, Shape, Unit, Window);

/// Returns the kind of counter that a rule uses for a limit over a rolling window. `None` for other
/// limits.
fn identity<'a>(rule: &'a str, limit: &Limit) -> Option<CounterKind<'a>> {
    let (shape, rate) = shape(limit)?;
    Some((rule, shape, rate.unit, rate.window))
}

/// Returns the limit of the counter of `former` during the transition to `current`: its own shape,
/// with the amount of `current`. For a bucket, this amount is its refill in one window, or its
/// capacity if that is larger: in the first window after the change it admits no more than that.
fn carried(former: &Limit, current: &Limit) -> Option<Limit> {
    let ((old, before), (new, after)) = (shape(former)?, shape(current)?);
    if old == new || (before.unit, before.window) != (after.unit, after.window) {
        return None;
    }
    let amount = match current {
        Limit::Bucket { rate, capacity } => rate.amount.max(*capacity),
        _ => after.amount,
    };
    let rate = Rate { amount, ..after };
    match old {
        Shape::Log => Some(Limit::Exact(rate)),
        Shape::Sums => Some(Limit::Windowed(rate)),
        Shape::Bucket => {
            bucket::BucketQuota::new(rate, amount)?;
            Some(Limit::Bucket { rate, capacity: amount })
        }
    }
}

/// Returns the former limits of a rule that have counters of their own, and the time until which
/// they are charged.
fn carried_by(rule: &Rule, formers: &[&FormerLimit]) -> (Vec<Limit>, Option<Timestamp>) {
    let (mut limits, mut until) = (Vec::new(), None);
    for former in formers {
        let Some((old, before)) = shape(&former.limit) else { continue };
        let same = |limit: &Limit| {
            shape(limit).is_some_and(|(shape, rate)| {
                (shape, rate.unit, rate.window) == (old, before.unit, before.window)
            })
        };
        if rule.limits.iter().any(same) {
            continue;
        }
        // Several shapes of one window may follow one another quickly.
        if let Some(limit) = rule.limits.iter().find_map(|current| carried(&former.limit, current))
        {
            limits.push(limit);
            until = until.max(Some(former.until));
        }
    }
    (limits, until)
}

impl CompiledRule {
    /// Also charges the counters of these former limits, for as long as they count. The overrides
    /// of the rule do the same.
    fn set_transition(&mut self, formers: &[&FormerLimit]) {
        let (limits, until) = carried_by(&self.rule, formers);
        self.transition = until.and_then(|until| {
            // The current limits compile, so they compile in another shape, too. If they did not,
            // the rule would start from zero.
            let cells = cells_with(&self.rule, &limits).ok()?;
            Some(Box::new(Transition { until, cells }))
        });
        for rule in self.overriding_mut() {
            rule.set_transition(formers);
        }
    }
}

impl Ruleset {
    /// Returns the limits under which usage may have been counted until `now`: the current ones,
    /// and those before them.
    pub fn limits_until(&self, now: Timestamp) -> Vec<FormerLimit> {
        let rules = self.groups.iter().flat_map(|group| &group.rules);
        let limits = rules.flat_map(|rule| std::iter::once(rule).chain(rule.overriding()));
        let limits = limits.flat_map(|rule| rule.rule.limits.iter().map(|l| (&rule.rule.name, l)));
        let current = limits.filter_map(|(rule, limit)| FormerLimit::ending(rule, limit, now));
        let before = self.formers.iter().filter(|former| former.until > now).cloned();
        newest(current.chain(before))
    }

    /// Returns the former limits that rules still count under, in addition to their current ones.
    pub fn former_limits(&self) -> impl Iterator<Item = &FormerLimit> {
        let rules = self.groups.iter().flat_map(|group| &group.rules);
        let limits = rules.flat_map(|rule| rule.rule.limits.iter().map(|l| (&rule.rule.name, l)));
        let current: HashSet<_> =
            limits.filter_map(|(rule, limit)| identity(rule, limit)).collect();
        let is_current = move |former: &&FormerLimit| {
            former.identity().is_some_and(|identity| current.contains(&identity))
        };
        self.formers.iter().filter(move |former| !is_current(former))
    }

    /// Returns the same rules with these former limits, in addition to those already known.
    #[must_use]
    pub fn with_formers(&self, formers: &[FormerLimit], now: Timestamp) -> Self {
        let known = self.formers.iter().filter(|former| former.until > now);
        let all = newest(formers.iter().chain(known).cloned());
        let mut rules = Self { formers: all, ..self.clone() };
        rules.set_transitions();
        rules
    }

    /// Makes every rule also charge the counters of its former limits, for as long as they count.
    pub(super) fn set_transitions(&mut self) {
        let Self { groups, formers, .. } = self;
        let mut by_rule: HashMap<&str, Vec<&FormerLimit>> = HashMap::new();
        for former in &*formers {
            by_rule.entry(&former.rule).or_default().push(former);
        }
        for rule in groups.iter_mut().flat_map(|group| &mut group.rules) {
            let formers = by_rule.get(rule.rule.name.as_str()).map_or(&[][..], Vec::as_slice);
            rule.set_transition(formers);
        }
    }
}

/// Removes duplicates of one counter; the one that counts longest stays.
fn newest(formers: impl Iterator<Item = FormerLimit>) -> Vec<FormerLimit> {
    let mut all: Vec<FormerLimit> = formers.collect();
    all.sort_by_key(|former| std::cmp::Reverse(former.until));
    let mut seen = HashSet::new();
    let keep: Vec<bool> = all
        .iter()
        .map(|former| former.identity().is_some_and(|identity| seen.insert(identity)))
        .collect();
    let mut keep = keep.into_iter();
    all.retain(|_| keep.next().unwrap_or(false));
    all
}
