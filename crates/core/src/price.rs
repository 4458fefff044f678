//! What tokens cost: prices by model and kind of token, and what an unknown model means.
//!
//! A model that the book does not know is never free by accident: it has the default price, it is
//! refused where money is limited, or somebody wrote down that it is free.

use std::collections::HashMap;

use crate::money::{self, Money, Price};
use crate::query::Query;
use crate::rule::Pattern;
use crate::time::EXACT_MAX;

/// The dimension that names a model.
pub const MODEL: &str = "modelId";

/// How many characters of a text are taken for one token where nobody has counted.
///
/// English has about four, code and other languages have fewer; an estimate should rather be too
/// large, because what is too much is given back.
pub const CHARS_PER_TOKEN: u64 = 3;

/// The tokens of one piece of work. Parts are included in their sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// All tokens sent.
    pub input: u64,
    /// All tokens answered, those that the model thought in included.
    pub output: u64,
    /// Which of them have other prices.
    pub kinds: Kinds,
}

/// The tokens among all others that have prices of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Of those sent: the provider had them in its cache.
    pub cached_input: u64,
    /// Of those sent: the provider put them into its cache.
    pub cache_write: u64,
    /// Of those answered: the model thought in them.
    pub reasoning: u64,
}

impl Tokens {
    /// What a query expects to send and to be answered.
    pub fn expected(query: &Query<'_>) -> Self {
        Self {
            input: query.cost.input_tokens.unwrap_or_default(),
            output: query.cost.output_tokens.unwrap_or_default(),
            kinds: query.kinds,
        }
    }

    /// A number by which they are known again when they come at other prices.
    pub(crate) fn identity(&self) -> u64 {
        let Kinds { cached_input, cache_write, reasoning } = self.kinds;
        let mut hasher = blake3::Hasher::new();
        for count in [self.input, self.output, cached_input, cache_write, reasoning] {
            hasher.update(&count.to_le_bytes());
        }
        let mut bits = [0; 8];
        hasher.finalize_xof().fill(&mut bits);
        u64::from_le_bytes(bits)
    }

    /// Tokens sent that have no other price.
    const fn plain_input(&self) -> u64 {
        let others = self.kinds.cached_input.saturating_add(self.kinds.cache_write);
        self.input.saturating_sub(others)
    }
}

/// What each kind of token costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Tokens sent.
    pub input: Price,
    /// Tokens answered.
    pub output: Price,
    /// Tokens sent that the provider had in its cache.
    pub cached_input: Price,
    /// Tokens sent that the provider put into its cache.
    pub cache_write: Price,
    /// Tokens that the model thought in.
    pub reasoning: Price,
}

impl Rates {
    /// All kinds at the price of the one that they are a part of.
    pub const fn new(input: Price, output: Price) -> Self {
        Self { input, output, cached_input: input, cache_write: input, reasoning: output }
    }

    fn sent(&self, tokens: &Tokens) -> [(u64, Price); 3] {
        [
            (tokens.plain_input(), self.input),
            (tokens.kinds.cached_input, self.cached_input),
            (tokens.kinds.cache_write, self.cache_write),
        ]
    }

    /// The most that a token of the answer can cost: nobody knows beforehand in how many of them
    /// the model will think.
    fn answered_max(&self) -> Price {
        self.output.max(self.reasoning)
    }
}

/// Rates as somebody writes them, who leaves out what goes without saying.
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
    /// The rates of a model; `None` without the two that have to be there. What is left out costs
    /// what the kind costs that it is a part of, which is never too low but for cache writes.
    pub fn complete(&self) -> Option<Rates> {
        let plain = Rates::new(self.input?, self.output?);
        Some(Rates {
            cached_input: self.cached_input.unwrap_or(plain.cached_input),
            cache_write: self.cache_write.unwrap_or(plain.cache_write),
            reasoning: self.reasoning.unwrap_or(plain.reasoning),
            ..plain
        })
    }

    /// The rates of a tier of a model with these rates: what is left out is not cheaper there.
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

/// What one model costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrices {
    rates: Rates,
    /// By the number of tokens sent from which on they hold, ascending.
    tiers: Vec<Tier>,
}

/// Rates for long contexts: they hold for all tokens of a request that sends more than so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// More tokens sent than these.
    pub above: u64,
    /// What all tokens cost then.
    pub rates: Rates,
}

impl ModelPrices {
    /// Prices that hold for contexts of any length, but for those of the tiers.
    pub fn new(rates: Rates, mut tiers: Vec<Tier>) -> Self {
        tiers.sort_by_key(|tier| tier.above);
        Self { rates, tiers }
    }

    /// The rates of a request that sends so many tokens.
    pub fn rates(&self, input: u64) -> &Rates {
        let reached = self.tiers.iter().rev().find(|tier| input > tier.above);
        reached.map_or(&self.rates, |tier| &tier.rates)
    }

    /// What these tokens cost. More than can be counted is what can be counted.
    pub fn cost(&self, tokens: &Tokens) -> Money {
        let rates = self.rates(tokens.input);
        let [plain, cached, written] = rates.sent(tokens);
        let spoken = tokens.output.saturating_sub(tokens.kinds.reasoning);
        let answered = [(spoken, rates.output), (tokens.kinds.reasoning, rates.reasoning)];
        let [spoken, thought] = answered;
        money::cost([plain, cached, written, spoken, thought]).unwrap_or(Money::MAX)
    }

    /// The most that these tokens can cost, whatever part of the answer is thinking.
    pub fn cost_at_most(&self, tokens: &Tokens) -> Money {
        let rates = self.rates(tokens.input);
        let [plain, cached, written] = rates.sent(tokens);
        let answered = (tokens.output, rates.answered_max());
        money::cost([plain, cached, written, answered]).unwrap_or(Money::MAX)
    }

    /// The largest answer that costs at most `budget` in any case; `None` if already what is sent
    /// costs more.
    pub fn output_within(&self, tokens: &Tokens, budget: Money) -> Option<u64> {
        let rates = self.rates(tokens.input);
        money::affordable(budget, rates.sent(tokens), rates.answered_max())
    }
}

/// What a model costs that has no price of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// Nobody knows: where money is limited, it is refused unless the caller states the cost.
    #[default]
    Refuse,
    /// The default price.
    Default(ModelPrices),
    /// Nothing.
    Free,
}

/// Every price that is known.
///
/// | a model is looked up in | |
/// |---|---|
/// | names that the configuration writes out | |
/// | then its patterns | in their order |
/// | then the imported file | |
/// | then [`Unknown`] | |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceBook {
    named: HashMap<String, ModelPrices>,
    patterns: Vec<(Pattern, ModelPrices)>,
    imported: HashMap<String, ModelPrices>,
    unknown: Unknown,
}

/// What a book says about a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quote<'b> {
    /// It costs this.
    Priced(&'b ModelPrices),
    /// It costs nothing.
    Free,
    /// Nobody knows.
    Unknown,
}

impl PriceBook {
    /// A book without any model.
    pub fn new(unknown: Unknown) -> Self {
        Self { unknown, ..Self::default() }
    }

    /// Adds the price of a model, or of all whose names fit a pattern in which `*` stands for
    /// anything and `?` for one character.
    pub fn insert(&mut self, model: &str, prices: ModelPrices) {
        if model.contains(['*', '?']) {
            self.patterns.push((Pattern::Glob(model.to_owned()), prices));
        } else {
            self.named.insert(model.to_owned(), prices);
        }
    }

    /// Adds prices that somebody else has collected, for models that have none here.
    pub fn import(&mut self, prices: impl IntoIterator<Item = (String, ModelPrices)>) {
        self.imported.extend(prices);
    }

    /// What a model costs.
    pub fn of(&self, model: &str) -> Quote<'_> {
        let fitting = || self.patterns.iter().find(|(pattern, _)| pattern.matches(model));
        let found = self
            .named
            .get(model)
            .or_else(|| fitting().map(|(_, prices)| prices))
            .or_else(|| self.imported.get(model));
        match (found, &self.unknown) {
            (Some(prices), _) | (None, Unknown::Default(prices)) => Quote::Priced(prices),
            (None, Unknown::Free) => Quote::Free,
            (None, Unknown::Refuse) => Quote::Unknown,
        }
    }

    /// How many models have a price of their own, patterns included.
    pub fn len(&self) -> usize {
        self.named.len() + self.patterns.len() + self.imported.len()
    }

    /// Whether there is no price in it at all, not even a default one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !matches!(self.unknown, Unknown::Default(_))
    }

    /// What a query costs at most, if that can be said before it is done.
    ///
    /// | the query | a price is known | free | not known |
    /// |---|---|---|---|
    /// | counts tokens | their price | nothing | refused |
    /// | counts none | not known before it is settled | nothing | refused, unless the book is empty |
    ///
    /// Who keeps no prices at all states the cost of everything when it is settled.
    pub(crate) fn expect(&self, query: &Query<'_>) -> Result<Option<Money>, Unpriced> {
        let model = query.get(MODEL);
        let counted = query.cost.input_tokens.is_some() || query.cost.output_tokens.is_some();
        match self.of(query.model()) {
            Quote::Free => Ok(Some(Money::ZERO)),
            Quote::Priced(_) if !counted => Ok(None),
            Quote::Priced(prices) => Ok(Some(prices.cost_at_most(&Tokens::expected(query)))),
            Quote::Unknown if !counted && self.is_empty() => Ok(None),
            Quote::Unknown => Err(Unpriced { model: model.map(str::to_owned) }),
        }
    }
}

/// A model has no price, and nothing says that it is free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: state the cost as usd, or let the configuration say what it costs, under prices",
    match model {
        Some(model) => format!("no price is known for the model {model:?}"),
        None => "a model has to be named, because its tokens cost money".to_owned(),
    }
)]
pub struct Unpriced {
    /// Which one, if one was named.
    pub model: Option<String>,
}

/// How many tokens a text of so many characters is taken for.
pub const fn tokens_of(characters: u64) -> u64 {
    characters.div_ceil(CHARS_PER_TOKEN)
}

/// The tokens of the longest answer that several caps allow, for each of `choices`.
///
/// The largest counts: which of them a provider goes by is its own business, and a cap of 1 beside
/// one of 10,000 must not reserve 1.
pub fn capped(caps: impl IntoIterator<Item = u64>, choices: u64) -> Option<u64> {
    let largest = caps.into_iter().max()?;
    Some(largest.saturating_mul(choices).min(EXACT_MAX))
}

#[cfg(test)]
mod tests;
