//! Other limits for some, for a while, without touching the configuration.

use crate::id::Id;
use crate::limit::Limit;
use crate::rule::{Pattern, Rule};
use crate::time::Timestamp;

/// In the place of the limits of a rule, for work that fits.
///
/// Usage goes on in the counters of the rule: whoever gets more has used what they have used. Of
/// several that fit, the newest applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Its name.
    pub id: Id,
    /// The rule.
    pub rule: String,
    /// For whom: beside the conditions of the rule, all of these must hold.
    pub when: Vec<(String, Pattern)>,
    /// The limits; none means none.
    pub limits: Vec<Limit>,
    /// Since when.
    pub since: Timestamp,
    /// When it ends, by the clock of this node: a banned caller is told.
    pub until: Option<Timestamp>,
}

impl Override {
    /// The rule as it is for those who fit.
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
