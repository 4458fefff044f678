//! [`Request`]: the question whether a piece of work may start.

use std::borrow::Cow;
use std::time::Duration;

use sluicegate_core::query::{Query, RequestId};
use sluicegate_core::rule::InlineRule;
use sluicegate_core::{Id, Limit, Span};
use smallvec::SmallVec;

use crate::cost::Cost;
use crate::error::Error;

/// Hold of a reservation, unless another one is given. It is renewed while its admission lives.
const HOLD: Duration = Duration::from_secs(300);
/// Longest hold, as in the HTTP API.
const HOLD_MAX: Duration = Duration::from_secs(86_400);

/// A question whether a piece of work may start: its dimensions, and optionally its cost, an id and
/// limits of its own.
///
/// Most calls take dimensions alone, as `&[("userId", "u1")]`.
///
/// ```
/// use sluicegate::{Cost, Request};
///
/// let request = Request::from([("userId", "u1"), ("modelId", "gpt4")])
///     .reserve(Cost::new().input_tokens(868).output_tokens_max(500))
///     .id("order-17");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    pub(crate) dimensions: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 4]>,
    pub(crate) cost: Cost,
    pub(crate) hold: Option<Duration>,
    pub(crate) id: Option<Cow<'a, str>>,
    pub(crate) limits: Vec<InlineLimit<'a>>,
    pub(crate) wait_max: Option<Duration>,
}

/// A limit that the request brings along.
#[derive(Clone, Debug)]
pub(crate) struct InlineLimit<'a> {
    pub(crate) name: Cow<'a, str>,
    pub(crate) key: Cow<'a, str>,
    pub(crate) limit: Cow<'a, str>,
}

impl InlineLimit<'_> {
    fn into_owned(self) -> InlineLimit<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        InlineLimit { name: own(self.name), key: own(self.key), limit: own(self.limit) }
    }
}

impl<'a> Request<'a> {
    /// Creates a request without dimensions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a dimension, such as `userId`.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.dimensions.push((name.into(), value.into()));
        self
    }

    /// Sets the cost of the work, if it is known and will not be settled.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    /// Reserves an estimated cost, to be replaced by [`Admission::settle`](crate::Admission::settle).
    /// If the process dies, the reservation ends after its hold.
    #[must_use]
    pub fn reserve(mut self, estimate: Cost) -> Self {
        self.cost = estimate;
        self.hold.get_or_insert(HOLD);
        self
    }

    /// Sets the time after which a reservation ends that is neither settled nor renewed: at most a
    /// day. Default: 5 minutes.
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.hold = Some(hold);
        self
    }

    /// Sets the id of the work: the same id again within a minute is counted once.
    #[must_use]
    pub fn id(mut self, id: impl Into<Cow<'a, str>>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Adds a limit that is not part of the configuration, such as `10/min`. It counts by `key`, and
    /// denials contain its `name`.
    #[must_use]
    pub fn limit(
        mut self,
        name: impl Into<Cow<'a, str>>,
        key: impl Into<Cow<'a, str>>,
        limit: impl Into<Cow<'a, str>>,
    ) -> Self {
        let (name, key, limit) = (name.into(), key.into(), limit.into());
        self.limits.push(InlineLimit { name, key, limit });
        self
    }

    /// Sets the longest time that [`Limiter::until_ready`](crate::Limiter::until_ready) waits.
    /// Default: no maximum.
    #[must_use]
    pub fn wait_max(mut self, wait_max: Duration) -> Self {
        self.wait_max = Some(wait_max);
        self
    }

    /// Returns the request with texts of its own.
    pub(crate) fn into_owned(self) -> Request<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Request {
            dimensions: self.dimensions.into_iter().map(|(n, v)| (own(n), own(v))).collect(),
            cost: self.cost,
            hold: self.hold,
            id: self.id.map(own),
            limits: self.limits.into_iter().map(InlineLimit::into_owned).collect(),
            wait_max: self.wait_max,
        }
    }

    /// Returns the id of the request; `fresh` if it has none.
    pub(crate) fn request_id(&self, fresh: RequestId) -> Result<RequestId, Error> {
        match &self.id {
            None => Ok(fresh),
            Some(id) if id.is_empty() || id.len() > 256 => {
                Err(Error::invalid("id: must have 1 to 256 bytes"))
            }
            // Apart from the ids of callers of a service on the same store.
            Some(id) => Ok(RequestId::of_caller(Id::scoped("library", id), RequestId::KEEP)),
        }
    }

    /// Returns the query of the request.
    pub(crate) fn query(&self, id: RequestId) -> Result<Query<'_>, Error> {
        let mut query = Query::new(id);
        for (name, value) in &self.dimensions {
            query.insert(name.as_ref(), value.as_ref())?;
        }
        let stated = self.cost.read()?;
        (query.cost, query.kinds, query.choices) = (stated.cost, stated.kinds, stated.choices);
        query.hold = self.hold.map(check_hold).transpose()?;
        for inline in &self.limits {
            let limit: Limit = inline
                .limit
                .parse()
                .map_err(|error| Error::invalid(format!("limit {:?}: {error}", inline.limit)))?;
            let rule = InlineRule::new(inline.name.as_ref(), &inline.key, [limit]);
            query.inline.push(rule.map_err(Error::invalid)?);
        }
        Ok(query)
    }
}

fn check_hold(hold: Duration) -> Result<Span, Error> {
    if hold < Duration::from_micros(1) || hold > HOLD_MAX {
        return Err(Error::invalid("hold: must be from a microsecond to a day"));
    }
    Ok(hold.into())
}

impl<'a, N, V> FromIterator<(N, V)> for Request<'a>
where
    N: Into<Cow<'a, str>>,
    V: Into<Cow<'a, str>>,
{
    fn from_iter<I: IntoIterator<Item = (N, V)>>(dimensions: I) -> Self {
        let dimensions = dimensions.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self { dimensions: dimensions.collect(), ..Self::default() }
    }
}

impl<'a, N, V, const COUNT: usize> From<[(N, V); COUNT]> for Request<'a>
where
    N: Into<Cow<'a, str>>,
    V: Into<Cow<'a, str>>,
{
    fn from(dimensions: [(N, V); COUNT]) -> Self {
        dimensions.into_iter().collect()
    }
}

impl<'a, const COUNT: usize> From<&'a [(&'a str, &'a str); COUNT]> for Request<'a> {
    fn from(dimensions: &'a [(&'a str, &'a str); COUNT]) -> Self {
        dimensions.iter().copied().collect()
    }
}

impl<'a> From<&'a [(&'a str, &'a str)]> for Request<'a> {
    fn from(dimensions: &'a [(&'a str, &'a str)]) -> Self {
        dimensions.iter().copied().collect()
    }
}
