//! Converts a tree of descriptors into a group of rules.
//!
//! envoyproxy/ratelimit looks a descriptor up entry by entry: by its exact value if there is one,
//! else by the first pattern that matches, else by its key alone. It never backtracks, and a limit
//! applies only at the depth where the descriptor ends. Converted to rules, of which the first that
//! matches applies:
//!
//! - Rules of one *shape*, which is the list of keys, compete; rules of different shapes never do.
//! - Within a shape, the more specific value comes first, at the first key in which two differ.
//! - If a lookup ends without a limit although a less specific descriptor has one, a rule without
//!   limits blocks that descriptor. The same holds behind a shadow rule, which ends a lookup too.

use std::collections::{BTreeMap, HashMap, HashSet};

use sluicegate_core::descriptor::{self, DOMAIN, SHAPE};
use sluicegate_core::limit::{Calendar, Period, Rate, Unit};
use sluicegate_core::query::shortened;
use sluicegate_core::rule::{EstimateMode, Pattern};
use sluicegate_core::{Group, Limit, Rule};

use super::CompatMode;
use super::read::{Descriptor, DescriptorLimit, Domain, RequestLimit, ValuePattern};

/// Maximum length of the name of a rule or a group, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Returns the rules of a domain.
pub(super) fn group(domain: &Domain, compat: CompatMode) -> Group {
    let mut builder = RuleBuilder::new(&domain.name, compat);
    builder.walk(&domain.descriptors, &mut Vec::new());
    let mut rules: Vec<Rule> = builder.rules.into_values().flatten().collect();
    for rule in &mut rules {
        let replaced = rule.replaces.iter().flat_map(|name| builder.given.get(name)).flatten();
        rule.replaces = replaced.cloned().collect();
    }
    Group::new(short_name(&domain.name), rules)
}

/// Builds the rules of a domain, by shape.
struct RuleBuilder<'d> {
    domain: &'d str,
    compat: CompatMode,
    rules: BTreeMap<String, Vec<Rule>>,
    /// Names of rules, by the names that the file gives to their limits.
    given: HashMap<String, Vec<String>>,
    /// Names in use.
    taken: HashSet<String>,
}

type Path<'b> = Vec<&'b Descriptor>;

impl<'d> RuleBuilder<'d> {
    fn new(domain: &'d str, compat: CompatMode) -> Self {
        let (given, taken) = (HashMap::new(), HashSet::new());
        Self { domain, compat, rules: BTreeMap::new(), given, taken }
    }

    /// Adds the rules of `descriptors` under `path`, the most specific first.
    fn walk<'b>(&mut self, descriptors: &'b [Descriptor], path: &mut Path<'b>) {
        let mut ordered: Vec<&Descriptor> = descriptors.iter().collect();
        // The sort is stable: of several patterns, the first in the file is tried first.
        ordered.sort_by_key(|descriptor| match descriptor.value {
            ValuePattern::Exactly(_) => 0,
            ValuePattern::Like(_) => 1,
            ValuePattern::Any => 2,
        });
        for (index, descriptor) in ordered.iter().enumerate() {
            path.push(descriptor);
            if let Some(limit) = &descriptor.limit {
                let rule = self.rule(path, descriptor, limit);
                self.rules.entry(shape(path)).or_default().push(rule);
            }
            self.walk(&descriptor.descriptors, path);
            // A descriptor with an exact value matches nothing else.
            let fits = |other: &&&Descriptor| {
                other.key == descriptor.key && !matches!(other.value, ValuePattern::Exactly(_))
            };
            let rivals = ordered[index + 1..].iter().filter(fits);
            let mut shapes: Vec<Vec<&str>> = Vec::new();
            rivals.for_each(|rival| shapes_of(rival, &mut Vec::new(), &mut shapes));
            shapes.sort();
            shapes.dedup();
            for rest in shapes {
                self.block(path, &rest[1..]);
            }
            path.pop();
        }
    }

    /// Adds a rule without limits that keeps requests matching `path` from less specific rules of
    /// the shape that ends in `rest`, unless `path` has a rule of its own.
    fn block(&mut self, path: &Path<'_>, rest: &[&str]) {
        let keys =
            || path.iter().map(|descriptor| descriptor.key.as_str()).chain(rest.iter().copied());
        let shape = descriptor::shape(keys()).into_owned();
        let name = self.name(&format!("{}.*", full_name(self.domain, path, rest)), &shape);
        let rules = self.rules.entry(shape).or_default();
        let free = Rule { when: conditions(self.domain, path, rest), ..Rule::unlimited(name) };
        let covers = |rule: &Rule| !rule.shadow && rule.when == free.when;
        if !rules.last().is_some_and(covers) {
            rules.push(free);
        }
    }

    /// Returns a name that no other rule has. Keys and values may contain the dots that join them;
    /// then the shape distinguishes two names.
    fn name(&mut self, full: &str, shape: &str) -> String {
        let mut name = short_name(full);
        if self.taken.contains(&name) {
            name = short_name(&format!("{full} of {shape}"));
        }
        self.taken.insert(name.clone());
        name
    }

    fn rule(&mut self, path: &Path<'_>, descriptor: &Descriptor, given: &DescriptorLimit) -> Rule {
        let name = self.name(&full_name(self.domain, path, &[]), &shape(path));
        if let Some(called) = &given.name {
            self.given.entry(called.clone()).or_default().push(name.clone());
        }
        let mut rule = match given.limit {
            RequestLimit::Unlimited => Rule::unlimited(name),
            RequestLimit::None => Rule::new(name, [Limit::Banned { until: None }]),
            RequestLimit::Rate(amount, window) => {
                let rate = Rate { amount, unit: Unit::Requests, window };
                let limit = match self.compat {
                    CompatMode::Native => Limit::Windowed(rate),
                    CompatMode::Envoy => {
                        let calendar = Calendar::utc(Period::Fixed(window));
                        Limit::Calendar { amount, unit: Unit::Requests, calendar }
                    }
                };
                Rule::new(name, [limit])
            }
        };
        rule.when = conditions(self.domain, path, &[]);
        rule.per = counted_by(path);
        rule.shadow = descriptor.shadow;
        rule.quota = descriptor.quota && !rule.unlimited;
        // Hits may be reported after the work is done: they count in full, and later requests are
        // refused.
        rule.mode = EstimateMode::Optimistic;
        rule.counts_only =
            (self.compat == CompatMode::Envoy || descriptor.quota) && !rule.unlimited;
        rule.replaces.clone_from(&given.replaces);
        rule
    }
}

/// Collects the shapes under a descriptor that have a limit, each as the keys from the descriptor
/// on.
fn shapes_of<'b>(
    descriptor: &'b Descriptor,
    keys: &mut Vec<&'b str>,
    shapes: &mut Vec<Vec<&'b str>>,
) {
    keys.push(&descriptor.key);
    if descriptor.limit.is_some() {
        shapes.push(keys.clone());
    }
    for inner in &descriptor.descriptors {
        shapes_of(inner, keys, shapes);
    }
    keys.pop();
}

fn shape(path: &Path<'_>) -> String {
    descriptor::shape(path.iter().map(|descriptor| descriptor.key.as_str())).into_owned()
}

/// Returns the dimension name of each key of a path.
fn dimensions(path: &Path<'_>) -> Vec<String> {
    let keys = || path.iter().map(|descriptor| descriptor.key.as_str());
    let name = |(depth, key)| descriptor::dimension(keys().take(depth), key).into_owned();
    keys().enumerate().map(name).collect()
}

fn conditions(domain: &str, path: &Path<'_>, rest: &[&str]) -> Vec<(String, Pattern)> {
    let keys = path.iter().map(|descriptor| descriptor.key.as_str()).chain(rest.iter().copied());
    let value = |text: &str| Pattern::exactly(shortened(text.into()));
    let mut when = vec![
        (DOMAIN.to_owned(), value(domain)),
        (SHAPE.to_owned(), value(&descriptor::shape(keys))),
    ];
    for (descriptor, dimension) in path.iter().zip(dimensions(path)) {
        match &descriptor.value {
            ValuePattern::Exactly(text) => when.push((dimension, value(text))),
            ValuePattern::Like(text) => when.push((dimension, Pattern::Stars(text.clone()))),
            ValuePattern::Any => {}
        }
    }
    when
}

/// Returns the dimensions whose values have separate counters.
fn counted_by(path: &Path<'_>) -> Vec<String> {
    let apart = |descriptor: &Descriptor| {
        !matches!(descriptor.value, ValuePattern::Exactly(_)) && !descriptor.shared
    };
    let named = path.iter().zip(dimensions(path));
    named.filter(|(descriptor, _)| apart(descriptor)).map(|(_, dimension)| dimension).collect()
}

/// Returns a name such as `edge.path_/api.user`, as in the statistics of envoyproxy/ratelimit.
fn full_name(domain: &str, path: &Path<'_>, rest: &[&str]) -> String {
    let mut name = domain.to_owned();
    for descriptor in path {
        name.push('.');
        name.push_str(&descriptor.key);
        match &descriptor.value {
            ValuePattern::Exactly(text) | ValuePattern::Like(text) => {
                name.push_str(&format!("_{text}"))
            }
            ValuePattern::Any => {}
        }
    }
    for key in rest {
        name.push('.');
        name.push_str(key);
    }
    name
}

/// Shortens a long name, and keeps it unique with a hash.
fn short_name(name: &str) -> String {
    if name.len() <= NAME_BYTES_MAX {
        return name.to_owned();
    }
    let hash = &blake3::hash(name.as_bytes()).to_hex()[..16];
    let beginning = name.floor_char_boundary(NAME_BYTES_MAX - hash.len() - 1);
    format!("{}~{hash}", &name[..beginning])
}
