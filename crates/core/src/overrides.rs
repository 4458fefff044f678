//! [`Override`]: limits set at run time that replace the limits of a rule for some requests, for a
//! time or until the override is removed.

use crate::id::Id;
use crate::limit::Limit;
use crate::rule::{Pattern, Rule};
use crate::time::Timestamp;

/// Limits that replace those of a rule for matching work.
///
/// Usage continues in the counters of the rule, so a higher limit does not reset it. If several
/// overrides match, the newest applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Id of the override.
    pub id: Id,
    /// Name of the rule.
    pub rule: String,
    /// Conditions that must hold in addition to those of the rule.
    pub when: Vec<(String, Pattern)>,
    /// The limits; an empty list removes the limits of the rule.
    pub limits: Vec<Limit>,
    /// Time of creation.
    pub since: Timestamp,
    /// Time at which it ends, by the clock of this node; part of the answer to a banned caller.
    pub until: Option<Timestamp>,
}

impl Override {
    /// Returns the rule with the limits of this override.
    pub(crate) fn apply(&self, rule: &Rule) -> Rule {
        let ends = |limit: &Limit| match limit {
            Limit::Banned { .. } => Limit::Banned { until: self.until },
            other => other.clone(),
        };
        Rule {
            when: rule.when.iter().chain(&self.when).cloned().collect(),
            limits: self.limits.iter().map(ends).collect(),
            unlimited: self.limits.is_empty(),
            ..rule.clone()
        }
    }
}
