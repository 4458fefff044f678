//! The price table.

use sluicegate_core::price::{ModelPrices, PartialRates, PriceBook, Rates, Tier, Unknown};
use sluicegate_core::time::EXACT_MAX;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::Prices;
use crate::report::Report;

/// What the words after `unknown` ask for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Refuse,
    Default,
    Free,
}

const WORDS: [(&str, Word); 3] =
    [("refuse", Word::Refuse), ("default", Word::Default), ("free", Word::Free)];

const KINDS: [&str; 5] = ["input", "output", "cached_input", "cache_write", "reasoning"];

pub(super) fn prices(item: &Item<'_>, report: &mut Report) -> (Prices, PriceBook) {
    let mut prices = Prices::default();
    let mut models = Vec::new();
    let (mut default, mut unknown) = (None, None);
    let form = "write a map of models, such as default: {input: 0.20 USD/1M, output: 0.60 USD/1M}";
    for (key, item) in item.names(report, form).unwrap_or_default() {
        match key.text.as_str() {
            "file" => prices.file = scalar::path(&item, report),
            "unknown" => {
                unknown = scalar::word(&item, report, &WORDS).map(|word| (word, item));
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

/// What becomes of models without a price. Where nothing is said, a default price is meant to be
/// used, and without one nothing is free.
fn policy(
    unknown: Option<(Word, Item<'_>)>,
    default: Option<ModelPrices>,
    report: &mut Report,
) -> Unknown {
    match (unknown, default) {
        (None, None) => Unknown::Refuse,
        (None | Some((Word::Default, _)), Some(prices)) => Unknown::Default(prices),
        (Some((Word::Refuse, _)), None) => Unknown::Refuse,
        (Some((Word::Free, _)), None) => Unknown::Free,
        (Some((Word::Default, item)), None) => {
            let remedy = "write one: default: {input: 0.20 USD/1M, output: 0.60 USD/1M}";
            item.fail(report, "there is no default price", remedy);
            Unknown::Refuse
        }
        (Some((Word::Refuse | Word::Free, item)), Some(_)) => {
            item.fail(report, "the default price would never be used", "remove one of the two");
            Unknown::Refuse
        }
    }
}

fn model(item: Item<'_>, report: &mut Report) -> Option<ModelPrices> {
    let fields = Fields::open(item, &[&KINDS[..], &["tiers"]].concat(), report)?;
    let remedy = "a price that is left out would be none: write one, such as 0.20 USD/1M";
    for key in ["input", "output"] {
        fields.require(key, remedy, report);
    }
    let rates = rates(&fields, report).complete()?;
    let tiers = fields.read_some("tiers", report, |item, report| {
        let form = "write a list, such as [{above: 200000, input: 2.50 USD/1M}]";
        let tiers = item.list(report, form)?;
        Some(tiers.into_iter().filter_map(|item| tier(item, &rates, report)).collect())
    });
    Some(ModelPrices::new(rates, tiers.unwrap_or_default()))
}

fn tier(item: Item<'_>, base: &Rates, report: &mut Report) -> Option<Tier> {
    let fields = Fields::open(item, &[&["above"], &KINDS[..]].concat(), report)?;
    let remedy = "write the number of tokens sent above which it holds, such as above: 200000";
    let above = fields.require("above", remedy, report)?;
    let above = scalar::whole(&above, report, 1..=EXACT_MAX)?;
    Some(Tier { above, rates: rates(&fields, report).complete_tier(base) })
}

fn rates(fields: &Fields<'_>, report: &mut Report) -> PartialRates {
    let [input, output, cached_input, cache_write, reasoning] =
        KINDS.map(|key| fields.read_some(key, report, scalar::price));
    PartialRates { input, output, cached_input, cache_write, reasoning }
}
