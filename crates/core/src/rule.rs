//! [`Rule`] and [`Group`], as written in a configuration.

use crate::limit::Limit;
use crate::outage::OutagePolicy;
use crate::query::OWN;
use crate::ruleset::{CompiledRule, RulesetError};
use crate::time::Span;

/// A limit on the work that it matches, with one counter per combination of values of some
/// dimensions.
///
/// It matches if every condition of `when` holds and every dimension of `per` is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name, unique in the configuration. Denials and metrics contain it.
    pub name: String,
    /// Description, shown together with the rule.
    pub description: Option<String>,
    /// Reason of denials in place of `HIT_<name>_LIMIT`.
    pub reason: Option<String>,
    /// Conditions on dimensions; all must hold.
    pub when: Vec<(String, Pattern)>,
    /// Dimensions with one counter per combination of values; none means one counter for
    /// everything.
    pub per: Vec<String>,
    /// Limits; work has to fit all of them.
    pub limits: Vec<Limit>,
    /// Lifetime of a slot of `N concurrent` without renewal.
    pub lease: Span,
    /// True if the rule is evaluated and counted, but never denies.
    pub shadow: bool,
    /// Template of the store's key, with `<dimension>` for values; `None` for a generated key.
    pub key: Option<String>,
    /// Part of the estimate that has to fit before work may start.
    pub mode: EstimateMode,
    /// Handling of an estimate that is not settled in time.
    pub on_expiry: OnExpiry,
    /// Outage policy of the rule; `None` for the policy of the client type.
    pub outage: Option<OutagePolicy>,
    /// True if the rule deliberately has no limits: matching work is unlimited in its group.
    pub unlimited: bool,
    /// True if the rule only counts, like a shadow rule and independent of other rules. The
    /// protocol server compares the count with the limit and denies. This is how
    /// envoyproxy/ratelimit counts.
    pub counts_only: bool,
    /// True if the rule is one of several quotas: a call is admitted if one of the quotas that it
    /// matches is not used up. Such a rule also has `counts_only`.
    pub quota: bool,
    /// Rules that do not apply to work that this rule matches, if several queries form one plan.
    pub replaces: Vec<String>,
    /// True if the upstream of the work can close the rule for a time: see [`crate::Store::close`].
    pub gate: bool,
    /// True if the rule is no limit and only spreads the starts of paced work: its token bucket is
    /// charged at the start of the work, without the slack.
    pub spreads: bool,
}

impl Rule {
    /// Default lifetime of a slot without renewal.
    pub const LEASE: Span = Span::from_secs(30);

    /// Creates a rule that matches everything, with one counter.
    pub fn new(name: impl Into<String>, limits: impl IntoIterator<Item = Limit>) -> Self {
        Self {
            name: name.into(),
            description: None,
            reason: None,
            when: Vec::new(),
            per: Vec::new(),
            limits: limits.into_iter().collect(),
            lease: Self::LEASE,
            shadow: false,
            key: None,
            mode: EstimateMode::Strict,
            on_expiry: OnExpiry::Keep,
            outage: None,
            unlimited: false,
            counts_only: false,
            quota: false,
            replaces: Vec::new(),
            gate: false,
            spreads: false,
        }
    }

    /// Creates a rule without a limit.
    pub fn unlimited(name: impl Into<String>) -> Self {
        Self { unlimited: true, ..Self::new(name, []) }
    }

    /// Makes it possible to close the rule for a time.
    #[must_use]
    pub fn gated(mut self) -> Self {
        self.gate = true;
        self
    }

    /// Counts separately by these dimensions.
    #[must_use]
    pub fn per(mut self, dimensions: &[&str]) -> Self {
        self.per = dimensions.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Returns every dimension that has to be present for a match, possibly with repetitions: those
    /// of `when`, of `per`, and those between `<` and `>` in `key`.
    pub fn dimensions(&self) -> impl Iterator<Item = &str> {
        let conditions = self.when.iter().map(|(name, _)| name.as_str());
        let counted = self.per.iter().map(String::as_str);
        let template = self.key.as_deref().unwrap_or_default().split('<').skip(1);
        let in_key = template.filter_map(|part| part.split_once('>').map(|(name, _)| name));
        conditions.chain(counted).chain(in_key)
    }

    /// Returns true if the rule uses only our [own](OWN) dimensions, so it is the same for all
    /// callers.
    pub fn is_own(&self) -> bool {
        let mut names = self.when.iter().map(|(name, _)| name).chain(&self.per).peekable();
        names.peek().is_some() && names.all(|name| name.starts_with(OWN))
    }

    /// Matches only if the dimension fits the pattern.
    #[must_use]
    pub fn when(mut self, dimension: &str, pattern: Pattern) -> Self {
        self.when.push((dimension.to_owned(), pattern));
        self
    }
}

/// Condition on the value of a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Any of these values.
    OneOf(Vec<String>),
    /// A text in which `*` matches any text and `?` one character.
    Glob(String),
    /// A text in which `*` matches any text and every other character itself: a pattern of
    /// envoyproxy/ratelimit. It is also compared with values that are too long to be stored.
    Stars(String),
    /// Any of the secret values with these hashes, as [`SecretHasher::hash`] returns them.
    Hashed(SecretHasher, Vec<String>),
}

/// Hashes values of secret dimensions with a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHasher([u8; 32]);

impl SecretHasher {
    /// Creates a hasher with this key.
    pub const fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// Returns 32 hexadecimal digits that replace a value in keys, logs and overrides.
    pub fn hash(&self, value: &str) -> String {
        blake3::keyed_hash(&self.0, value.as_bytes()).to_hex()[..32].to_owned()
    }
}

impl std::fmt::Debug for SecretHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretHasher")
    }
}

impl Pattern {
    /// Creates a pattern that matches exactly this value.
    pub fn exactly(value: impl Into<String>) -> Self {
        Self::OneOf(vec![value.into()])
    }

    /// Creates a glob if the text contains `*` or `?`, otherwise an exact pattern.
    pub fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.contains(['*', '?']) { Self::Glob(text) } else { Self::exactly(text) }
    }

    /// Returns true if a value fits.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::OneOf(values) => values.iter().any(|other| other == value),
            Self::Glob(glob) => glob_matches(glob, value),
            Self::Stars(stars) => stars_match(stars, value),
            Self::Hashed(secrets, hashes) => hashes.contains(&secrets.hash(value)),
        }
    }
}

/// Formats it as `a`, `a or b` or `premium_*`.
impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OneOf(values) => f.write_str(&values.join(" or ")),
            Self::Glob(text) | Self::Stars(text) => f.write_str(text),
            Self::Hashed(_, hashes) => write!(f, "hash:{}", hashes.join(" or hash:")),
        }
    }
}

/// Returns true if `value` matches `stars`. Takes linear time, because a client can send values of
/// any length.
fn stars_match(stars: &str, value: &str) -> bool {
    let Some((first, rest)) = stars.split_once('*') else { return stars == value };
    let (middle, last) = match rest.rsplit_once('*') {
        None => (None, rest),
        Some((middle, last)) => (Some(middle), last),
    };
    let rest = value.strip_prefix(first).and_then(|rest| rest.strip_suffix(last));
    let Some(mut rest) = rest else { return false };
    for part in middle.into_iter().flat_map(|middle| middle.split('*')) {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    true
}

/// Returns true if `value` matches `glob`. Path globs treat `/` and `.` specially, and ids contain
/// both, hence this own implementation.
///
/// On a mismatch only the last `*` is tried again, so it takes at most O(glob × value).
fn glob_matches(glob: &str, value: &str) -> bool {
    let (mut glob, mut value) = (glob.chars(), value.chars());
    let mut retry = None;
    loop {
        let (before_glob, before_value) = (glob.clone(), value.clone());
        match (glob.next(), value.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                // First let the star match nothing.
                retry = Some((glob.clone(), before_value.clone()));
                value = before_value;
            }
            (Some('?'), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            (_, None) if before_glob.clone().all(|c| c == '*') => return true,
            _ => {
                let Some((after_star, mut from)) = retry.take() else {
                    return false;
                };
                if from.next().is_none() {
                    return false;
                }
                (glob, value) = (after_star.clone(), from.clone());
                retry = Some((after_star, from));
            }
        }
    }
}

/// Part of the estimate that has to fit before work may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EstimateMode {
    /// The whole estimate. The limit is never exceeded if estimates are upper bounds.
    #[default]
    Strict,
    /// One unit. The limit is exceeded by at most the work in progress at the same time.
    Optimistic,
}

/// Handling of an estimate that is not settled in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// Keep the charge until it leaves the window.
    #[default]
    Keep,
    /// Give the charge back.
    Refund,
}

/// Rules of which the first match applies. Work has to pass every group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// True for the group that `effectiveLimit` refers to.
    pub effective: bool,
    /// Rules, the most specific first.
    pub rules: Vec<Rule>,
}

impl Group {
    /// Creates a group of rules.
    pub fn new(name: impl Into<String>, rules: impl IntoIterator<Item = Rule>) -> Self {
        Self { name: name.into(), effective: false, rules: rules.into_iter().collect() }
    }
}

/// A limit that a query contains, under a key of the caller's choice.
#[derive(Clone, Debug)]
pub struct InlineRule(pub(crate) CompiledRule);

impl InlineRule {
    /// Prefix of the keys of inline limits; no key of the configuration starts with it.
    pub const KEY_START: &str = "~inline:";

    /// Creates a rule that counts `limits` under `key`, separate from every rule of the
    /// configuration.
    pub fn new(
        name: impl Into<String>,
        key: &str,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<Self, RulesetError> {
        CompiledRule::inline(Rule::new(name, limits), key).map(Self)
    }

    /// Admits while anything is left.
    #[must_use]
    pub fn optimistic(mut self) -> Self {
        self.0.rule.mode = EstimateMode::Optimistic;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_values() {
        for (glob, value, expected) in [
            ("premium_*", "premium_", true),
            ("premium_*", "premium_ann", true),
            ("premium_*", "xpremium_ann", false),
            ("*", "", true),
            ("**", "x", true),
            ("*a*b", "xaybab", true),
            ("*a*b", "xayba", false),
            ("a?c", "aéc", true),
            ("a?c", "ac", false),
            ("", "", true),
            ("", "a", false),
            ("a*", "a/b.c", true),
            ("*abc", "ababc", true),
            ("a*b", "a", false),
        ] {
            assert_eq!(glob_matches(glob, value), expected, "{glob} {value}");
        }
    }

    #[test]
    fn stars_match_whole_values() {
        for (stars, value, expected) in [
            ("foo*", "foo", true),
            ("foo*", "foo/bar", true),
            ("foo*", "xfoo", false),
            ("bar*b", "barb", true),
            ("bar*b", "barab", true),
            ("bar*b", "bar", false),
            ("bar*b", "barba", false),
            ("ab*bc", "abc", false),
            ("foo*bar*baz", "foobarbaz", true),
            ("foo*bar*baz", "foo-bar-bar-baz", true),
            ("foo*bar*baz", "foobaz", false),
            ("foo*bar*baz", "foobarba", false),
            ("foo*bar*", "foo bar", true),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "example.com", false),
            ("a**b", "ab", true),
            ("*", "", true),
            ("a?*", "a?b", true),
            ("a?*", "abb", false),
            ("é*é", "éxé", true),
            ("", "", true),
        ] {
            assert_eq!(stars_match(stars, value), expected, "{stars} {value}");
        }
    }

    #[test]
    fn a_hostile_glob_takes_polynomial_time() {
        assert!(!glob_matches(&"*a".repeat(40), &"a".repeat(39)));
        assert!(!glob_matches("*a*a*a*a*a*a*a*a*b", &"a".repeat(256)));
    }

    #[test]
    fn one_of_is_exact() {
        let pattern = Pattern::OneOf(vec!["a".into(), "b*".into()]);
        assert!(pattern.matches("a") && pattern.matches("b*") && !pattern.matches("bc"));
    }
}
