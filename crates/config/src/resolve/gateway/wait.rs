//! Reads `wait`: the queue of requests that are over the limit of a route.

use std::collections::HashMap;

use super::super::item::{Fields, Item};
use super::super::scalar;
use super::provided::ProvidedDimensions;
use crate::config::{WaitOptions, WaitOrder};
use crate::report::Report;

/// Reads the option `wait` of a route of a gateway that provides these dimensions.
pub(super) fn wait(
    item: Option<Item<'_>>,
    provided: &ProvidedDimensions,
    report: &mut Report,
) -> WaitOptions {
    let mut wait =
        WaitOptions { max: WaitOptions::MAX, depth: 1_000, burst: None, order: WaitOrder::Fifo };
    let known = ["max", "depth", "burst", "order", "by", "weights", "priorities"];
    let Some(fields) = item.and_then(|item| Fields::open(item, &known, report)) else {
        return wait;
    };
    let depth = |item: &Item<'_>, report: &mut Report| scalar::count(item, report, 1..=1_000_000);
    wait.max = fields.read("max", wait.max, report, scalar::span);
    wait.depth = fields.read("depth", wait.depth, report, depth);
    wait.burst = fields
        .read_some("burst", report, |item, report| scalar::whole(item, report, 1..=1_000_000));
    let orders = [("fifo", false), ("fair", true)];
    let fair = fields.read("order", false, report, |i, r| scalar::word(i, r, &orders));
    if !fair {
        for item in ["by", "weights", "priorities"].into_iter().filter_map(|key| fields.get(key)) {
            item.fail(report, "applies to order: fair only", "write order: fair, or remove it");
        }
        return wait;
    }
    let by = fields.require(
        "by",
        "write the dimension whose values take turns, such as by: tenantId",
        report,
    );
    let by = by.and_then(|item| provided.name(&item, report));
    wait.order = WaitOrder::Fair {
        by: by.unwrap_or_default(),
        weights: numbers(&fields, "weights", 1..=1_000, report),
        priorities: numbers(&fields, "priorities", 0..=255, report),
    };
    wait
}

/// Reads a map from values to numbers.
fn numbers<N: TryFrom<u64>>(
    fields: &Fields<'_>,
    key: &str,
    range: std::ops::RangeInclusive<u64>,
    report: &mut Report,
) -> HashMap<String, N> {
    let form = "write a map from values to numbers, such as acme: 3";
    let entries = fields.read_some(key, report, |item, report| item.entries(report, form));
    let number = |(key, item): (&crate::raw::Key, Item<'_>)| {
        let number = scalar::whole(&item, report, range.clone())?;
        Some((key.text.clone(), N::try_from(number).ok()?))
    };
    entries.unwrap_or_default().into_iter().filter_map(number).collect()
}
