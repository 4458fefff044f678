//! Reads `prices`: the price table of models.

use sluicegate_core::price::{
    ModelPrices, PartialRates, PriceBook, PriceTier, Rates, UnknownModels,
};
use sluicegate_core::time::EXACT_MAX;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::Prices;
use crate::report::Report;

/// The policy for models without a price, as the option `unknown` names it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnknownPolicy {
    Refuse,
    Default,
    Free,
}

const POLICIES: [(&str, UnknownPolicy); 3] = [
    ("refuse", UnknownPolicy::Refuse),
    ("default", UnknownPolicy::Default),
    ("free", UnknownPolicy::Free),
];

const KINDS: [&str; 5] = ["input", "output", "cached_input", "cache_write", "reasoning"];

/// Reads the section `prices`.
pub(super) fn prices(item: &Item<'_>, report: &mut Report) -> (Prices, PriceBook) {
    let mut prices = Prices::default();
    let mut models = Vec::new();
    let (mut default, mut unknown) = (None, None);
    let form = "write a map from models to prices, such as default: {input: 0.20 USD/1M, output: \
                0.60 USD/1M}";
    for (key, item) in item.entries(report, form).unwrap_or_default() {
        match key.text.as_str() {
            "file" => prices.file = scalar::path(&item, report),
            "unknown" => {
                unknown = scalar::word(&item, report, &POLICIES).map(|word| (word, item));
            }
            "default" => default = model(item, report),
            name => models.extend(model(item, report).map(|prices| (name, prices))),
        }
    }
    let mut book = PriceBook::new(policy(unknown, default, report));
    for (name, prices) in models {
        book.insert(name, prices);
    }
    (prices, book)
}

/// Returns the policy for models without a price. If `unknown` is left out, the default price
/// applies; without a default price, such models are refused.
fn policy(
    unknown: Option<(UnknownPolicy, Item<'_>)>,
    default: Option<ModelPrices>,
    report: &mut Report,
) -> UnknownModels {
    match (unknown, default) {
        (None, None) => UnknownModels::Refuse,
        (None | Some((UnknownPolicy::Default, _)), Some(prices)) => UnknownModels::Default(prices),
        (Some((UnknownPolicy::Refuse, _)), None) => UnknownModels::Refuse,
        (Some((UnknownPolicy::Free, _)), None) => UnknownModels::Free,
        (Some((UnknownPolicy::Default, item)), None) => {
            let remedy = "add default: {input: 0.20 USD/1M, output: 0.60 USD/1M}";
            item.fail(report, "prices has no default", remedy);
            UnknownModels::Refuse
        }
        (Some((UnknownPolicy::Refuse | UnknownPolicy::Free, item)), Some(_)) => {
            item.fail(
                report,
                "prices.default is never used with this policy",
                "remove one of the two options",
            );
            UnknownModels::Refuse
        }
    }
}

fn model(item: Item<'_>, report: &mut Report) -> Option<ModelPrices> {
    let fields = Fields::open(item, &[&KINDS[..], &["tiers"]].concat(), report)?;
    let remedy = "write a price, such as 0.20 USD/1M; a missing price does not mean free";
    for key in ["input", "output"] {
        fields.require(key, remedy, report);
    }
    let rates = rates(&fields, report).complete()?;
    let tiers = fields.read_some("tiers", report, |item, report| {
        let form = "write a list of tiers, such as [{above: 200000, input: 2.50 USD/1M}]";
        let tiers = item.list(report, form)?;
        Some(tiers.into_iter().filter_map(|item| tier(item, &rates, report)).collect())
    });
    Some(ModelPrices::new(rates, tiers.unwrap_or_default()))
}

fn tier(item: Item<'_>, base: &Rates, report: &mut Report) -> Option<PriceTier> {
    let fields = Fields::open(item, &[&["above"], &KINDS[..]].concat(), report)?;
    let remedy =
        "write the number of input tokens above which the tier applies, such as above: 200000";
    let above = fields.require("above", remedy, report)?;
    let above = scalar::whole(&above, report, 1..=EXACT_MAX)?;
    Some(PriceTier { above, rates: rates(&fields, report).complete_tier(base) })
}

fn rates(fields: &Fields<'_>, report: &mut Report) -> PartialRates {
    let [input, output, cached_input, cache_write, reasoning] =
        KINDS.map(|key| fields.read_some(key, report, scalar::price));
    PartialRates { input, output, cached_input, cache_write, reasoning }
}
