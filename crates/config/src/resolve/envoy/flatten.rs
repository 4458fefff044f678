//! From a tree of descriptors to a group of rules.
//!
//! A descriptor of Envoy is looked up entry by entry: by its exact value if that is there, else by
//! the first pattern that fits, else by its key alone, and it never turns back. Its depth has to
//! be that of the limit. As rules, of which the first that matches applies:
//!
//! - Rules of one *shape*, which is the list of keys, compete; those of different shapes never do.
//! - Of one shape, the more specific value comes first, at the first key in which two differ.
//! - Where a lookup would have ended without a limit although a less specific branch has one, a
//!   rule without limits stands in the way. So it does behind a shadow, which ends a lookup too.

use std::collections::{BTreeMap, HashMap, HashSet};

use sluicegate_core::descriptor::{self, DOMAIN, SHAPE};
use sluicegate_core::limit::{Calendar, Period, Rate, Unit};
use sluicegate_core::query::shortened;
use sluicegate_core::rule::{Mode, Pattern};
use sluicegate_core::{Group, Limit, Rule};

use super::Counting;
use super::read::{Branch, Domain, Given, Requests, Value};

/// The longest name of a rule or a group, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The rules of a domain.
pub(super) fn group(domain: &Domain, counting: Counting) -> Group {
    let mut flat = Flat::new(&domain.name, counting);
    flat.walk(&domain.branches, &mut Vec::new());
    let mut rules: Vec<Rule> = flat.rules.into_values().flatten().collect();
    for rule in &mut rules {
        let replaced = rule.replaces.iter().flat_map(|name| flat.given.get(name)).flatten();
        rule.replaces = replaced.cloned().collect();
    }
    Group::new(short_name(&domain.name), rules)
}

/// The rules so far, by shape.
struct Flat<'d> {
    domain: &'d str,
    counting: Counting,
    rules: BTreeMap<String, Vec<Rule>>,
    /// The names of rules by those that the file gives to their limits.
    given: HashMap<String, Vec<String>>,
    /// The names that are taken.
    taken: HashSet<String>,
}

type Path<'b> = Vec<&'b Branch>;

impl<'d> Flat<'d> {
    fn new(domain: &'d str, counting: Counting) -> Self {
        let (given, taken) = (HashMap::new(), HashSet::new());
        Self { domain, counting, rules: BTreeMap::new(), given, taken }
    }

    /// Adds the rules of `branches`, which lie under `path`; the most specific first.
    fn walk<'b>(&mut self, branches: &'b [Branch], path: &mut Path<'b>) {
        let mut ordered: Vec<&Branch> = branches.iter().collect();
        // Stable: of several patterns the first that is written is tried first.
        ordered.sort_by_key(|branch| match branch.value {
            Value::Exactly(_) => 0,
            Value::Like(_) => 1,
            Value::Any => 2,
        });
        for (place, branch) in ordered.iter().enumerate() {
            path.push(branch);
            if let Some(limit) = &branch.limit {
                let rule = self.rule(path, branch, limit);
                self.rules.entry(shape(path)).or_default().push(rule);
            }
            self.walk(&branch.branches, path);
            // What is written exactly fits nothing else.
            let fits = |other: &&&Branch| {
                other.key == branch.key && !matches!(other.value, Value::Exactly(_))
            };
            let rivals = ordered[place + 1..].iter().filter(fits);
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

    /// Keeps what `path` matches from less specific rules of the shape that ends in `rest`, unless
    /// a rule of its own does.
    fn block(&mut self, path: &Path<'_>, rest: &[&str]) {
        let keys = || path.iter().map(|branch| branch.key.as_str()).chain(rest.iter().copied());
        let shape = descriptor::shape(keys()).into_owned();
        let name = self.name(&format!("{}.*", full_name(self.domain, path, rest)), &shape);
        let rules = self.rules.entry(shape).or_default();
        let free = Rule { when: conditions(self.domain, path, rest), ..Rule::unlimited(name) };
        let covers = |rule: &Rule| !rule.shadow && rule.when == free.when;
        if !rules.last().is_some_and(covers) {
            rules.push(free);
        }
    }

    /// A name that no other rule has. Texts may hold the dots that join them; then the shape tells
    /// two names apart.
    fn name(&mut self, full: &str, shape: &str) -> String {
        let mut name = short_name(full);
        if self.taken.contains(&name) {
            name = short_name(&format!("{full} of {shape}"));
        }
        self.taken.insert(name.clone());
        name
    }

    fn rule(&mut self, path: &Path<'_>, branch: &Branch, given: &Given) -> Rule {
        let name = self.name(&full_name(self.domain, path, &[]), &shape(path));
        if let Some(called) = &given.name {
            self.given.entry(called.clone()).or_default().push(name.clone());
        }
        let mut rule = match given.limit {
            Requests::Unlimited => Rule::unlimited(name),
            Requests::None => Rule::new(name, [Limit::Banned { until: None }]),
            Requests::Rate(amount, window) => {
                let rate = Rate { amount, unit: Unit::Requests, window };
                let limit = match self.counting {
                    Counting::Ours => Limit::Windowed(rate),
                    Counting::Theirs => {
                        let calendar = Calendar::utc(Period::Fixed(window));
                        Limit::Calendar { amount, unit: Unit::Requests, calendar }
                    }
                };
                Rule::new(name, [limit])
            }
        };
        rule.when = conditions(self.domain, path, &[]);
        rule.per = counted_by(path);
        rule.shadow = branch.shadow;
        rule.quota = branch.quota && !rule.unlimited;
        // Hits may come when the work is done: they count in full, and what is over is refused.
        rule.mode = Mode::Optimistic;
        rule.tally = (self.counting == Counting::Theirs || branch.quota) && !rule.unlimited;
        rule.replaces.clone_from(&given.replaces);
        rule
    }
}

/// The shapes under a branch that have a limit, each as the keys from the branch on.
fn shapes_of<'b>(branch: &'b Branch, keys: &mut Vec<&'b str>, shapes: &mut Vec<Vec<&'b str>>) {
    keys.push(&branch.key);
    if branch.limit.is_some() {
        shapes.push(keys.clone());
    }
    for inner in &branch.branches {
        shapes_of(inner, keys, shapes);
    }
    keys.pop();
}

fn shape(path: &Path<'_>) -> String {
    descriptor::shape(path.iter().map(|branch| branch.key.as_str())).into_owned()
}

/// What the dimension of each key of a path is called.
fn dimensions(path: &Path<'_>) -> Vec<String> {
    let keys = || path.iter().map(|branch| branch.key.as_str());
    let name = |(place, key)| descriptor::dimension(keys().take(place), key).into_owned();
    keys().enumerate().map(name).collect()
}

fn conditions(domain: &str, path: &Path<'_>, rest: &[&str]) -> Vec<(String, Pattern)> {
    let keys = path.iter().map(|branch| branch.key.as_str()).chain(rest.iter().copied());
    let value = |text: &str| Pattern::exactly(shortened(text.into()));
    let mut when = vec![
        (DOMAIN.to_owned(), value(domain)),
        (SHAPE.to_owned(), value(&descriptor::shape(keys))),
    ];
    for (branch, dimension) in path.iter().zip(dimensions(path)) {
        match &branch.value {
            Value::Exactly(text) => when.push((dimension, value(text))),
            Value::Like(text) => when.push((dimension, Pattern::Stars(text.clone()))),
            Value::Any => {}
        }
    }
    when
}

/// The dimensions whose values have counters of their own.
fn counted_by(path: &Path<'_>) -> Vec<String> {
    let apart = |branch: &Branch| !matches!(branch.value, Value::Exactly(_)) && !branch.shared;
    let named = path.iter().zip(dimensions(path));
    named.filter(|(branch, _)| apart(branch)).map(|(_, dimension)| dimension).collect()
}

/// `edge.path_/api.user`, as the statistics of envoyproxy/ratelimit call it.
fn full_name(domain: &str, path: &Path<'_>, rest: &[&str]) -> String {
    let mut name = domain.to_owned();
    for branch in path {
        name.push('.');
        name.push_str(&branch.key);
        match &branch.value {
            Value::Exactly(text) | Value::Like(text) => name.push_str(&format!("_{text}")),
            Value::Any => {}
        }
    }
    for key in rest {
        name.push('.');
        name.push_str(key);
    }
    name
}

/// A name that is short enough, and still no other's.
fn short_name(name: &str) -> String {
    if name.len() <= NAME_BYTES_MAX {
        return name.to_owned();
    }
    let hash = &blake3::hash(name.as_bytes()).to_hex()[..16];
    let beginning = name.floor_char_boundary(NAME_BYTES_MAX - hash.len() - 1);
    format!("{}~{hash}", &name[..beginning])
}
