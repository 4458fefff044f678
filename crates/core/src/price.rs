//! [`PriceBook`]: prices per model and kind of token, and the handling of models without a price.
//!
//! A model without a price is never free by accident: it has the default price, or it is refused
//! where money is limited, or the configuration declares it free.

use std::collections::HashMap;

use crate::money::{self, Money, Price};
use crate::query::Query;
use crate::rule::Pattern;
use crate::time::EXACT_MAX;

/// Name of the dimension that contains the model.
pub const MODEL: &str = "modelId";

/// Characters per token in estimates for texts whose tokens were not counted.
///
/// English has about four, code and other languages have fewer. An estimate should rather be too
/// large, because the excess is given back.
pub const CHARS_PER_TOKEN: u64 = 3;

/// Token counts of one request. Each kind is also included in the totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// All tokens sent.
    pub input: u64,
    /// All tokens received, including reasoning tokens.
    pub output: u64,
    /// Numbers of tokens, among these, that have prices of their own.
    pub kinds: TokenKinds,
}

/// Counts of the tokens that have prices of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenKinds {
    /// Input tokens that the provider read from its cache.
    pub cached_input: u64,
    /// Input tokens that the provider wrote to its cache.
    pub cache_write: u64,
    /// Output tokens used for reasoning.
    pub reasoning: u64,
}

impl TokenCounts {
    /// Returns the expected token counts of a query.
    pub fn expected(query: &Query<'_>) -> Self {
        Self {
            input: query.cost.input_tokens.unwrap_or_default(),
            output: query.cost.output_tokens.unwrap_or_default(),
            kinds: query.kinds,
        }
    }

    /// Returns a hash of the counts. Prices do not change it.
    pub(crate) fn identity(&self) -> u64 {
        let TokenKinds { cached_input, cache_write, reasoning } = self.kinds;
        let mut hasher = blake3::Hasher::new();
        for count in [self.input, self.output, cached_input, cache_write, reasoning] {
            hasher.update(&count.to_le_bytes());
        }
        let mut bits = [0; 8];
        hasher.finalize_xof().fill(&mut bits);
        u64::from_le_bytes(bits)
    }

    /// Returns the input tokens at the ordinary price.
    const fn plain_input(&self) -> u64 {
        let others = self.kinds.cached_input.saturating_add(self.kinds.cache_write);
        self.input.saturating_sub(others)
    }
}

/// Price of each kind of token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Price of input tokens.
    pub input: Price,
    /// Price of output tokens.
    pub output: Price,
    /// Price of input tokens read from the provider's cache.
    pub cached_input: Price,
    /// Price of input tokens written to the provider's cache.
    pub cache_write: Price,
    /// Price of reasoning tokens.
    pub reasoning: Price,
}

impl Rates {
    /// Creates rates in which every kind has the price of ordinary input or output.
    pub const fn new(input: Price, output: Price) -> Self {
        Self { input, output, cached_input: input, cache_write: input, reasoning: output }
    }

    fn sent(&self, tokens: &TokenCounts) -> [(u64, Price); 3] {
        [
            (tokens.plain_input(), self.input),
            (tokens.kinds.cached_input, self.cached_input),
            (tokens.kinds.cache_write, self.cache_write),
        ]
    }

    /// Returns the highest price of an output token. The number of reasoning tokens is not known in
    /// advance.
    fn answered_max(&self) -> Price {
        self.output.max(self.reasoning)
    }
}

/// Rates as written in a configuration, where some may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialRates {
    /// See [`Rates::input`].
    pub input: Option<Price>,
    /// See [`Rates::output`].
    pub output: Option<Price>,
    /// See [`Rates::cached_input`].
    pub cached_input: Option<Price>,
    /// See [`Rates::cache_write`].
    pub cache_write: Option<Price>,
    /// See [`Rates::reasoning`].
    pub reasoning: Option<Price>,
}

impl PartialRates {
    /// Returns the rates of a model, or `None` if the price of input or output is missing. A kind
    /// that is left out costs as much as ordinary input or output, which is never too low except
    /// for cache writes.
    pub fn complete(&self) -> Option<Rates> {
        let plain = Rates::new(self.input?, self.output?);
        Some(Rates {
            cached_input: self.cached_input.unwrap_or(plain.cached_input),
            cache_write: self.cache_write.unwrap_or(plain.cache_write),
            reasoning: self.reasoning.unwrap_or(plain.reasoning),
            ..plain
        })
    }

    /// Returns the rates of a tier of a model with the rates `base`. A kind that is left out is not
    /// cheaper in the tier.
    pub fn complete_tier(&self, base: &Rates) -> Rates {
        let (input, output) =
            (self.input.unwrap_or(base.input), self.output.unwrap_or(base.output));
        Rates {
            input,
            output,
            cached_input: self.cached_input.unwrap_or(match self.input {
                Some(input) => input.max(base.cached_input),
                None => base.cached_input,
            }),
            cache_write: self.cache_write.unwrap_or(input.max(base.cache_write)),
            reasoning: self.reasoning.unwrap_or(output.max(base.reasoning)),
        }
    }
}

/// Prices of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrices {
    rates: Rates,
    /// Tiers by the number of input tokens above which they apply, ascending.
    tiers: Vec<PriceTier>,
}

/// Rates for long contexts. They apply to all tokens of a request with more input tokens than
/// `above`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriceTier {
    /// Number of input tokens that has to be exceeded.
    pub above: u64,
    /// Price of all tokens.
    pub rates: Rates,
}

impl ModelPrices {
    /// Creates prices that apply to contexts of any length, except those of the tiers.
    pub fn new(rates: Rates, mut tiers: Vec<PriceTier>) -> Self {
        tiers.sort_by_key(|tier| tier.above);
        Self { rates, tiers }
    }

    /// Returns the rates of a request with this many input tokens.
    pub fn rates(&self, input: u64) -> &Rates {
        let reached = self.tiers.iter().rev().find(|tier| input > tier.above);
        reached.map_or(&self.rates, |tier| &tier.rates)
    }

    /// Returns the cost of these tokens, at most [`Money::MAX`].
    pub fn cost(&self, tokens: &TokenCounts) -> Money {
        let rates = self.rates(tokens.input);
        let [plain, cached, written] = rates.sent(tokens);
        let spoken = tokens.output.saturating_sub(tokens.kinds.reasoning);
        let answered = [(spoken, rates.output), (tokens.kinds.reasoning, rates.reasoning)];
        let [spoken, thought] = answered;
        money::cost([plain, cached, written, spoken, thought]).unwrap_or(Money::MAX)
    }

    /// Returns the highest possible cost of these tokens, for any number of reasoning tokens.
    pub fn cost_at_most(&self, tokens: &TokenCounts) -> Money {
        let rates = self.rates(tokens.input);
        let [plain, cached, written] = rates.sent(tokens);
        let answered = (tokens.output, rates.answered_max());
        money::cost([plain, cached, written, answered]).unwrap_or(Money::MAX)
    }

    /// Returns the largest output that costs at most `budget` in any case, or `None` if the input
    /// alone costs more.
    pub fn output_within(&self, tokens: &TokenCounts, budget: Money) -> Option<u64> {
        let rates = self.rates(tokens.input);
        money::affordable(budget, rates.sent(tokens), rates.answered_max())
    }
}

/// Handling of models without a price.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UnknownModels {
    /// The price is unknown: where money is limited, the request is refused unless the caller
    /// states the cost.
    #[default]
    Refuse,
    /// The model has this price.
    Default(ModelPrices),
    /// The model is free.
    Free,
}

/// All known prices.
///
/// | a model is looked up in | order |
/// |---|---|
/// | names in the configuration | exact match |
/// | then patterns in the configuration | in their order |
/// | then the imported file | exact match |
/// | then [`UnknownModels`] | applies to the rest |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceBook {
    named: HashMap<String, ModelPrices>,
    patterns: Vec<(Pattern, ModelPrices)>,
    imported: HashMap<String, ModelPrices>,
    unknown: UnknownModels,
}

/// Price of a model in a book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quote<'b> {
    /// The model has these prices.
    Priced(&'b ModelPrices),
    /// The model is free.
    Free,
    /// The price is unknown.
    Unknown,
}

impl PriceBook {
    /// Creates a book without models.
    pub fn new(unknown: UnknownModels) -> Self {
        Self { unknown, ..Self::default() }
    }

    /// Adds the price of a model, or of all models whose names match a pattern, in which `*`
    /// matches any text and `?` one character.
    pub fn insert(&mut self, model: &str, prices: ModelPrices) {
        if model.contains(['*', '?']) {
            self.patterns.push((Pattern::Glob(model.to_owned()), prices));
        } else {
            self.named.insert(model.to_owned(), prices);
        }
    }

    /// Adds prices from another source, for models that have none here.
    pub fn import(&mut self, prices: impl IntoIterator<Item = (String, ModelPrices)>) {
        self.imported.extend(prices);
    }

    /// Returns the price of a model.
    pub fn of(&self, model: &str) -> Quote<'_> {
        let fitting = || self.patterns.iter().find(|(pattern, _)| pattern.matches(model));
        let found = self
            .named
            .get(model)
            .or_else(|| fitting().map(|(_, prices)| prices))
            .or_else(|| self.imported.get(model));
        match (found, &self.unknown) {
            (Some(prices), _) | (None, UnknownModels::Default(prices)) => Quote::Priced(prices),
            (None, UnknownModels::Free) => Quote::Free,
            (None, UnknownModels::Refuse) => Quote::Unknown,
        }
    }

    /// Returns the number of models with a price of their own, including patterns.
    pub fn len(&self) -> usize {
        self.named.len() + self.patterns.len() + self.imported.len()
    }

    /// Returns true if there is no price at all, not even a default.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !matches!(self.unknown, UnknownModels::Default(_))
    }

    /// Returns the highest possible cost of a query, or `None` if it is not known in advance.
    ///
    /// | the query | the price is known | the model is free | the price is unknown |
    /// |---|---|---|---|
    /// | states token counts | their price | zero | refused |
    /// | states none | not known before the settlement | zero | refused, unless the book is empty |
    ///
    /// With an empty book, callers state the cost at settlement.
    pub(crate) fn expect(&self, query: &Query<'_>) -> Result<Option<Money>, UnknownPrice> {
        let model = query.get(MODEL);
        let counted = query.cost.input_tokens.is_some() || query.cost.output_tokens.is_some();
        match self.of(query.model()) {
            Quote::Free => Ok(Some(Money::ZERO)),
            Quote::Priced(_) if !counted => Ok(None),
            Quote::Priced(prices) => Ok(Some(prices.cost_at_most(&TokenCounts::expected(query)))),
            Quote::Unknown if !counted && self.is_empty() => Ok(None),
            Quote::Unknown => Err(UnknownPrice { model: model.map(str::to_owned) }),
        }
    }
}

/// Error: a model has no price, and is not declared free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: state the cost as usd, or add the model to prices in the configuration",
    match model {
        Some(model) => format!("no price is known for the model {model:?}"),
        None => "no model is named, so the price of its tokens is unknown".to_owned(),
    }
)]
pub struct UnknownPrice {
    /// The model, if the query names one.
    pub model: Option<String>,
}

/// Returns the estimated number of tokens of a text with this many characters.
pub const fn tokens_of(characters: u64) -> u64 {
    characters.div_ceil(CHARS_PER_TOKEN)
}

/// Returns the number of output tokens that several caps allow, for all `choices` together.
///
/// The largest cap counts, because providers differ in which one they use, and a cap of 1 next to
/// one of 10,000 must not reserve 1.
pub fn capped(caps: impl IntoIterator<Item = u64>, choices: u64) -> Option<u64> {
    let largest = caps.into_iter().max()?;
    Some(largest.saturating_mul(choices).min(EXACT_MAX))
}

#[cfg(test)]
mod tests;
