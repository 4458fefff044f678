//! Errors in rules and groups.

/// An error in a rule or a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct RulesetError {
    /// The location: `rule NAME` or `group NAME`.
    pub place: String,
    /// The error.
    pub problem: RulesetProblem,
}

/// Kinds of errors in a rule or a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesetProblem {
    /// The name is empty or too long.
    #[error("a name must have 1 to 64 bytes")]
    Name,
    /// The name is already used.
    #[error(
        "this name is already used: names must be unique, because counters are stored under them"
    )]
    Duplicate,
    /// A rule without limits.
    #[error("has no limit: write at least one, such as limit: 100/h")]
    NoLimits,
    /// A ban together with other limits.
    #[error("a limit of 0 is a ban: remove the other limits")]
    BanBesideLimits,
    /// A group without rules.
    #[error("has no rules: write at least one, or leave the group out")]
    NoRules,
    /// Two groups are marked as effective.
    #[error("only one group can be effective, and {0} already is")]
    Effective(String),
    /// Two limits of one window, one of which never applies.
    #[error("{0} and {1} limit the same window: keep the smaller one")]
    SameWindow(String, String),
    /// A lease of zero length.
    #[error("lease: must not be zero: write at least 1s")]
    Lease,
    /// `<` without `>` or without a name.
    #[error("key: {0:?} is not a template: write dimensions as <name>")]
    Template(String),
    /// A template contains `#`, which marks generated keys.
    #[error("key: {0:?} contains #, which is reserved for generated keys: use another character")]
    TemplateMark(String),
    /// The template leaves out a dimension of `per`, so it would merge counters.
    #[error("key: {key:?} leaves out {dimension}, by which the rule counts: add <{dimension}>")]
    TemplateDimension {
        /// The template.
        key: String,
        /// The dimension.
        dimension: String,
    },
    /// A literal key for several counters.
    #[error("key: a literal key holds one counter, but these limits need {0}: split the rule")]
    TemplateCells(usize),
    /// Two rules share a literal key, but have different limits.
    #[error(
        "key: {key:?} is also the key of rule {other}, which has other limits: use another key"
    )]
    TemplateShared {
        /// The template.
        key: String,
        /// The other rule.
        other: String,
    },
    /// An override of an unknown rule.
    #[error("unknown rule: use the name of a rule in the configuration")]
    NoSuchRule,
    /// A condition that no value fulfils.
    #[error("when {0}: an empty list matches nothing: write at least one value")]
    NoValues(String),
}
