//! [`Rule`]: limits in code instead of a configuration file.

use std::time::Duration;

use sluicegate_core::Limit;
use sluicegate_core::rule::{Pattern, Rule as CompiledFrom};

/// Limits on the work that the rule matches, counted by some dimensions.
///
/// ```
/// use sluicegate::Rule;
///
/// let user = Rule::new("USER").per(["userId"]).limit("10/min").limit("100/h");
/// let slots = Rule::new("SLOTS").limit("100 concurrent");
/// let premium = Rule::new("PREMIUM").when("tier", "premium").per(["userId"]).limit("100/min");
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    rule: CompiledFrom,
    limits: Vec<String>,
}

impl Rule {
    /// Creates a rule that matches everything, with one counter. Denials contain its name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { rule: CompiledFrom::new(name, []), limits: Vec::new() }
    }

    /// Counts separately by these dimensions. A request without one of them does not match.
    #[must_use]
    pub fn per<D: AsRef<str>>(mut self, dimensions: impl IntoIterator<Item = D>) -> Self {
        self.rule.per = dimensions.into_iter().map(|name| name.as_ref().to_owned()).collect();
        self
    }

    /// Adds a limit, written as in a configuration: `100/h`, `20000 tokens/min`, `5.00 USD/day`,
    /// `25/s burst 50`, `100 concurrent`. Work has to fit all limits of a rule.
    #[must_use]
    pub fn limit(mut self, limit: impl Into<String>) -> Self {
        self.limits.push(limit.into());
        self
    }

    /// Matches only if the dimension has this value. `*` and `?` in the value match any text and any
    /// character.
    #[must_use]
    pub fn when(mut self, dimension: &str, value: impl Into<String>) -> Self {
        self.rule = self.rule.when(dimension, Pattern::from_text(value));
        self
    }

    /// Sets the time after which a slot of `N concurrent` is free again if its admission is neither
    /// renewed nor ended. Default: 30 seconds.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.rule.lease = lease.into();
        self
    }

    /// Counts, and never denies.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.rule.shadow = true;
        self
    }

    /// Returns the rule with its limits, or adds to `errors`.
    pub(super) fn compile(mut self, errors: &mut Vec<String>) -> CompiledFrom {
        for text in &self.limits {
            match text.parse::<Limit>() {
                Ok(limit) => self.rule.limits.push(limit),
                Err(error) => {
                    errors.push(format!("rule {}: limit {text:?}: {error}", self.rule.name))
                }
            }
        }
        self.rule
    }
}
