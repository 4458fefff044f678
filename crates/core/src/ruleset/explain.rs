//! [`Ruleset::explain`]: reports for each rule if it applies to a query, and why not.

use std::fmt;

use super::{CompiledRule, Ruleset};
use crate::overrides::Override;
use crate::query::Query;
use crate::rule::{Pattern, Rule};

/// Maximum number of skipped rules that are listed per group.
const SKIPPED_MAX: usize = 50;

/// Explanation of one group for a query.
#[derive(Debug)]
pub struct ExplainedGroup<'a> {
    /// Name of the group.
    pub name: &'a str,
    /// Number of rules in the group.
    pub rules: usize,
    /// The rules that apply: shadow rules, and the first other rule that matches.
    pub applied: Vec<AppliedRule<'a>>,
    /// The first rules that do not apply, in their order.
    pub skipped: Vec<SkippedRule<'a>>,
    /// Number of further rules that do not apply.
    pub skipped_more: usize,
}

/// A rule that applies.
#[derive(Debug)]
pub struct AppliedRule<'a> {
    /// The rule, with the limits of its override.
    pub rule: &'a Rule,
    /// The override that applies, if there is one.
    pub overridden: Option<&'a Override>,
}

/// A rule that does not apply.
#[derive(Debug)]
pub struct SkippedRule<'a> {
    /// Name of the rule.
    pub rule: &'a str,
    /// The reason.
    pub because: Mismatch<'a>,
}

/// Reason why a rule does not apply.
#[derive(Debug, PartialEq, Eq)]
pub enum Mismatch<'a> {
    /// The query lacks a dimension that the rule needs.
    Missing {
        /// Name of the dimension.
        dimension: &'a str,
    },
    /// A dimension has another value.
    Value {
        /// Name of the dimension.
        dimension: &'a str,
        /// Its value; `None` if values of the dimension are secret.
        value: Option<&'a str>,
        /// The pattern of the rule.
        pattern: &'a Pattern,
    },
    /// An earlier rule of the group applies.
    Behind {
        /// Name of that rule.
        rule: &'a str,
    },
    /// The rule is for other kinds of queries, such as those of a gateway.
    RuleScope,
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { dimension } => write!(f, "{dimension} is missing"),
            Self::Value { dimension, value: None, .. } => {
                write!(f, "{dimension} has another value")
            }
            Self::Value { dimension, value: Some(value), pattern } => {
                write!(f, "{dimension} is {value}, but the rule requires {pattern}")
            }
            Self::Behind { rule } => write!(f, "rule {rule} comes first and applies"),
            Self::RuleScope => f.write_str("the rule is for other kinds of requests"),
        }
    }
}

impl Ruleset {
    /// Explains for every rule if it applies to a query, and why not.
    pub fn explain<'a>(&'a self, query: &'a Query<'_>) -> Vec<ExplainedGroup<'a>> {
        let values = self.values(query);
        let mismatch = |rule: &'a CompiledRule| {
            if !rule.applies_to(query.rule_scope) {
                return Some(Mismatch::RuleScope);
            }
            let (dimension, value) = rule.mismatch(&values)?;
            let dimension = self.dimensions[dimension].as_str();
            let Some((value, pattern)) = value else {
                return Some(Mismatch::Missing { dimension });
            };
            let secret = self.settings.secret.iter().any(|name| name == dimension);
            let value = Some(value).filter(|_| !secret);
            Some(Mismatch::Value { dimension, value, pattern })
        };
        let explained = |group: &'a super::CompiledGroup| {
            let mut explanation = ExplainedGroup {
                name: &group.name,
                rules: group.rules.len(),
                applied: Vec::new(),
                skipped: Vec::new(),
                skipped_more: 0,
            };
            let mut first: Option<&'a str> = None;
            for rule in &group.rules {
                let because = match first {
                    Some(rule) => Some(Mismatch::Behind { rule }),
                    None => mismatch(rule),
                };
                match because {
                    Some(because) if explanation.skipped.len() < SKIPPED_MAX => {
                        explanation.skipped.push(SkippedRule { rule: &rule.rule.name, because });
                    }
                    Some(_) => explanation.skipped_more += 1,
                    None => {
                        let rule = rule.in_force(&values);
                        let id = rule.override_id();
                        let overridden = self.overrides.iter().find(|one| Some(one.id) == id);
                        explanation.applied.push(AppliedRule { rule: &rule.rule, overridden });
                        first = (!rule.rule.shadow).then_some(rule.rule.name.as_str());
                    }
                }
            }
            explanation
        };
        self.groups.iter().map(explained).collect()
    }
}
