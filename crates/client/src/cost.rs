//! [`Cost`]: requests, tokens and money of a piece of work.

use sluicegate_core::Money;
use sluicegate_service::cost::{CostStatement, StatedCost};

use crate::error::Error;

/// The cost of a piece of work: an estimate, or the actual cost. Parts that are not stated are
/// unknown. Money is computed from the tokens by the prices of the configuration, unless it is
/// stated.
///
/// ```
/// use sluicegate::Cost;
///
/// let estimate = Cost::new().input_tokens(868).output_tokens_max(500);
/// let actual = Cost::new().query_tokens(12).context_tokens(856).output_tokens(145);
/// let batch = Cost::new().requests(10);
/// let known = Cost::new().money("0.0012".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost(CostStatement);

impl Cost {
    /// Creates a cost of one request, with nothing else stated.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of requests that the work counts as.
    #[must_use]
    pub fn requests(mut self, count: u64) -> Self {
        self.0.requests = Some(count);
        self
    }

    /// Sets the number of all input tokens, including those read from and written to a cache.
    #[must_use]
    pub fn input_tokens(mut self, tokens: u64) -> Self {
        self.0.input_tokens = Some(tokens);
        self
    }

    /// Sets the number of all output tokens, including reasoning tokens.
    #[must_use]
    pub fn output_tokens(mut self, tokens: u64) -> Self {
        self.0.output_tokens = Some(tokens);
        self
    }

    /// Sets the money.
    #[must_use]
    pub fn money(mut self, money: Money) -> Self {
        self.0.money = Some(money);
        self
    }

    /// Sets the number of input tokens of the question.
    #[must_use]
    pub fn query_tokens(mut self, tokens: u64) -> Self {
        self.0.query_tokens = Some(tokens);
        self
    }

    /// Sets the number of input tokens of the context that was sent with the question.
    #[must_use]
    pub fn context_tokens(mut self, tokens: u64) -> Self {
        self.0.context_tokens = Some(tokens);
        self
    }

    /// Sets the number of input tokens that the provider read from its cache.
    #[must_use]
    pub fn cached_input_tokens(mut self, tokens: u64) -> Self {
        self.0.cached_input_tokens = Some(tokens);
        self
    }

    /// Sets the number of input tokens that the provider wrote to its cache.
    #[must_use]
    pub fn cache_write_tokens(mut self, tokens: u64) -> Self {
        self.0.cache_write_tokens = Some(tokens);
        self
    }

    /// Sets the number of output tokens that the model used for reasoning.
    #[must_use]
    pub fn reasoning_tokens(mut self, tokens: u64) -> Self {
        self.0.reasoning_tokens = Some(tokens);
        self
    }

    /// Sets, in an estimate, the length of the input text, if its tokens were not counted.
    #[must_use]
    pub fn input_chars(mut self, chars: u64) -> Self {
        self.0.input_chars = Some(chars);
        self
    }

    /// Sets, in an estimate, the largest number of output tokens of a completion.
    #[must_use]
    pub fn output_tokens_max(mut self, tokens: u64) -> Self {
        self.0.output_cap = Some(tokens);
        self
    }

    /// Sets, in an estimate, the number of requested completions.
    #[must_use]
    pub fn completions(mut self, count: u64) -> Self {
        self.0.choices = Some(count);
        self
    }

    /// Validates the cost.
    pub(crate) fn read(&self) -> Result<StatedCost, Error> {
        Ok(self.0.read()?)
    }

    /// Validates an actual cost, which has no part of an estimate.
    pub(crate) fn read_actual(&self) -> Result<StatedCost, Error> {
        let CostStatement { input_chars, output_cap, choices, .. } = self.0;
        if input_chars.or(output_cap).or(choices).is_some() {
            return Err(Error::invalid(
                "cost: input_chars, output_tokens_max and completions are for an estimate: state \
                 the tokens that were used, as input_tokens and output_tokens",
            ));
        }
        self.read()
    }

    /// Returns the fields of the HTTP API.
    #[cfg(feature = "remote")]
    pub(crate) fn json(&self) -> serde_json::Map<String, serde_json::Value> {
        let CostStatement { money, .. } = self.0;
        let numbers = [
            ("requests", self.0.requests),
            ("inputTokens", self.0.input_tokens),
            ("outputTokens", self.0.output_tokens),
            ("queryTokens", self.0.query_tokens),
            ("contextTokens", self.0.context_tokens),
            ("cachedInputTokens", self.0.cached_input_tokens),
            ("cacheWriteTokens", self.0.cache_write_tokens),
            ("reasoningTokens", self.0.reasoning_tokens),
            ("inputChars", self.0.input_chars),
            ("maxOutputTokens", self.0.output_cap),
            ("n", self.0.choices),
        ];
        let numbers = numbers.into_iter().filter_map(|(name, given)| Some((name, given?.into())));
        let money = money.map(|money| ("usd", money.to_string().into()));
        numbers.chain(money).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
