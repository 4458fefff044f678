//! The document with the limits of all rules in the override store, so that a node that starts with
//! a changed configuration finds the previous limits.
//!
//! A rule whose limit changes its shape uses another counter. A node that reloads knows the
//! previous limit. A node that starts does not, unless another node or its own last run has written
//! it down. Without the document, the usage that Redis or a snapshot kept would be lost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sluicegate_core::ruleset::{FormerLimit, Ruleset};
use sluicegate_core::{Id, Limit, Timestamp};

/// Id of the document in the override store. No override has it, because generated ids are random.
pub(crate) const NAME: Id = Id::from_bits(1);

/// The limits of all rules, and the limits that were in force before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsInUse {
    /// Limits in force by rule, as text.
    limits: BTreeMap<String, Vec<String>>,
    /// Limits that were in force before.
    former: Vec<FormerLimitText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormerLimitText {
    rule: String,
    limit: String,
    until: String,
}

impl LimitsInUse {
    /// Parses the document. Returns `None` if the text has another format.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Collects the limits of `rules` and the earlier limits `before`.
    pub(crate) fn of<'a>(rules: &Ruleset, before: impl Iterator<Item = &'a FormerLimit>) -> Self {
        let mut limits: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (_, group) in rules.groups() {
            for rule in group {
                let texts = rule.limits.iter().map(ToString::to_string);
                limits.entry(rule.name.clone()).or_default().extend(texts);
            }
        }
        let former = before.map(|former| FormerLimitText {
            rule: former.rule.clone(),
            limit: former.limit.to_string(),
            until: former.until.to_string(),
        });
        let mut former: Vec<_> = former.collect();
        former.sort_by(|one, other| (&one.rule, &one.limit).cmp(&(&other.rule, &other.limit)));
        Self { limits, former }
    }

    /// Returns the limits under which usage may have been counted until `now`.
    pub(crate) fn until(&self, now: Timestamp) -> Vec<FormerLimit> {
        let ending = |(rule, text): (&String, &String)| {
            FormerLimit::ending(rule, &text.parse::<Limit>().ok()?, now)
        };
        let written = self.limits.iter();
        let current = written
            .flat_map(|(rule, texts)| texts.iter().map(move |t| (rule, t)))
            .filter_map(ending);
        let former = self.former.iter().filter_map(|former| {
            let until: Timestamp = former.until.parse().ok()?;
            let limit: Limit = former.limit.parse().ok()?;
            (until > now).then(|| FormerLimit { rule: former.rule.clone(), limit, until })
        });
        current.chain(former).collect()
    }
}
