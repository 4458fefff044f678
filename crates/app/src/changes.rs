//! Compares two rulesets and describes the changes, for the log of a reload.

use std::collections::BTreeMap;
use std::fmt;

use sluicegate_core::limit::Unit;
use sluicegate_core::ruleset::Ruleset;
use sluicegate_core::{Limit, Rule, Span};

/// One difference between two rulesets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Added(String),
    Removed(String),
    /// Rule, old limit, new limit.
    Tighter(String, String, String),
    Looser(String, String, String),
    /// Rule, old limit, new limit, whose windows differ such that neither is tighter.
    Replaced(String, String, String),
    /// A change of conditions, counters or behaviour, which is neither tighter nor looser.
    Different(String),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added(rule) => write!(f, "{rule}: added"),
            Self::Removed(rule) => write!(f, "{rule}: removed"),
            Self::Tighter(rule, from, to) => write!(f, "{rule}: {from} changed to {to}, tighter"),
            Self::Looser(rule, from, to) => write!(f, "{rule}: {from} changed to {to}, looser"),
            Self::Replaced(rule, from, to) => write!(f, "{rule}: {from} changed to {to}"),
            Self::Different(rule) => write!(f, "{rule}: conditions or counters changed"),
        }
    }
}

/// Returns the differences between two rulesets, matching rules by name.
pub(crate) fn between(before: &Ruleset, after: &Ruleset) -> Vec<Change> {
    let (before, after) = (by_name(before), by_name(after));
    let mut changes = Vec::new();
    for (name, old) in &before {
        match after.get(name) {
            None => changes.push(Change::Removed((*name).to_owned())),
            Some(new) => compare(name, old, new, &mut changes),
        }
    }
    let added = after.keys().filter(|name| !before.contains_key(*name));
    changes.extend(added.map(|name| Change::Added((*name).to_owned())));
    changes
}

fn by_name(rules: &Ruleset) -> BTreeMap<&str, &Rule> {
    rules.groups().flat_map(|(_, rules)| rules).map(|rule| (rule.name.as_str(), rule)).collect()
}

fn compare(name: &str, old: &Rule, new: &Rule, changes: &mut Vec<Change>) {
    if (Rule { limits: Vec::new(), ..old.clone() }) != (Rule { limits: Vec::new(), ..new.clone() })
    {
        changes.push(Change::Different(name.to_owned()));
    }
    let banned = [old, new].map(|rule| rule.limits.iter().any(Limit::is_ban));
    if banned != [false, false] {
        let texts = |rule: &Rule| {
            let limits: Vec<_> = rule.limits.iter().map(ToString::to_string).collect();
            limits.join(", ")
        };
        let (name, from, to) = (name.to_owned(), texts(old), texts(new));
        match banned {
            [false, _] => changes.push(Change::Tighter(name, from, to)),
            [true, false] => changes.push(Change::Looser(name, from, to)),
            [true, true] => {}
        }
        return;
    }
    // Limits are matched by unit and window.
    let place = |limit: &Limit| -> (Unit, Span) { (limit.unit(), limit.window()) };
    for limit in &old.limits {
        let (from, name) = (limit.to_string(), name.to_owned());
        match new.limits.iter().find(|other| place(other) == place(limit)) {
            Some(other) if other == limit => {}
            Some(other) if other.amount() < limit.amount() => {
                changes.push(Change::Tighter(name, from, other.to_string()));
            }
            Some(other) if other.amount() > limit.amount() => {
                changes.push(Change::Looser(name, from, other.to_string()));
            }
            Some(_) => changes.push(Change::Different(name)),
            None => {}
        }
    }
    let without = |limits: &[Limit], others: &[Limit]| -> Vec<Limit> {
        let is_gone = |limit: &&Limit| !others.iter().any(|other| place(other) == place(limit));
        limits.iter().filter(is_gone).cloned().collect()
    };
    let mut added = without(&new.limits, &old.limits);
    for limit in without(&old.limits, &new.limits) {
        // A limit of the same unit with another window replaces it.
        let by = added.iter().position(|other| other.unit() == limit.unit());
        let by = by.map(|position| added.remove(position));
        changes.push(match by {
            Some(by) => replaced(name.to_owned(), &limit, &by),
            None => Change::Looser(name.to_owned(), limit.to_string(), "no limit".to_owned()),
        });
    }
    for limit in added {
        let (name, to) = (name.to_owned(), limit.to_string());
        changes.push(Change::Tighter(name, "no limit".to_owned(), to));
    }
}

/// Returns the change of a limit to one with another window: tighter if a longer window has no more room,
/// looser if a shorter one has no less.
fn replaced(name: String, old: &Limit, new: &Limit) -> Change {
    let (from, to) = (old.to_string(), new.to_string());
    // Fixed and calendar windows admit up to twice their limit within one window that slides.
    let slides = |limit: &Limit| matches!(limit, Limit::Exact(_) | Limit::Windowed(_));
    if !slides(old) || !slides(new) {
        Change::Replaced(name, from, to)
    } else if new.window() > old.window() && new.amount() <= old.amount() {
        Change::Tighter(name, from, to)
    } else if new.window() < old.window() && new.amount() >= old.amount() {
        Change::Looser(name, from, to)
    } else {
        Change::Replaced(name, from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::Group;
    use sluicegate_core::ruleset::Settings;

    fn ruleset(rules: &[(&str, &[&str], &[&str])]) -> Ruleset {
        let rules = rules.iter().map(|(name, limits, per)| {
            Rule::new(*name, limits.iter().map(|l| l.parse::<Limit>().expect(l))).per(per)
        });
        Ruleset::new(vec![Group::new("g", rules)], Settings::default()).expect("rules")
    }

    #[test]
    fn changes_are_described_as_tighter_or_looser() {
        let before = ruleset(&[
            ("SAME", &["5/s"], &[]),
            ("AMOUNT", &["100/h", "5/s"], &[]),
            ("WINDOW", &["7/min", "9/d"], &[]),
            ("SHORTER", &["7/h"], &[]),
            ("OTHER", &["7/min"], &[]),
            ("FIXED", &["7/30min"], &[]),
            ("PER", &["5/s"], &["u"]),
            ("GONE", &["5/s"], &[]),
        ]);
        let after = ruleset(&[
            ("SAME", &["5/s"], &[]),
            ("AMOUNT", &["50/h", "6/s"], &[]),
            ("WINDOW", &["7/h", "9/d", "900 tokens/d"], &[]),
            ("SHORTER", &["7/min"], &[]),
            ("OTHER", &["70/h"], &[]),
            ("FIXED", &["7/fixed h"], &[]),
            ("PER", &["5/s"], &["v"]),
            ("NEW", &["5/s"], &[]),
        ]);
        let told: Vec<_> = between(&before, &after).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "AMOUNT: 100/h changed to 50/h, tighter",
                "AMOUNT: 5/s changed to 6/s, looser",
                "FIXED: 7/30min changed to 7/fixed h",
                "GONE: removed",
                "OTHER: 7/min changed to 70/h",
                "PER: conditions or counters changed",
                "SHORTER: 7/h changed to 7/min, looser",
                "WINDOW: 7/min changed to 7/h, tighter",
                "WINDOW: no limit changed to 900 tokens/day, tighter",
                "NEW: added",
            ]
        );
    }
}
