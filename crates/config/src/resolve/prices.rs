//! The price table.

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{ModelPrice, Prices};
use crate::report::Report;

pub(super) fn prices(item: &Item<'_>, report: &mut Report) -> Prices {
    let mut prices = Prices::default();
    let form = "write a map of models, such as default: {input: 0.20 USD/1M, output: 0.60 USD/1M}";
    for (key, item) in item.names(report, form).unwrap_or_default() {
        let Some(price) = model(item, report) else { continue };
        match key.text.as_str() {
            "default" => prices.default = Some(price),
            model => {
                prices.models.insert(model.to_owned(), price);
            }
        }
    }
    prices
}

fn model(item: Item<'_>, report: &mut Report) -> Option<ModelPrice> {
    let known = ["input", "output", "cached_input", "cache_write", "reasoning"];
    let fields = Fields::open(item, &known, report)?;
    let remedy = "a price that is left out would be none: write one, such as 0.20 USD/1M";
    let [input, output] = ["input", "output"].map(|key| {
        let item = fields.require(key, remedy, report);
        item.and_then(|item| scalar::price(&item, report))
    });
    let [cached_input, cache_write, reasoning] = ["cached_input", "cache_write", "reasoning"]
        .map(|key| fields.read_some(key, report, scalar::price));
    let (input, output) = (input?, output?);
    Some(ModelPrice {
        input,
        output,
        cached_input: cached_input.unwrap_or(input),
        cache_write: cache_write.unwrap_or(input),
        reasoning: reasoning.unwrap_or(output),
    })
}
