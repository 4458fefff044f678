//! Reads `outage`: the policy that applies while the store is unavailable.

use super::item::{Fields, Item, nearest};
use super::scalar;
use crate::config::{OutagePolicies, OutagePolicy};
use crate::location::Location;
use crate::report::Report;

/// Client types that every part of the product knows by name.
pub(super) const CLIENT_TYPES: [&str; 3] = ["EXTERNAL", "INTERNAL", "PARTNER"];

/// Reads the section `outage`.
pub(super) fn outage(item: Item<'_>, report: &mut Report) -> OutagePolicies {
    let mut outage = OutagePolicies::default();
    let known = ["default", "by_client_type"];
    let Some(fields) = Fields::open(item, &known, report) else { return outage };
    outage.default = fields.read("default", OutagePolicy::Closed, report, scalar::outage);
    let form = "write a map from client types to policies, such as INTERNAL: local";
    let by = fields.read_some("by_client_type", report, |item, report| item.entries(report, form));
    for (key, item) in by.unwrap_or_default() {
        let name = key.text.as_str();
        let known = CLIENT_TYPES.contains(&name);
        if let Some(near) = nearest(name, CLIENT_TYPES.into_iter()).filter(|_| !known) {
            let location = Location { position: key.at, path: item.path.clone() };
            let message = "unusual client type, and client types are case-sensitive";
            report.warning(&location, message, &format!("did you mean {near}?"));
        }
        if let Some(policy) = scalar::outage(&item, report) {
            outage.by_client_type.insert(name.to_owned(), policy);
        }
    }
    outage
}
