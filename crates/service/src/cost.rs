//! Costs that a caller states: the estimate before the work is done, and the actual cost after it.
//! [`CostStatement`] is validated into a [`StatedCost`]; [`Origin`] adds the money of an actual cost.

use std::num::NonZeroU64;

use sluicegate_core::limit::Unit;
use sluicegate_core::price::{self, Quote, TokenCounts, TokenKinds};
use sluicegate_core::query::Cost;
use sluicegate_core::time::EXACT_MAX;
use sluicegate_core::{Decision, Money, PriceBook, Timestamp};

use crate::answer::Answer;

/// A cost as a caller states it: an estimate, or the actual cost. Omitted fields are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostStatement {
    /// Number of requests that the work counts as; 1 if omitted.
    pub requests: Option<u64>,
    /// All input tokens, including those read from and written to a cache.
    pub input_tokens: Option<u64>,
    /// All output tokens, including reasoning tokens.
    pub output_tokens: Option<u64>,
    /// Money; computed from the tokens if omitted.
    pub money: Option<Money>,
    /// Input tokens that the provider read from its cache.
    pub cached_input_tokens: Option<u64>,
    /// Input tokens that the provider wrote to its cache.
    pub cache_write_tokens: Option<u64>,
    /// Output tokens that the model used for reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Input tokens of the question.
    pub query_tokens: Option<u64>,
    /// Input tokens of the context that was sent with the question.
    pub context_tokens: Option<u64>,
    /// Of an estimate: length of the input text, if its tokens were not counted.
    pub input_chars: Option<u64>,
    /// Of an estimate: the largest output cap of the request.
    pub output_cap: Option<u64>,
    /// Of an estimate: number of requested completions, each up to the cap.
    pub choices: Option<u64>,
}

/// A validated cost, with details for prices and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatedCost {
    /// The amounts.
    pub cost: Cost,
    /// Tokens with separate prices; part of the amounts.
    pub kinds: TokenKinds,
    /// Number of requested completions.
    pub choices: NonZeroU64,
    /// Input tokens of the question; all input tokens if question and context were not stated
    /// separately.
    pub query_tokens: Option<u64>,
    /// Input tokens of the context that was sent with the question.
    pub context_tokens: Option<u64>,
}

/// A cost that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct CostError {
    /// The field at fault, by its JSON name.
    pub field: &'static str,
    /// The error and the remedy.
    pub detail: String,
}

impl CostError {
    fn new(field: &'static str, detail: impl Into<String>) -> Self {
        Self { field, detail: detail.into() }
    }
}

impl CostStatement {
    /// Validates the cost and computes the token counts.
    ///
    /// | tokens | value |
    /// |---|---|
    /// | input | the larger of `input_tokens` and `query_tokens` + `context_tokens`; from `input_chars` if both are absent |
    /// | output | the larger of `output_tokens` and the cap × `choices` |
    pub fn read(self) -> Result<StatedCost, CostError> {
        let query = whole("queryTokens", self.query_tokens)?;
        let context = whole("contextTokens", self.context_tokens)?;
        let apart = query.or(context).is_some().then(|| {
            query.unwrap_or_default().saturating_add(context.unwrap_or_default()).min(EXACT_MAX)
        });
        let characters = whole("inputChars", self.input_chars)?;
        let input = whole("inputTokens", self.input_tokens)?
            .max(apart)
            .or(characters.map(price::tokens_of));
        let cap = whole("maxOutputTokens", self.output_cap)?;
        let choices = NonZeroU64::new(whole("n", self.choices)?.unwrap_or(1));
        let choices = choices.ok_or_else(|| CostError::new("n", "must be at least 1"))?;
        let output =
            whole("outputTokens", self.output_tokens)?.max(price::capped(cap, choices.get()));
        let kinds = TokenKinds {
            cached_input: whole("cachedInputTokens", self.cached_input_tokens)?.unwrap_or(0),
            cache_write: whole("cacheWriteTokens", self.cache_write_tokens)?.unwrap_or(0),
            reasoning: whole("reasoningTokens", self.reasoning_tokens)?.unwrap_or(0),
        };
        if kinds.cached_input + kinds.cache_write > input.unwrap_or_default() {
            let right = "is a part of inputTokens but larger: inputTokens must include tokens read \
                         from or written to a cache";
            let field =
                if kinds.cached_input > 0 { "cachedInputTokens" } else { "cacheWriteTokens" };
            return Err(CostError::new(field, right));
        }
        if kinds.reasoning > output.unwrap_or_default() {
            let right = "is a part of outputTokens but larger: outputTokens must include them";
            return Err(CostError::new("reasoningTokens", right));
        }
        Ok(StatedCost {
            cost: Cost {
                requests: whole("requests", self.requests)?,
                input_tokens: input,
                output_tokens: output,
                money: self.money,
            },
            kinds,
            choices,
            query_tokens: query.or(input.map(|input| input - context.unwrap_or(0).min(input))),
            context_tokens: context
                .or(input.map(|input| input - query.unwrap_or(input).min(input))),
        })
    }
}

fn whole(field: &'static str, given: Option<u64>) -> Result<Option<u64>, CostError> {
    match given {
        Some(number) if number > EXACT_MAX => {
            Err(CostError::new(field, format!("must be at most {EXACT_MAX}")))
        }
        given => Ok(given),
    }
}

/// Data of an admission that its settlement needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Start of the work by the clock of the store.
    pub start: Timestamp,
    /// True if a limit on money is charged, so that the final cost must be known.
    pub money: bool,
    /// The model; empty if the queries named none or several.
    pub model: String,
}

impl Origin {
    /// Returns the data of an admission.
    pub fn of(answer: &Answer<'_, '_>) -> Self {
        let start = match answer.decision() {
            Decision::Allow(allow) => allow.start,
            denied => denied.at(),
        };
        let money = answer.plan().charges().iter().any(|charge| charge.unit() == Unit::Usd);
        Self { start, money, model: answer.model().to_owned() }
    }

    /// Returns the actual cost, with its money computed from the prices if it was not stated.
    ///
    /// If money is limited, the cost must be known, or the work would be free by accident.
    pub fn cost(&self, stated: &StatedCost, prices: &PriceBook) -> Result<Cost, CostError> {
        let Cost { input_tokens, output_tokens, money, .. } = stated.cost;
        let Self { model, money: limited, .. } = self;
        let (input, output) = match (money, input_tokens, output_tokens) {
            (None, Some(input), Some(output)) => (input, output),
            (Some(_), ..) | (None, None, None) => return Ok(stated.cost),
            (None, input, _) if *limited => {
                let field = if input.is_none() { "inputTokens" } else { "outputTokens" };
                let right =
                    "is needed to compute the cost: state it, even if it is 0, or state usd";
                return Err(CostError::new(field, right));
            }
            (None, ..) => return Ok(stated.cost),
        };
        let money = match prices.of(model) {
            Quote::Priced(prices) => {
                Some(prices.cost(&TokenCounts { input, output, kinds: stated.kinds }))
            }
            Quote::Free => Some(Default::default()),
            Quote::Unknown if !limited => None,
            Quote::Unknown => {
                let right = format!(
                    "no price is known for the model {model:?}: state the cost as usd, or add the \
                     model to prices"
                );
                return Err(CostError::new("usd", right));
            }
        };
        Ok(Cost { money, ..stated.cost })
    }
}
