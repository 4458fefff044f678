//! Groups of rules.

use sluicegate_core::Group;

use super::item::{Fields, Item};
use super::rule::{self, Draft};
use super::scalar;
use crate::place::Place;
use crate::raw::Value;
use crate::report::Report;

/// A group with what it was read from.
pub(super) struct DraftGroup<'n> {
    pub(super) item: Item<'n>,
    pub(super) name: String,
    pub(super) effective: bool,
    pub(super) rules: Vec<Draft<'n>>,
    /// Rules were written that could not be read at all.
    pub(super) lost: bool,
}

pub(super) fn limits<'n>(item: &Item<'n>, report: &mut Report) -> Vec<DraftGroup<'n>> {
    let form = "write a list of groups, each with a name and rules";
    let items = item.list(report, form).unwrap_or_default();
    if items.is_empty() && matches!(item.node.value, Value::List(_)) {
        let remedy =
            "write a group, or leave limits out for the default rule, or write enabled: false";
        item.fail(report, "an empty list limits nothing", remedy);
    }
    items.into_iter().filter_map(|item| group(item, report)).collect()
}

fn group<'n>(item: Item<'n>, report: &mut Report) -> Option<DraftGroup<'n>> {
    let fields = Fields::open(item.clone(), &["name", "effective", "rules"], report)?;
    let name = fields.require("name", "write one, such as name: caller", report);
    let name = name.and_then(|name| rule::name(&name, report));
    let effective = fields.read("effective", false, report, scalar::boolean);
    let remedy = "write a list of rules, most specific first";
    let rules = fields.require("rules", remedy, report);
    let items = rules.and_then(|rules| rules.list(report, remedy));
    let written = items.as_ref().map(Vec::len);
    let items = items.unwrap_or_default().into_iter();
    let rules: Vec<_> = items.filter_map(|item| rule::rule(item, report)).collect();
    let lost = written != Some(rules.len());
    Some(DraftGroup { item, name: name.unwrap_or_default(), effective, rules, lost })
}

impl DraftGroup<'_> {
    /// The group, as far as its rules could be read.
    pub(super) fn group(&self) -> Group {
        let rules = self.rules.iter().map(|draft| draft.rule.clone());
        Group { effective: self.effective, ..Group::new(self.name.clone(), rules) }
    }

    /// Where one of its options stands, or the group itself.
    pub(super) fn place_of(&self, key: &str) -> Place {
        place_of(&self.item, key)
    }

    /// What messages call it.
    pub(super) fn shown_name(&self) -> String {
        shown_name(&self.item)
    }
}

/// The place of an option of a map, or of the map where the option is left out.
pub(super) fn place_of(item: &Item<'_>, key: &str) -> Place {
    option(item, key).map_or_else(|| item.place(), |item| item.place())
}

/// An option of a map.
pub(super) fn option<'n>(item: &Item<'n>, key: &str) -> Option<Item<'n>> {
    let Value::Map(entries) = &item.node.value else { return None };
    let (_, node) = entries.iter().find(|(other, _)| other.text == key)?;
    Some(Item { node, path: item.path.key(key) })
}

/// The name of a rule or a group as it is written.
pub(super) fn shown_name(item: &Item<'_>) -> String {
    match option(item, "name").map(|item| &item.node.value) {
        Some(Value::Scalar(scalar)) => scalar.shown(),
        _ => "without a name".to_owned(),
    }
}
