//! What tokens cost.

use std::collections::HashMap;

use sluicegate_core::money::Price;

/// The price table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// For models that the table does not name. Default: none, so that their cost is only known
    /// if the caller states it.
    pub default: Option<ModelPrice>,
    /// By model. Default: none.
    pub models: HashMap<String, ModelPrice>,
}

impl Prices {
    /// The prices of a model.
    pub fn of(&self, model: &str) -> Option<&ModelPrice> {
        self.models.get(model).or(self.default.as_ref())
    }
}

/// The prices of one model, for each kind of token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPrice {
    /// Tokens sent.
    pub input: Price,
    /// Tokens answered.
    pub output: Price,
    /// Tokens sent that the provider had in its cache. Default: the price of `input`, which is
    /// never too low.
    pub cached_input: Price,
    /// Tokens sent that the provider put into its cache. Default: the price of `input`.
    pub cache_write: Price,
    /// Tokens that the model thought in. Default: the price of `output`.
    pub reasoning: Price,
}
