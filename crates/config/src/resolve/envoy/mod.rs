//! Reads the format of envoyproxy/ratelimit: a domain with nested descriptors.
//!
//! `read` parses the descriptors into a tree, `to_rules` converts the tree into rules. A file in
//! this format is a configuration by itself; in our own format, `envoy.domains` is a list of them.

mod read;
mod to_rules;

use std::collections::HashMap;

use sluicegate_core::Group;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{EnvoyClosedReply, EnvoyOptions};
use crate::report::Report;

/// Keys of a file in this format.
pub(super) const FILE: [&str; 3] = ["domain", "descriptors", "compat"];

/// The way imported limits are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompatMode {
    /// Rolling windows, and all descriptors of a request decided together.
    Native,
    /// Windows aligned to the clock, and each descriptor decided on its own, as
    /// envoyproxy/ratelimit does.
    Envoy,
}

/// Reads the section `envoy`. Also returns the groups of its domains.
pub(super) fn envoy(
    item: Item<'_>,
    compat: CompatMode,
    report: &mut Report,
) -> (EnvoyOptions, Vec<Group>) {
    let default = EnvoyOptions::default();
    let Some(fields) = Fields::open(item, &["headers", "closed", "domains"], report) else {
        return (default, Vec::new());
    };
    let headers = fields.read("headers", default.headers, report, scalar::boolean);
    let words = [
        ("over_limit", EnvoyClosedReply::OverLimit),
        ("unavailable", EnvoyClosedReply::Unavailable),
    ];
    let closed = fields.read("closed", default.closed, report, |i, r| scalar::word(i, r, &words));
    let form =
        "write a list of envoyproxy/ratelimit configurations, each with domain and descriptors";
    let domains = fields.get("domains").and_then(|item| item.list(report, form));
    let groups = groups(domains.unwrap_or_default(), compat, report);
    (EnvoyOptions { headers, closed }, groups)
}

/// Returns one group for each domain.
pub(super) fn groups(items: Vec<Item<'_>>, compat: CompatMode, report: &mut Report) -> Vec<Group> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut groups = Vec::new();
    for item in items {
        let Some(domain) = read::domain(&item, report) else { continue };
        let line = item.node.at.line;
        if let Some(first) = seen.insert(domain.name.clone(), line) {
            let message = format!("duplicate domain, first used on line {first}");
            item.fail(report, message, "merge the descriptors of both");
            continue;
        }
        let group = to_rules::group(&domain, compat);
        if !group.rules.is_empty() {
            groups.push(group);
        }
    }
    groups
}

/// Reads the option `compat`.
pub(super) fn compat(item: Option<Item<'_>>, report: &mut Report) -> CompatMode {
    let words = [("none", CompatMode::Native), ("envoy", CompatMode::Envoy)];
    let read = item.and_then(|item| scalar::word(&item, report, &words));
    read.unwrap_or(CompatMode::Native)
}
