//! [`Settlement`]: the result of settling an admission.

use std::time::Duration;

use serde_json::{Map, Value};
use sluicegate_core::Money;

/// The result of settling an admission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settlement {
    /// True if the cost was recorded. False if there was nothing to settle: the limiter did not
    /// answer and the work was admitted without it.
    pub recorded: bool,
    /// True if the admission had been settled before, with the same cost.
    pub replayed: bool,
    /// Time from the start of the work until it was settled.
    pub duration: Option<Duration>,
    /// The cost, if it is known.
    pub cost: Option<Money>,
    /// Input tokens of the question.
    pub query_tokens: Option<u64>,
    /// Input tokens of the context that was sent with the question.
    pub context_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
}

impl Settlement {
    /// Returns the fields that an API can pass on to its own client: `request_duration_seconds`,
    /// `api_cost_usd`, `rate_limited`, `query_tokens`, `context_tokens` and `output_tokens`, as far
    /// as they are known.
    pub fn metadata(&self) -> Map<String, Value> {
        let number = |tokens: Option<u64>| tokens.map(Value::from);
        let dollars = self.cost.and_then(|cost| cost.to_string().parse::<f64>().ok());
        [
            ("request_duration_seconds", self.duration.map(|time| time.as_secs_f64().into())),
            ("api_cost_usd", dollars.map(Value::from)),
            // The work was admitted, so it was not limited.
            ("rate_limited", Some(false.into())),
            ("query_tokens", number(self.query_tokens)),
            ("context_tokens", number(self.context_tokens)),
            ("output_tokens", number(self.output_tokens)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
    }
}
