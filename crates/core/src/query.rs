//! [`Query`]: one request for admission, with its dimensions and its cost.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::id::Id;
use crate::key;
use crate::limit::Unit;
use crate::money::Money;
use crate::price::{self, TokenKinds};
use crate::rule::InlineRule;
use crate::time::{EXACT_MAX, Span};

/// Maximum length of a dimension's value, in bytes.
pub const VALUE_BYTES_MAX: usize = 256;
/// First character of the dimensions that only Sluicegate sets, such as `@route`. Callers can't use
/// it, so they can't pretend to come from another route.
pub const OWN: char = '@';
/// Maximum number of dimensions of one query.
pub const DIMENSIONS_MAX: usize = 32;

/// A request for admission of one piece of work.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    dimensions: SmallVec<[Dimension<'a>; 6]>,
    /// Known cost. If money is limited and not stated here, it is computed from the tokens.
    pub cost: Cost,
    /// Tokens that have prices of their own.
    pub kinds: TokenKinds,
    /// Number of completions that share the output tokens; at least one.
    pub choices: NonZeroU64,
    /// Id of the request.
    pub id: RequestId,
    /// Time for which the cost is held as an estimate, to be settled with the actual cost.
    pub hold: Option<Span>,
    /// Time for which the admission is remembered if a part of its cost is unknown, so that it can
    /// be settled.
    pub settle_within: Option<Span>,
    /// Limits that the caller supplies, checked in addition to those of the configuration.
    pub inline: Vec<InlineRule>,
    /// Rules of the configuration that apply.
    pub rule_scope: RuleScope,
    /// Set if the work is paced: it is admitted a little ahead of its start.
    pub pacing: Option<Pacing>,
    /// True for work that waits anyway. The store may then take longer to answer than a decision
    /// is allowed to.
    pub patient: bool,
}

/// The times that a pacer needs because the store is a round trip away. See
/// [`crate::store::Claim::Go`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// Time before its start at which work may be admitted or claimed. As long as a round trip, so
    /// that the answer arrives before the start.
    pub lead: Span,
    /// Time after its start within which work may begin, unless a slack is configured. Longer than
    /// a round trip, because the node knows the clock of the store only that well.
    pub slack: Span,
    /// Id of the pacer, if the pacer that asks also starts the work and spaces all its real starts:
    /// see [`crate::algorithm::Slack`].
    pub owner: Option<Id>,
}

/// The rules of the configuration that a query is checked against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleScope {
    /// All that match. Every required dimension has to be present.
    #[default]
    Whole,
    /// All that match. The query is one of several views of the same work, so it may lack
    /// dimensions.
    View,
    /// None: only the limits that the query contains.
    Inline,
    /// Rules that use only our [own](OWN) dimensions: the limits of an upstream, the same for all
    /// callers.
    Own,
    /// All others: the limits of the caller.
    Common,
}

#[derive(Clone, Debug)]
struct Dimension<'a> {
    name: Cow<'a, str>,
    value: Cow<'a, str>,
    /// Full text of a value that was [`shortened`], for patterns that match it.
    whole: Option<Cow<'a, str>>,
    /// True if nothing has to be escaped. Computed once, even if the value is part of many keys.
    plain: bool,
}

impl<'a> Query<'a> {
    /// Creates a query for one request, without dimensions.
    pub fn new(id: RequestId) -> Self {
        Self {
            dimensions: SmallVec::new(),
            cost: Cost::default(),
            kinds: TokenKinds::default(),
            choices: NonZeroU64::MIN,
            id,
            hold: None,
            settle_within: None,
            inline: Vec::new(),
            rule_scope: RuleScope::Whole,
            pacing: None,
            patient: false,
        }
    }

    /// Adds a dimension.
    pub fn with(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Result<Self, QueryError> {
        self.insert(name, value)?;
        Ok(self)
    }

    /// Adds a dimension.
    pub fn insert(
        &mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Result<(), QueryError> {
        let (name, value) = (name.into(), value.into());
        let wrong = |problem| Err(QueryError { dimension: name.clone().into_owned(), problem });
        if name.is_empty() || name.len() > VALUE_BYTES_MAX {
            return wrong(DimensionProblem::Name);
        }
        if name.starts_with(OWN) {
            return wrong(DimensionProblem::Own);
        }
        if value.is_empty() {
            return wrong(DimensionProblem::Empty);
        }
        if value.len() > VALUE_BYTES_MAX {
            return wrong(DimensionProblem::Long(value.len()));
        }
        let plain = key::is_plain(&value);
        if !plain && value.as_bytes().contains(&0) {
            return wrong(DimensionProblem::Nul);
        }
        if self.get(&name).is_some() {
            return wrong(DimensionProblem::Twice);
        }
        if self.dimensions.len() == DIMENSIONS_MAX {
            return wrong(DimensionProblem::TooMany);
        }
        self.dimensions.push(Dimension { name, value, whole: None, plain });
        Ok(())
    }

    /// Adds a dimension that callers can't name. `name` starts with [`OWN`].
    ///
    /// The value is a name from the configuration, so it is not checked.
    pub fn insert_own(&mut self, name: &'static str, value: impl Into<Cow<'a, str>>) {
        debug_assert!(name.starts_with(OWN), "{name}");
        let value = shortened(value.into());
        let plain = key::is_plain(&value);
        self.dimensions.retain(|dimension| dimension.name != name);
        self.dimensions.push(Dimension { name: name.into(), value, whole: None, plain });
    }

    /// Adds a dimension with any value, for callers that pass on untrusted values and can't reject
    /// them. A long value is [`shortened`]. A dimension is ignored if it is repeated, exceeds the
    /// maximum number, or is one that only Sluicegate sets.
    pub fn insert_any(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        let (name, given) = (shortened(name.into()), value.into());
        let whole = (given.len() > VALUE_BYTES_MAX).then(|| given.clone());
        let value = shortened(given);
        if !name.starts_with(OWN)
            && self.get(&name).is_none()
            && self.dimensions.len() < DIMENSIONS_MAX
        {
            let plain = key::is_plain(&value);
            self.dimensions.push(Dimension { name, value, whole, plain });
        }
    }

    /// Returns the value of a dimension.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.dimensions.iter().find(|dimension| dimension.name == name);
        found.map(|dimension| dimension.value.as_ref())
    }

    /// Returns the requested model, or an empty text if none is named.
    pub fn model(&self) -> &str {
        self.get(price::MODEL).unwrap_or_default()
    }

    /// Returns every dimension with its value, in the order in which they were added.
    pub fn dimensions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.dimensions.iter().map(|dimension| (dimension.name.as_ref(), dimension.value.as_ref()))
    }

    /// Returns every value with the name of its dimension, as parts of a key.
    pub(crate) fn key_parts(&self) -> impl Iterator<Item = (&str, key::KeyPart<'_>)> {
        self.dimensions.iter().map(|Dimension { name, value, whole, plain }| {
            let whole = whole.as_ref().unwrap_or(value);
            (name.as_ref(), key::KeyPart { text: value, whole, plain: *plain })
        })
    }
}

/// The caller's statement: the dimensions and cost of a query, independent of the rules.
pub(crate) trait Statement: fmt::Debug + Send + Sync {
    /// Adds it to a hash.
    ///
    /// The order of the dimensions makes no difference, and neither does a single request that is
    /// stated or left out.
    fn hash_into(&self, hasher: &mut blake3::Hasher);
}

impl Statement for Query<'_> {
    fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let mut dimensions: SmallVec<[(&str, &str); 6]> = self.dimensions().collect();
        dimensions.sort_unstable();
        hasher.update(&(dimensions.len() as u64).to_le_bytes());
        for text in dimensions.into_iter().flat_map(|(name, value)| [name, value]) {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let Cost { requests, input_tokens, output_tokens, money } = self.cost;
        let amounts =
            [Some(requests.unwrap_or(1)), input_tokens, output_tokens, money.map(Money::as_nanos)];
        for amount in amounts {
            hasher.update(&[u8::from(amount.is_some())]);
            hasher.update(&amount.unwrap_or_default().to_le_bytes());
        }
        let TokenKinds { cached_input, cache_write, reasoning } = self.kinds;
        for amount in [cached_input, cache_write, reasoning, self.choices.get()] {
            hasher.update(&amount.to_le_bytes());
        }
    }
}

/// Returns the fingerprint of the callers' statements. Rules, prices and a reload make no
/// difference.
pub(crate) fn fingerprint(statements: &[&dyn Statement]) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("sluicegate 2026 stated query");
    statements.iter().for_each(|stated| stated.hash_into(&mut hasher));
    let mut bits = [0; 8];
    hasher.finalize_xof().fill(&mut bits);
    u64::from_le_bytes(bits)
}

/// Shortens a long text to the maximum length of a value: its beginning and its hash. So patterns
/// still match it, and different texts stay different.
pub fn shortened(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= VALUE_BYTES_MAX {
        return text;
    }
    let hash = blake3::hash(text.as_bytes()).to_hex();
    let beginning = text.floor_char_boundary(VALUE_BYTES_MAX - hash.len() - 1);
    Cow::Owned(format!("{}~{hash}", &text[..beginning]))
}

/// A dimension that can't be used. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{dimension}: {problem}")]
pub struct QueryError {
    /// Name of the dimension.
    pub dimension: String,
    /// The problem.
    pub problem: DimensionProblem,
}

/// Problem with a dimension.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimensionProblem {
    /// The name is empty or too long.
    #[error("the name of a dimension has 1 to {VALUE_BYTES_MAX} bytes")]
    Name,
    /// The name is reserved.
    #[error("a name that begins with {OWN} is reserved: choose another")]
    Own,
    /// The value is empty.
    #[error("is empty: leave it out or give it a value")]
    Empty,
    /// The value is too long.
    #[error("has {0} bytes, more than the {VALUE_BYTES_MAX} that are allowed")]
    Long(usize),
    /// The value contains a NUL byte.
    #[error("contains a NUL byte")]
    Nul,
    /// The dimension is repeated.
    #[error("is given twice")]
    Twice,
    /// The query has too many dimensions.
    #[error("exceeds the maximum of {DIMENSIONS_MAX} dimensions")]
    TooMany,
}

/// Id of a request, and the time for which it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The id.
    pub id: Id,
    /// Time for which an admission under this id is remembered; `None` if only the store's own
    /// retries can repeat the id.
    pub keep: Option<Span>,
}

impl RequestId {
    /// Default time for which ids of callers are remembered.
    pub const KEEP: Span = Span::from_secs(60);

    /// Creates an id that Sluicegate generated.
    pub const fn ours(id: Id) -> Self {
        Self { id, keep: None }
    }

    /// Creates an id that a caller chose and may repeat for the same work.
    pub const fn of_caller(id: Id, keep: Span) -> Self {
        Self { id, keep: Some(keep) }
    }
}

/// Cost of a piece of work. `None` means unknown: it is charged at settlement, and a settlement
/// with `None` leaves the earlier charge as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cost {
    /// Number of requests; one if not stated.
    pub requests: Option<u64>,
    /// Tokens sent.
    pub input_tokens: Option<u64>,
    /// Tokens received.
    pub output_tokens: Option<u64>,
    /// Money.
    pub money: Option<Money>,
}

impl Cost {
    /// Returns the amount of a unit, if known, at most [`EXACT_MAX`].
    pub fn of(&self, unit: Unit) -> Option<u64> {
        let amount = match unit {
            Unit::Requests => self.requests,
            Unit::InputTokens => self.input_tokens,
            Unit::OutputTokens => self.output_tokens,
            Unit::Tokens => match (self.input_tokens, self.output_tokens) {
                (None, None) => None,
                (input, output) => {
                    Some(input.unwrap_or_default().saturating_add(output.unwrap_or_default()))
                }
            },
            Unit::Usd => self.money.map(Money::as_nanos),
            Unit::Slots => None,
        };
        amount.map(|amount| amount.min(EXACT_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query<'a>() -> Query<'a> {
        Query::new(RequestId::ours(Id::from_bits(1)))
    }

    #[test]
    fn bad_dimensions_are_refused_by_name() {
        let long = "x".repeat(257);
        for (value, message) in [
            ("", "userId: is empty: leave it out or give it a value"),
            (long.as_str(), "userId: has 257 bytes, more than the 256 that are allowed"),
            ("a\0b", "userId: contains a NUL byte"),
        ] {
            let error = query().with("userId", value).expect_err(message);
            assert_eq!(error.to_string(), message);
        }
        let own = query().with("@route", "x").expect_err("only we name it");
        assert_eq!(
            own.to_string(),
            "@route: a name that begins with @ is reserved: choose another"
        );
        let twice = query().with("a", "1").expect("first").with("a", "2").expect_err("second");
        assert_eq!(twice.problem, DimensionProblem::Twice);
        let many = (0..DIMENSIONS_MAX).try_fold(query(), |q, n| q.with(n.to_string(), "v"));
        assert!(many.expect("at the limit").with("more", "v").is_err());
    }

    #[test]
    fn untrusted_values_are_never_rejected() {
        let long = format!("/{}", "é".repeat(300));
        let mut query = query();
        for (name, value) in [("empty", ""), ("nul", "a\0b"), ("long", &long), ("empty", "x")] {
            query.insert_any(name, value);
        }
        assert_eq!((query.get("empty"), query.get("nul")), (Some(""), Some("a\0b")));
        let short = query.get("long").expect("it is there").to_owned();
        assert!(short.len() <= VALUE_BYTES_MAX && short.starts_with("/éé"), "{short}");
        assert_ne!(shortened(format!("{long}x").into()), short);
        (0..40).for_each(|n| query.insert_any(n.to_string(), "v"));
        assert_eq!(query.dimensions().count(), DIMENSIONS_MAX);
    }

    #[test]
    fn the_statement_does_not_depend_on_the_order_and_differs_with_any_value() {
        let stated = |query: &Query<'_>| super::fingerprint(&[query]);
        let ann = || query().with("user", "ann").expect("a value").with("model", "m").expect("two");
        let other_order = query().with("model", "m").and_then(|q| q.with("user", "ann"));
        let mut one_request = ann();
        one_request.cost.requests = Some(1);
        let same = stated(&ann());
        assert_eq!(stated(&other_order.expect("valid")), same);
        assert_eq!(stated(&one_request), same);
        let cost = |cost| Query { cost, ..ann() };
        let different = [
            query().with("user", "ann").expect("fewer dimensions"),
            ann().with("tier", "x").expect("more dimensions"),
            query().with("user", "bob").and_then(|q| q.with("model", "m")).expect("another user"),
            query().with("usera", "nn").and_then(|q| q.with("model", "m")).expect("other limits"),
            cost(Cost { requests: Some(2), ..Cost::default() }),
            cost(Cost { input_tokens: Some(0), ..Cost::default() }),
            cost(Cost { output_tokens: Some(0), ..Cost::default() }),
            cost(Cost { money: Money::from_nanos(1), ..Cost::default() }),
            Query { kinds: TokenKinds { reasoning: 1, ..TokenKinds::default() }, ..ann() },
            Query { choices: NonZeroU64::new(2).expect("two"), ..ann() },
        ];
        let mut seen: Vec<u64> = different.iter().map(stated).chain([same]).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), different.len() + 1);
    }

    #[test]
    fn tokens_are_the_sum_of_what_is_known() {
        let cost =
            |input_tokens, output_tokens| Cost { input_tokens, output_tokens, ..Cost::default() };
        assert_eq!(cost(None, None).of(Unit::Tokens), None);
        assert_eq!(cost(Some(3), None).of(Unit::Tokens), Some(3));
        assert_eq!(cost(Some(3), Some(4)).of(Unit::Tokens), Some(7));
        assert_eq!(cost(Some(u64::MAX), Some(4)).of(Unit::Tokens), Some(EXACT_MAX));
    }
}
