//! What can be wrong with rules and groups.

/// What is wrong with a rule or a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct RulesetError {
    /// `rule NAME` or `group NAME`.
    pub place: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a rule or a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The name is missing or long.
    #[error("a name has 1 to 64 bytes")]
    Name,
    /// The name is taken.
    #[error("this name is taken: counters are kept by it, give each its own")]
    Duplicate,
    /// A rule without limits.
    #[error("has no limit: write at least one, such as limit: 100/h")]
    NoLimits,
    /// A ban among other limits.
    #[error("a limit of 0 bans: write it alone, without other limits")]
    BanBesideLimits,
    /// A group without rules.
    #[error("has no rules: write at least one, or leave the group out")]
    NoRules,
    /// Two groups claim `effectiveLimit`.
    #[error("only one group can be effective, and {0} already is")]
    Effective(String),
    /// Two limits of which one can never bind.
    #[error("{0} and {1} limit the same window: keep the smaller one")]
    SameWindow(String, String),
    /// A lease of no length.
    #[error("lease: a slot that is held for no time limits nothing: write at least 1s")]
    Lease,
    /// `<` without `>` or without a name.
    #[error("key: {0:?} is not a template: write dimensions as <name>")]
    Template(String),
    /// What the keys of rules without a template have, and only they.
    #[error("key: {0:?} contains #, which marks keys that are not literal: choose another sign")]
    TemplateMark(String),
    /// The template would merge counters that `per` keeps apart.
    #[error("key: {key:?} leaves out {dimension}, by which the rule counts: add <{dimension}>")]
    TemplateDimension {
        /// The template.
        key: String,
        /// What it leaves out.
        dimension: String,
    },
    /// A literal key can hold one counter.
    #[error("key: a literal key holds one counter, but these limits need {0}: split the rule")]
    TemplateCells(usize),
    /// Two rules count under one literal key, differently.
    #[error("key: {key:?} is the key of rule {other} too, which has other limits")]
    TemplateShared {
        /// The template.
        key: String,
        /// The other rule.
        other: String,
    },
    /// An override of a rule that there isn't.
    #[error("there is no rule of this name: see the rules of the configuration")]
    NoSuchRule,
    /// A condition that nothing can fulfil.
    #[error("when {0}: an empty list matches nothing")]
    NoValues(String),
}
