//! Costs in requests: the estimate before the work is done, and the actual cost after it.

use sluicegate_core::Money;
use sluicegate_service::cost::{CostError, CostStatement};

pub(crate) use sluicegate_service::cost::StatedCost;

use crate::refusal::Refusal;
use crate::request::WholeNumber;

/// A cost: an estimate, or the actual cost. Omitted fields are unknown.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CostBody {
    /// Number of requests that the work counts as; 1 if omitted.
    pub(crate) requests: Option<WholeNumber>,
    /// All input tokens, including those read from and written to a cache.
    pub(crate) input_tokens: Option<WholeNumber>,
    /// All output tokens, including reasoning tokens.
    pub(crate) output_tokens: Option<WholeNumber>,
    /// Dollars as a decimal string, such as `"0.0012"`; computed from the tokens if omitted.
    pub(crate) usd: Option<String>,
    /// Input tokens that the provider read from its cache.
    pub(crate) cached_input_tokens: Option<WholeNumber>,
    /// Input tokens that the provider wrote to its cache.
    pub(crate) cache_write_tokens: Option<WholeNumber>,
    /// Output tokens that the model used for reasoning.
    pub(crate) reasoning_tokens: Option<WholeNumber>,
    /// Input tokens of the question.
    pub(crate) query_tokens: Option<WholeNumber>,
    /// Input tokens of the context that was sent with the question.
    pub(crate) context_tokens: Option<WholeNumber>,
    /// Of an estimate: length of the input text, if its tokens were not counted.
    pub(crate) input_chars: Option<WholeNumber>,
    /// Of an estimate: output caps, under the names that providers use; the largest applies.
    pub(crate) max_tokens: Option<WholeNumber>,
    pub(crate) max_completion_tokens: Option<WholeNumber>,
    pub(crate) max_output_tokens: Option<WholeNumber>,
    /// Of an estimate: number of requested completions, each up to the cap.
    pub(crate) n: Option<WholeNumber>,
}

impl CostBody {
    /// Validates an actual cost, which has no field of an estimate.
    pub(crate) fn read_actual(self) -> Result<StatedCost, Refusal> {
        let estimated = [
            ("cost.inputChars", self.input_chars),
            ("cost.maxTokens", self.max_tokens),
            ("cost.maxCompletionTokens", self.max_completion_tokens),
            ("cost.maxOutputTokens", self.max_output_tokens),
            ("cost.n", self.n),
        ];
        match estimated.into_iter().find(|(_, given)| given.is_some()) {
            None => self.read(),
            Some((field, _)) => {
                let right = "is for an estimate: state the tokens that were used, as inputTokens \
                             and outputTokens";
                Err(Refusal::field(field, right))
            }
        }
    }

    /// Validates the cost and computes the token counts; of several output caps, the largest
    /// applies.
    pub(crate) fn read(self) -> Result<StatedCost, Refusal> {
        let number = |given: Option<WholeNumber>| given.map(|WholeNumber(number)| number);
        let caps = [self.max_tokens, self.max_completion_tokens, self.max_output_tokens];
        let money = self.usd.map(|text| text.parse::<Money>()).transpose();
        let statement = CostStatement {
            requests: number(self.requests),
            input_tokens: number(self.input_tokens),
            output_tokens: number(self.output_tokens),
            money: money.map_err(|error| Refusal::field("cost.usd", error.to_string()))?,
            cached_input_tokens: number(self.cached_input_tokens),
            cache_write_tokens: number(self.cache_write_tokens),
            reasoning_tokens: number(self.reasoning_tokens),
            query_tokens: number(self.query_tokens),
            context_tokens: number(self.context_tokens),
            input_chars: number(self.input_chars),
            output_cap: caps.into_iter().filter_map(number).max(),
            choices: number(self.n),
        };
        Ok(statement.read()?)
    }
}

impl From<CostError> for Refusal {
    fn from(CostError { field, detail }: CostError) -> Self {
        Self::field(format!("cost.{field}"), detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<StatedCost, Refusal> {
        serde_json::from_str::<CostBody>(json).expect(json).read()
    }

    #[track_caller]
    fn check(json: &str, input: Option<u64>, output: Option<u64>) {
        let stated = read(json).expect(json);
        assert_eq!(
            (stated.cost.input_tokens, stated.cost.output_tokens),
            (input, output),
            "{json}"
        );
    }

    #[test]
    fn tokens_are_counted_stated_apart_or_taken_from_the_length_of_a_text() {
        check("{}", None, None);
        check(r#"{"inputTokens": 868, "outputTokens": 145}"#, Some(868), Some(145));
        check(r#"{"queryTokens": 12, "contextTokens": 856}"#, Some(868), None);
        check(r#"{"inputTokens": 5, "queryTokens": 12, "contextTokens": 1}"#, Some(13), None);
        check(r#"{"inputChars": 3000}"#, Some(1_000), None);
        check(r#"{"inputChars": 3001, "inputTokens": 7}"#, Some(7), None);
    }

    #[test]
    fn the_largest_cap_counts_for_every_choice() {
        check(r#"{"maxTokens": 1, "maxCompletionTokens": 10000}"#, None, Some(10_000));
        check(r#"{"maxOutputTokens": 100, "n": 4, "outputTokens": 7}"#, None, Some(400));
        check(r#"{"outputTokens": 7, "n": 4}"#, None, Some(7));
    }

    #[test]
    fn parts_that_exceed_their_whole_are_refused_by_name() {
        for (json, field) in [
            (r#"{"inputTokens": 5, "cachedInputTokens": 6}"#, "cost.cachedInputTokens"),
            (r#"{"cacheWriteTokens": 1}"#, "cost.cacheWriteTokens"),
            (r#"{"outputTokens": 5, "reasoningTokens": 6}"#, "cost.reasoningTokens"),
            (r#"{"n": 0}"#, "cost.n"),
            (r#"{"usd": "1e3"}"#, "cost.usd"),
        ] {
            assert_eq!(read(json).expect_err(json).field.as_deref(), Some(field), "{json}");
        }
    }

    #[test]
    fn an_actual_cost_is_not_estimated() {
        for field in ["inputChars", "maxTokens", "maxCompletionTokens", "maxOutputTokens", "n"] {
            let cost: CostBody = serde_json::from_value(serde_json::json!({ field: 1 })).unwrap();
            let refusal = cost.read_actual().expect_err(field);
            assert_eq!(refusal.field, Some(format!("cost.{field}")));
        }
    }

    #[test]
    fn question_and_context_are_told_apart_as_far_as_they_were() {
        let token_parts = |json| {
            let stated = read(json).expect(json);
            (stated.query_tokens, stated.context_tokens)
        };
        assert_eq!(token_parts("{}"), (None, None));
        assert_eq!(token_parts(r#"{"inputTokens": 9}"#), (Some(9), Some(0)));
        assert_eq!(token_parts(r#"{"inputTokens": 9, "queryTokens": 2}"#), (Some(2), Some(7)));
        assert_eq!(token_parts(r#"{"inputTokens": 9, "contextTokens": 2}"#), (Some(7), Some(2)));
        assert_eq!(
            token_parts(r#"{"queryTokens": 12, "contextTokens": 856}"#),
            (Some(12), Some(856))
        );
    }
}
