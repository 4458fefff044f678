//! One rule.

use sluicegate_core::limit::Unit;
use sluicegate_core::query::VALUE_BYTES_MAX;
use sluicegate_core::rule::{Mode, OnExpiry, Pattern};
use sluicegate_core::{Limit, Rule};

use super::item::{Fields, Item};
use super::limits::{option, place_of, shown_name};
use super::{dimensions, scalar, wording};
use crate::place::Place;
use crate::raw::{Node, Value};
use crate::report::Report;

const KNOWN: [&str; 11] = [
    "name",
    "description",
    "when",
    "per",
    "limit",
    "lease",
    "shadow",
    "key",
    "mode",
    "on_expiry",
    "outage",
];
/// More windows than anybody can keep in mind.
const LIMITS_MAX: usize = 32;
/// What only a gateway can do: it sees the answers.
const ELSEWHERE: [&str; 1] = ["count_if"];

/// A rule with what it was read from.
pub(super) struct Draft<'n> {
    pub(super) item: Item<'n>,
    pub(super) rule: Rule,
    /// Something in it was reported: what it lacks is not missing.
    pub(super) broken: bool,
    /// When it matches is known.
    pub(super) matches_known: bool,
}

impl Draft<'_> {
    /// Where one of its options stands, or the rule itself.
    pub(super) fn place_of(&self, key: &str) -> Place {
        place_of(&self.item, key)
    }

    /// What messages call it.
    pub(super) fn shown_name(&self) -> String {
        shown_name(&self.item)
    }

    /// An option as it is written.
    pub(super) fn shown(&self, key: &str) -> String {
        match option(&self.item, key).map(|item| &item.node.value) {
            Some(Value::Scalar(scalar)) => scalar.shown(),
            _ => String::new(),
        }
    }

    /// The limit that core prints as `printed`, as it is written.
    pub(super) fn shown_limit(&self, printed: &str) -> String {
        let place = self.rule.limits.iter().position(|limit| limit.to_string() == printed);
        self.shown_item("limit", place)
    }

    /// The dimension `name` of `per`, as it is written.
    pub(super) fn shown_per(&self, name: &str) -> String {
        let place = self.rule.per.iter().position(|other| other == name);
        self.shown_item("per", place)
    }

    fn shown_item(&self, key: &str, place: Option<usize>) -> String {
        let items = option(&self.item, key).map(|item| item.one_or_more()).unwrap_or_default();
        match place.and_then(|place| items.get(place)).map(|item| &item.node.value) {
            Some(Value::Scalar(scalar)) => scalar.shown(),
            _ => String::new(),
        }
    }
}

pub(super) fn rule<'n>(item: Item<'n>, report: &mut Report) -> Option<Draft<'n>> {
    let before = report.errors();
    let fields = Fields::open_besides(item.clone(), &KNOWN, &ELSEWHERE, report)?;
    let name_remedy = "write one, such as name: USER_MODEL: denials and metrics speak of it";
    let rule_name = fields.require("name", name_remedy, report);
    let rule_name = rule_name.and_then(|item| name(&item, report));

    let before_matching = report.errors();
    let when = fields.read("when", Vec::new(), report, when);
    let per_remedy = "write the dimensions to count by, such as per: [userId], or per: [] to count \
                      everybody together";
    let per = fields.require("per", per_remedy, report);
    let per = per.and_then(|item| per_dimensions(&item, per_remedy, report));
    let key = fields.read_some("key", report, scalar::text);
    let broken_before = has_broken(item.node);
    let matches_known = report.errors() == before_matching && !broken_before;

    let limit_remedy = "write one, such as limit: 100/h";
    let limits = fields.require("limit", limit_remedy, report);
    let limits = limits.map(|item| limits_or_ban(&item, report));
    let mut rule = Rule::new(rule_name.unwrap_or_default(), limits.unwrap_or_default());
    rule.description = fields.read_some("description", report, scalar::text);
    rule.when = when;
    rule.per = per.unwrap_or_default();
    rule.key = key;
    rule.lease = fields.read("lease", Rule::LEASE, report, scalar::span);
    rule.shadow = fields.read("shadow", false, report, scalar::boolean);
    let modes = [("strict", Mode::Strict), ("optimistic", Mode::Optimistic)];
    rule.mode = fields.read("mode", Mode::Strict, report, |i, r| scalar::word(i, r, &modes));
    let expiries = [("keep", OnExpiry::Keep), ("refund", OnExpiry::Refund)];
    rule.on_expiry =
        fields.read("on_expiry", OnExpiry::Keep, report, |i, r| scalar::word(i, r, &expiries));
    rule.outage = fields.read_some("outage", report, scalar::outage);
    let mut broken = broken_before || report.errors() > before;
    if !broken {
        check_contradictions(&fields, &rule, report);
        broken = report.errors() > before;
    }
    Some(Draft { item, rule, broken, matches_known })
}

/// The name of a rule or a group; how long it may be is checked where names are compared.
pub(super) fn name(item: &Item<'_>, report: &mut Report) -> Option<String> {
    item.scalar(report, "write a text").map(|scalar| scalar.text().to_owned())
}

/// Options that do nothing for the limits of the rule.
fn check_contradictions(fields: &Fields<'_>, rule: &Rule, report: &mut Report) {
    let units: Vec<_> = rule.limits.iter().map(Limit::unit).collect();
    if !units.contains(&Unit::Slots)
        && let Some(item) = fields.get("lease")
    {
        let remedy = "remove it, or add a limit such as 100 concurrent";
        item.fail(report, "only slots of `N concurrent` are leased, and the rule has none", remedy);
    }
    if units.iter().all(|unit| matches!(unit, Unit::Requests | Unit::Slots)) {
        for item in ["mode", "on_expiry"].into_iter().filter_map(|key| fields.get(key)) {
            let message = "only tokens and money are estimated, and the rule limits neither";
            item.fail(report, message, "remove it, or add a limit such as 5.00 USD/day");
        }
    }
}

/// The limits of a route, a provider or a worker, which can't be banned.
pub(super) fn limits(item: &Item<'_>, report: &mut Report) -> Vec<Limit> {
    let mut limits = limits_or_ban(item, report);
    if limits.iter().any(Limit::is_ban) {
        let message = "a limit of 0 bans, and all of its requests would be refused";
        item.fail(report, message, "write at least 1, or remove the part that it limits");
        limits.clear();
    }
    limits
}

fn limits_or_ban(item: &Item<'_>, report: &mut Report) -> Vec<Limit> {
    if too_many_limits(item, report) {
        return Vec::new();
    }
    let limit = |item: &Item<'_>| {
        let scalar = item.scalar(report, "write a limit, such as 100/h")?;
        match scalar.text().parse() {
            Ok(limit) => Some(limit),
            Err(error) => {
                item.fail(report, wording::limit(&error, scalar), "");
                None
            }
        }
    };
    item.one_or_more().iter().filter_map(limit).collect()
}

/// Every decision looks at all of them.
fn too_many_limits(item: &Item<'_>, report: &mut Report) -> bool {
    let too_many = matches!(&item.node.value, Value::List(list) if list.len() > LIMITS_MAX);
    if too_many {
        let message = format!("has more than {LIMITS_MAX} limits");
        item.fail(report, message, "keep those that bind first");
    }
    too_many
}

fn per_dimensions(item: &Item<'_>, remedy: &str, report: &mut Report) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for item in item.list(report, remedy)? {
        let Some(name) = dimensions::name(&item, report) else { continue };
        if names.contains(&name) {
            item.fail(report, "is in the list twice", "keep one of them");
        }
        names.push(name);
        if names.len() > sluicegate_core::query::DIMENSIONS_MAX {
            item.fail(report, "is one dimension more than a query can name", "count by fewer");
            return None;
        }
    }
    Some(names)
}

fn when(item: &Item<'_>, report: &mut Report) -> Option<Vec<(String, Pattern)>> {
    let form = "write a map of dimensions and values, such as modelTier: PREMIUM";
    let mut conditions = Vec::new();
    for (key, item) in item.names(report, form)? {
        dimensions::check_name(&key.text, &item, report);
        if let Some(pattern) = pattern(&item, report) {
            conditions.push((key.text.clone(), pattern));
        }
    }
    Some(conditions)
}

fn pattern(item: &Item<'_>, report: &mut Report) -> Option<Pattern> {
    let is_list = matches!(item.node.value, Value::List(_));
    let mut values = Vec::new();
    for item in item.one_or_more() {
        let form = "write a value, a list of values, or a text with * or ? in it";
        let value = item.scalar(report, form)?.text();
        let is_glob = value.contains(['*', '?']);
        if value.is_empty() || value.len() > VALUE_BYTES_MAX || value.contains('\0') {
            let message = format!("no value is like this: they have 1 to {VALUE_BYTES_MAX} bytes");
            item.fail(report, message, "remove it");
        } else if is_glob && is_list {
            let message = "a list holds values, and this is a pattern";
            item.fail(report, message, "write a rule of its own for it");
        } else if is_glob {
            return Some(Pattern::Glob(value.to_owned()));
        }
        values.push(value.to_owned());
    }
    Some(Pattern::OneOf(values))
}

/// Whether something in it was reported before.
fn has_broken(node: &Node) -> bool {
    match &node.value {
        Value::Broken => true,
        Value::Scalar(_) => false,
        Value::List(list) => list.iter().any(has_broken),
        Value::Map(entries) => entries.iter().any(|(_, node)| has_broken(node)),
    }
}
