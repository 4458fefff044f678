//! Rules and groups, as a configuration states them.

use crate::limit::Limit;
use crate::outage::OutagePolicy;
use crate::query::OWN;
use crate::ruleset::{Compiled, RulesetError};
use crate::time::Span;

/// A limit on the work that it matches, counted apart by some dimensions.
///
/// It matches when every condition of `when` holds and every dimension of `per` is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, unique in the configuration; denials and metrics speak of it.
    pub name: String,
    /// What it is for, in words; shown wherever the rule is.
    pub description: Option<String>,
    /// Conditions on dimensions; all must hold.
    pub when: Vec<(String, Pattern)>,
    /// The dimensions by which it counts apart; none means one counter for everybody.
    pub per: Vec<String>,
    /// All of them must pass.
    pub limits: Vec<Limit>,
    /// How long a slot of `N concurrent` is held without renewal.
    pub lease: Span,
    /// Evaluated and counted, but never the reason for a denial.
    pub shadow: bool,
    /// The text of the store's key, with `<dimension>` for values, instead of one made up.
    pub key: Option<String>,
    /// What has to fit before work may go.
    pub mode: Mode,
    /// What becomes of an estimate that nobody settles.
    pub on_expiry: OnExpiry,
    /// What holds while the store does not answer, if that is not up to the client type.
    pub outage: Option<OutagePolicy>,
    /// It has no limits on purpose: work that it matches is free in its group.
    pub unlimited: bool,
    /// Counted like a shadow, each rule on its own; whoever asks compares and says no. That is how
    /// envoyproxy/ratelimit counts.
    pub tally: bool,
    /// One of several quotas: of all that a call meets, it is enough that one is not used up. Such
    /// a rule is a tally, too.
    pub quota: bool,
    /// Rules that do not apply to work to which this one does, where several queries are one plan.
    pub replaces: Vec<String>,
    /// It can be closed for a time, by whoever the work goes to: see [`crate::Store::close`].
    pub gate: bool,
}

impl Rule {
    /// How long a slot is held without renewal unless configured otherwise.
    pub const LEASE: Span = Span::from_secs(30);

    /// A rule that matches everything and counts it together.
    pub fn new(name: impl Into<String>, limits: impl IntoIterator<Item = Limit>) -> Self {
        Self {
            name: name.into(),
            description: None,
            when: Vec::new(),
            per: Vec::new(),
            limits: limits.into_iter().collect(),
            lease: Self::LEASE,
            shadow: false,
            key: None,
            mode: Mode::Strict,
            on_expiry: OnExpiry::Keep,
            outage: None,
            unlimited: false,
            tally: false,
            quota: false,
            replaces: Vec::new(),
            gate: false,
        }
    }

    /// A rule that lets everything through that it matches.
    pub fn unlimited(name: impl Into<String>) -> Self {
        Self { unlimited: true, ..Self::new(name, []) }
    }

    /// Can be closed for a time.
    #[must_use]
    pub fn gated(mut self) -> Self {
        self.gate = true;
        self
    }

    /// Counts apart by these dimensions.
    #[must_use]
    pub fn per(mut self, dimensions: &[&str]) -> Self {
        self.per = dimensions.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Every dimension that has to be there for it to match, some perhaps more than once: those of
    /// `when`, of `per`, and those between `<` and `>` in `key`.
    pub fn dimensions(&self) -> impl Iterator<Item = &str> {
        let conditions = self.when.iter().map(|(name, _)| name.as_str());
        let counted = self.per.iter().map(String::as_str);
        let template = self.key.as_deref().unwrap_or_default().split('<').skip(1);
        let in_key = template.filter_map(|part| part.split_once('>').map(|(name, _)| name));
        conditions.chain(counted).chain(in_key)
    }

    /// Whether it goes by our [own](OWN) dimensions alone: whoever asks, it is the same.
    pub fn is_own(&self) -> bool {
        let mut names = self.when.iter().map(|(name, _)| name).chain(&self.per).peekable();
        names.peek().is_some() && names.all(|name| name.starts_with(OWN))
    }

    /// Matches only where the dimension fits the pattern.
    #[must_use]
    pub fn when(mut self, dimension: &str, pattern: Pattern) -> Self {
        self.when.push((dimension.to_owned(), pattern));
        self
    }
}

/// What a condition asks of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One of these values.
    OneOf(Vec<String>),
    /// A text in which `*` stands for anything and `?` for one character.
    Glob(String),
    /// A text in which `*` stands for anything, and every other character for itself: a pattern of
    /// envoyproxy/ratelimit. Also compared with values that are too long to be kept whole.
    Stars(String),
}

impl Pattern {
    /// Exactly this value.
    pub fn exactly(value: impl Into<String>) -> Self {
        Self::OneOf(vec![value.into()])
    }

    /// A value, or a pattern if `*` or `?` is in it.
    pub fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.contains(['*', '?']) { Self::Glob(text) } else { Self::exactly(text) }
    }

    /// Whether a value fits.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::OneOf(values) => values.iter().any(|other| other == value),
            Self::Glob(glob) => glob_matches(glob, value),
            Self::Stars(stars) => stars_match(stars, value),
        }
    }
}

/// `a`, `a or b`, `premium_*`.
impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OneOf(values) => f.write_str(&values.join(" or ")),
            Self::Glob(text) | Self::Stars(text) => f.write_str(text),
        }
    }
}

/// Takes linear time, because values may be as long as whoever sends them likes.
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

/// Path globs treat `/` and `.` as special, and ids have both, hence our own few lines.
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
                // First let the star stand for nothing.
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

/// What has to fit before work may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The whole estimate: nothing overshoots if estimates are upper bounds.
    #[default]
    Strict,
    /// Anything at all: the limit is overshot by at most what is under way at the same time.
    Optimistic,
}

/// What becomes of an estimate that nobody settles before its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    /// It stays charged until it leaves the window.
    #[default]
    Keep,
    /// It is given back.
    Refund,
}

/// Rules of which the first that matches applies. Every group must pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The group that `effectiveLimit` speaks of.
    pub effective: bool,
    /// Most specific first.
    pub rules: Vec<Rule>,
}

impl Group {
    /// A group of rules.
    pub fn new(name: impl Into<String>, rules: impl IntoIterator<Item = Rule>) -> Self {
        Self { name: name.into(), effective: false, rules: rules.into_iter().collect() }
    }
}

/// A limit that a query brings along, under a key of the caller's choice.
#[derive(Clone, Debug)]
pub struct InlineRule(pub(crate) Compiled);

impl InlineRule {
    /// How their keys begin; no key of the configuration does.
    pub const KEY_START: &str = "~inline:";

    /// Counts `limits` under `key`, apart from every rule of the configuration.
    pub fn new(
        name: impl Into<String>,
        key: &str,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<Self, RulesetError> {
        Compiled::inline(Rule::new(name, limits), key).map(Self)
    }

    /// Asks only that anything is left.
    #[must_use]
    pub fn optimistic(mut self) -> Self {
        self.0.rule.mode = Mode::Optimistic;
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
