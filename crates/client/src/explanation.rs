//! [`Explanation`]: the rules that apply to a request, and the reasons why others do not.

use std::fmt;

/// The rules that apply to a request, by group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "remote", derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Explanation {
    /// Every group, in the order of the configuration.
    pub groups: Vec<GroupExplanation>,
}

/// A group of rules, of which the first match applies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "remote", derive(serde::Deserialize))]
#[non_exhaustive]
pub struct GroupExplanation {
    /// Name of the group.
    pub group: String,
    /// The counters of the rules that apply: of shadow rules, and of the first other rule.
    pub matched: Vec<MatchedRule>,
    /// The first rules that do not apply, at most 50.
    pub skipped: Vec<SkippedRule>,
}

/// A counter of a rule that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "remote", derive(serde::Deserialize))]
#[non_exhaustive]
pub struct MatchedRule {
    /// Name of the rule.
    pub rule: String,
    /// Name of the counter; `None` if the rule has no limit.
    pub key: Option<String>,
    /// Its limits.
    pub limits: Vec<String>,
    /// True if the rule is counted and never denies.
    #[cfg_attr(feature = "remote", serde(default))]
    pub shadow: bool,
}

/// A rule that does not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "remote", derive(serde::Deserialize))]
#[non_exhaustive]
pub struct SkippedRule {
    /// Name of the rule.
    pub rule: String,
    /// The reason.
    pub because: String,
}

/// Formats it as one line per rule.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for GroupExplanation { group, matched, skipped } in &self.groups {
            writeln!(f, "{group}:")?;
            for MatchedRule { rule, key, limits, shadow } in matched {
                let limits =
                    if limits.is_empty() { "no limit".to_owned() } else { limits.join(", ") };
                let shadow = if *shadow { " (shadow)" } else { "" };
                let key = key.as_deref().unwrap_or("-");
                writeln!(f, "  {rule} applies{shadow}: {limits} on {key}")?;
            }
            for SkippedRule { rule, because } in skipped {
                writeln!(f, "  {rule} does not apply: {because}")?;
            }
        }
        Ok(())
    }
}
