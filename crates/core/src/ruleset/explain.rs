//! Why each rule applies to a query, or does not.

use std::fmt;

use super::{Compiled, Ruleset};
use crate::overrides::Override;
use crate::query::Query;
use crate::rule::{Pattern, Rule};

/// The most rules of a group that are told why they do not apply.
const SKIPPED_MAX: usize = 50;

/// What one group makes of a query.
#[derive(Debug)]
pub struct ExplainedGroup<'a> {
    /// The name of the group.
    pub name: &'a str,
    /// How many rules it has.
    pub rules: usize,
    /// The rules that apply: shadow rules, and the first other that matches.
    pub applied: Vec<Applied<'a>>,
    /// The rules that do not, in their order, as far as there is room to tell.
    pub skipped: Vec<Skipped<'a>>,
    /// How many more do not.
    pub skipped_more: usize,
}

/// A rule that applies, as it is in force.
#[derive(Debug)]
pub struct Applied<'a> {
    /// The rule, with the limits of the override.
    pub rule: &'a Rule,
    /// The override in whose limits it applies, if there is one.
    pub overridden: Option<&'a Override>,
}

/// A rule that does not apply.
#[derive(Debug)]
pub struct Skipped<'a> {
    /// Its name.
    pub rule: &'a str,
    /// Why it does not.
    pub because: Mismatch<'a>,
}

/// Why a rule does not apply.
#[derive(Debug, PartialEq, Eq)]
pub enum Mismatch<'a> {
    /// The query does not name a dimension that the rule asks for.
    Missing {
        /// Which one.
        dimension: &'a str,
    },
    /// A dimension has another value.
    Value {
        /// Which one.
        dimension: &'a str,
        /// Its value; `None` if values of the dimension are secret.
        value: Option<&'a str>,
        /// What the rule asks for.
        pattern: &'a Pattern,
    },
    /// A rule above it in the group applies.
    Behind {
        /// Which one.
        rule: &'a str,
    },
    /// The rule is about other kinds of work, such as that of a gateway.
    Subject,
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { dimension } => write!(f, "{dimension} is missing"),
            Self::Value { dimension, value: None, .. } => {
                write!(f, "{dimension} has another value")
            }
            Self::Value { dimension, value: Some(value), pattern } => {
                write!(f, "{dimension} is {value}, and the rule asks for {pattern}")
            }
            Self::Behind { rule } => write!(f, "{rule} applies, and comes first"),
            Self::Subject => f.write_str("it is about other work"),
        }
    }
}

impl Ruleset {
    /// Says of every rule whether it applies to a query, and why not.
    pub fn explain<'a>(&'a self, query: &'a Query<'_>) -> Vec<ExplainedGroup<'a>> {
        let values = self.values(query);
        let mismatch = |rule: &'a Compiled| {
            if !rule.applies_to(query.subject) {
                return Some(Mismatch::Subject);
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
            let mut told = ExplainedGroup {
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
                    Some(because) if told.skipped.len() < SKIPPED_MAX => {
                        told.skipped.push(Skipped { rule: &rule.rule.name, because });
                    }
                    Some(_) => told.skipped_more += 1,
                    None => {
                        let rule = rule.in_force(&values);
                        let id = rule.override_id();
                        let overridden = self.overrides.iter().find(|one| Some(one.id) == id);
                        told.applied.push(Applied { rule: &rule.rule, overridden });
                        first = (!rule.rule.shadow).then_some(rule.rule.name.as_str());
                    }
                }
            }
            told
        };
        self.groups.iter().map(explained).collect()
    }
}
