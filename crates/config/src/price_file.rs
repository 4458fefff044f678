//! Parser for the community price file `model_prices_and_context_window`.
//!
//! The file maps models to fields such as `"input_cost_per_token": 2e-07`. Numbers are read as
//! decimal text and never become binary floats. Models that are not paid by the token are left out,
//! so that they are unknown rather than free.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use sluicegate_core::money::{MoneyError, Price};
use sluicegate_core::price::{ModelPrices, PartialRates, PriceTier};

/// Reason that a price file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PriceFileError {
    /// The file is not a map from models to maps of fields.
    #[error("not a price file: write a JSON object of models, each with its fields ({0})")]
    Form(#[from] serde_json::Error),
    /// A price can't be parsed.
    #[error("{model}: {field}: {problem}")]
    Price {
        /// The model.
        model: String,
        /// The field.
        field: String,
        /// The parse error.
        problem: MoneyError,
    },
    /// No model in the file has a price by the token.
    #[error("no model has input_cost_per_token and output_cost_per_token")]
    Empty,
}

/// Entry of the file that documents the others.
const EXPLANATION: &str = "sample_spec";

/// Returns every model that is paid by the token.
pub(crate) fn read(text: &str) -> Result<Vec<(String, ModelPrices)>, PriceFileError> {
    let file: BTreeMap<String, BTreeMap<String, &RawValue>> = serde_json::from_str(text)?;
    let mut models = Vec::new();
    for (model, fields) in file {
        if model == EXPLANATION {
            continue;
        }
        if let Some(prices) = prices(&model, &fields)? {
            models.push((model, prices));
        }
    }
    if models.is_empty() { Err(PriceFileError::Empty) } else { Ok(models) }
}

fn prices(
    model: &str,
    fields: &BTreeMap<String, &RawValue>,
) -> Result<Option<ModelPrices>, PriceFileError> {
    let mut base = PartialRates::default();
    let mut tiers: BTreeMap<u64, PartialRates> = BTreeMap::new();
    for (name, value) in fields {
        let (kind, above) = above(name);
        let rates = match above {
            None => &mut base,
            Some(above) => tiers.entry(above).or_default(),
        };
        let Some(rate) = rate(rates, kind) else { continue };
        *rate = price(value.get()).map_err(|problem| {
            let (model, field) = (model.to_owned(), name.clone());
            PriceFileError::Price { model, field, problem }
        })?;
    }
    // A model without output, such as an embedding, gets the price of its input.
    base.output = base.output.or(base.input);
    let Some(rates) = base.complete() else { return Ok(None) };
    tiers.retain(|_, tier| *tier != PartialRates::default());
    let tiers = tiers.iter().map(|(&above, tier)| {
        let rates = tier.complete_tier(&rates);
        PriceTier { above, rates }
    });
    Ok(Some(ModelPrices::new(rates, tiers.collect())))
}

/// Returns the rate that a field sets, if the field is about tokens.
fn rate<'r>(rates: &'r mut PartialRates, field: &str) -> Option<&'r mut Option<Price>> {
    Some(match field {
        "input_cost_per_token" => &mut rates.input,
        "output_cost_per_token" => &mut rates.output,
        "cache_read_input_token_cost" => &mut rates.cached_input,
        "cache_creation_input_token_cost" => &mut rates.cache_write,
        "output_cost_per_reasoning_token" => &mut rates.reasoning,
        _ => return None,
    })
}

/// Splits `input_cost_per_token_above_200k_tokens` into its kind and the number of tokens.
fn above(field: &str) -> (&str, Option<u64>) {
    let tier = field.strip_suffix("k_tokens").and_then(|rest| rest.rsplit_once("_above_"));
    match tier.and_then(|(kind, thousands)| Some((kind, thousands.parse::<u32>().ok()?))) {
        Some((kind, thousands)) => (kind, Some(u64::from(thousands) * 1_000)),
        None => (field, None),
    }
}

/// Parses a number, also in quotes; `null` means no price.
fn price(text: &str) -> Result<Option<Price>, MoneyError> {
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    if text == "null" { Ok(None) } else { Price::per_token(text).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::price::{TokenCounts, TokenKinds};

    const FILE: &str = r#"{
        "sample_spec": {"input_cost_per_token": 0.0, "max_tokens": "an explanation"},
        "gpt-4o": {
            "input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05,
            "cache_read_input_token_cost": 1.25e-06, "litellm_provider": "openai",
            "supports_vision": true, "max_input_tokens": 128000
        },
        "gemini-2.5-pro": {
            "input_cost_per_token": 1.25e-06, "input_cost_per_token_above_200k_tokens": 2.5e-06,
            "output_cost_per_token": 1e-05, "output_cost_per_token_above_200k_tokens": 1.5e-05,
            "output_cost_per_reasoning_token": "2e-05", "cache_read_input_token_cost": null
        },
        "text-embedding-3-small": {"input_cost_per_token": 2e-08, "mode": "embedding"},
        "dall-e-3": {"output_cost_per_image": 0.04}
    }"#;

    fn cost(model: &str, tokens: TokenCounts) -> String {
        let models = read(FILE).expect("a price file");
        let (_, prices) = models.iter().find(|(name, _)| name == model).expect(model);
        prices.cost(&tokens).to_string()
    }

    #[test]
    fn prices_are_those_that_are_written() {
        let kinds = TokenKinds { cached_input: 400, ..TokenKinds::default() };
        let tokens = TokenCounts { input: 1_000, output: 100, kinds };
        assert_eq!(cost("gpt-4o", tokens), "0.003");
        let kinds = TokenKinds { reasoning: 50, ..TokenKinds::default() };
        let short = TokenCounts { input: 200_000, output: 100, kinds };
        assert_eq!(cost("gemini-2.5-pro", short), "0.2515");
        let long = TokenCounts { input: 200_001, ..short };
        assert_eq!(cost("gemini-2.5-pro", long), "0.5017525");
        let sent = TokenCounts { input: 1_000, ..TokenCounts::default() };
        assert_eq!(cost("text-embedding-3-small", sent), "0.00002");
    }

    #[test]
    fn models_that_are_not_paid_by_the_token_are_left_out() {
        let models = read(FILE).expect("a price file");
        let names: Vec<_> = models.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["gemini-2.5-pro", "gpt-4o", "text-embedding-3-small"]);
    }

    #[test]
    fn errors_name_the_model_and_the_field() {
        for (text, message) in [
            ("[]", "not a price file: write a JSON object of models"),
            ("{\"m\": 5}", "not a price file: write a JSON object of models"),
            ("{}", "no model has input_cost_per_token"),
            (
                "{\"m\": {\"input_cost_per_token\": -1e-6}}",
                "m: input_cost_per_token: \"-1e-6\" is not an amount",
            ),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
