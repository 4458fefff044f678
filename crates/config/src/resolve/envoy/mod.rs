//! The format of envoyproxy/ratelimit: a domain, and descriptors inside of descriptors.
//!
//! `read` makes a tree of what is written, `flatten` makes rules of the tree. A file in this
//! format is a configuration by itself; in one of ours, `envoy.domains` is a list of them.

mod flatten;
mod read;

use std::collections::HashMap;

use sluicegate_core::Group;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{Envoy, EnvoyClosed};
use crate::report::Report;

/// The keys of a file in this format.
pub(super) const FILE: [&str; 3] = ["domain", "descriptors", "compat"];

/// How imported limits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    /// In rolling windows, and all descriptors of a call together.
    Ours,
    /// In windows by the clock, and each descriptor on its own.
    Theirs,
}

/// What a file says to Envoy besides limits, and the groups that its domains become.
pub(super) fn envoy(
    item: Item<'_>,
    counting: Counting,
    report: &mut Report,
) -> (Envoy, Vec<Group>) {
    let default = Envoy::default();
    let Some(fields) = Fields::open(item, &["headers", "closed", "domains"], report) else {
        return (default, Vec::new());
    };
    let headers = fields.read("headers", default.headers, report, scalar::boolean);
    let words = [("over_limit", EnvoyClosed::OverLimit), ("unavailable", EnvoyClosed::Unavailable)];
    let closed = fields.read("closed", default.closed, report, |i, r| scalar::word(i, r, &words));
    let form = "write a list of files of envoyproxy/ratelimit, each with domain and descriptors";
    let domains = fields.get("domains").and_then(|item| item.list(report, form));
    let groups = groups(domains.unwrap_or_default(), counting, report);
    (Envoy { headers, closed }, groups)
}

/// One group per domain.
pub(super) fn groups(items: Vec<Item<'_>>, counting: Counting, report: &mut Report) -> Vec<Group> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut groups = Vec::new();
    for item in items {
        let Some(domain) = read::domain(&item, report) else { continue };
        let line = item.node.at.line;
        if let Some(first) = seen.insert(domain.name.clone(), line) {
            let message = format!("the domain is there twice, first on line {first}");
            item.fail(report, message, "put the descriptors of both into one");
            continue;
        }
        let group = flatten::group(&domain, counting);
        if !group.rules.is_empty() {
            groups.push(group);
        }
    }
    groups
}

/// `compat: envoy`.
pub(super) fn counting(item: Option<Item<'_>>, report: &mut Report) -> Counting {
    let words = [("none", Counting::Ours), ("envoy", Counting::Theirs)];
    let read = item.and_then(|item| scalar::word(&item, report, &words));
    read.unwrap_or(Counting::Ours)
}
