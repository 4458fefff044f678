//! Reads `limits`: groups of rules.

use sluicegate_core::Group;

use super::item::{Fields, Item};
use super::rule::{self, DraftRule};
use super::scalar;
use crate::location::Location;
use crate::raw::Value;
use crate::report::Report;

/// A group and the node that it was read from.
pub(super) struct DraftGroup<'n> {
    pub(super) item: Item<'n>,
    pub(super) name: String,
    pub(super) effective: bool,
    pub(super) rules: Vec<DraftRule<'n>>,
    /// True if a rule of the group could not be read at all.
    pub(super) incomplete: bool,
}

/// Reads the section `limits`.
pub(super) fn limits<'n>(item: &Item<'n>, report: &mut Report) -> Vec<DraftGroup<'n>> {
    let form = "write a list of groups, each with name and rules";
    let items = item.list(report, form).unwrap_or_default();
    if items.is_empty() && matches!(item.node.value, Value::List(_)) {
        let remedy =
            "write a group, leave limits out to use the default rule, or write enabled: false";
        item.fail(report, "empty list", remedy);
    }
    items.into_iter().filter_map(|item| group(item, report)).collect()
}

fn group<'n>(item: Item<'n>, report: &mut Report) -> Option<DraftGroup<'n>> {
    let fields = Fields::open(item.clone(), &["name", "effective", "rules"], report)?;
    let name = fields.require("name", "write a name, such as name: caller", report);
    let name = name.and_then(|name| rule::name(&name, report));
    let effective = fields.read("effective", false, report, scalar::boolean);
    let remedy = "write a list of rules, most specific first";
    let rules = fields.require("rules", remedy, report);
    let items = rules.and_then(|rules| rules.list(report, remedy));
    let written = items.as_ref().map(Vec::len);
    let items = items.unwrap_or_default().into_iter();
    let rules: Vec<_> = items.filter_map(|item| rule::rule(item, report)).collect();
    let incomplete = written != Some(rules.len());
    Some(DraftGroup { item, name: name.unwrap_or_default(), effective, rules, incomplete })
}

impl DraftGroup<'_> {
    /// Returns the group with the rules that could be read.
    pub(super) fn group(&self) -> Group {
        let rules = self.rules.iter().map(|draft| draft.rule.clone());
        Group { effective: self.effective, ..Group::new(self.name.clone(), rules) }
    }

    /// Returns the location of an option, or of the group if it is left out.
    pub(super) fn location_of(&self, key: &str) -> Location {
        location_of(&self.item, key)
    }

    /// Returns the name for messages.
    pub(super) fn display_name(&self) -> String {
        display_name(&self.item)
    }
}

/// Returns the location of an option of a map, or of the map if the option is left out.
pub(super) fn location_of(item: &Item<'_>, key: &str) -> Location {
    option(item, key).map_or_else(|| item.location(), |item| item.location())
}

/// Returns an option of a map.
pub(super) fn option<'n>(item: &Item<'n>, key: &str) -> Option<Item<'n>> {
    let Value::Map(entries) = &item.node.value else { return None };
    let (_, node) = entries.iter().find(|(other, _)| other.text == key)?;
    Some(Item { node, path: item.path.key(key) })
}

/// Returns the name of a rule or a group as it is written in the file.
pub(super) fn display_name(item: &Item<'_>) -> String {
    match option(item, "name").map(|item| &item.node.value) {
        Some(Value::Scalar(scalar)) => scalar.redacted(),
        _ => "(unnamed)".to_owned(),
    }
}
