//! Reads one rule of a group.

use sluicegate_core::limit::Unit;
use sluicegate_core::query::VALUE_BYTES_MAX;
use sluicegate_core::rule::{EstimateMode, OnExpiry, Pattern};
use sluicegate_core::{Limit, Rule};

use super::item::{Fields, Item};
use super::limits::{display_name, location_of, option};
use super::{dimensions, redact, scalar};
use crate::location::Location;
use crate::raw::{Node, Value};
use crate::report::Report;

const KNOWN: [&str; 12] = [
    "name",
    "description",
    "reason",
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
/// Maximum number of limits of a rule: every decision looks at all of them.
const LIMITS_MAX: usize = 32;
/// Reasons of denials that no rule may use: clients could not tell them apart.
const RESERVED_REASONS: [&str; 5] =
    ["BANNED", "UPSTREAM_CLOSED", "STORE_FULL", "STORE_UNAVAILABLE", "STORE_LOST_MEMORY"];
/// Maximum length of the reason of a rule, in bytes.
const REASON_BYTES_MAX: usize = 64;
/// Options that only routes of gateways have: a gateway sees the responses.
const MISPLACED: [&str; 1] = ["count_if"];

/// A rule and the node that it was read from.
pub(super) struct DraftRule<'n> {
    pub(super) item: Item<'n>,
    pub(super) rule: Rule,
    /// True if an error in it was reported: other checks skip it.
    pub(super) has_errors: bool,
    /// True if `when`, `per` and `key` have no errors.
    pub(super) has_valid_match: bool,
}

impl DraftRule<'_> {
    /// Returns the location of an option, or of the rule if it is left out.
    pub(super) fn location_of(&self, key: &str) -> Location {
        location_of(&self.item, key)
    }

    /// Returns the name for messages.
    pub(super) fn display_name(&self) -> String {
        display_name(&self.item)
    }

    /// Returns an option as it is written in the file.
    pub(super) fn display(&self, key: &str) -> String {
        match option(&self.item, key).map(|item| &item.node.value) {
            Some(Value::Scalar(scalar)) => scalar.redacted(),
            _ => String::new(),
        }
    }

    /// Returns the limit that core prints as `printed`, as it is written in the file.
    pub(super) fn display_limit(&self, printed: &str) -> String {
        let index = self.rule.limits.iter().position(|limit| limit.to_string() == printed);
        self.display_item("limit", index)
    }

    /// Returns the dimension `name` of `per`, as it is written in the file.
    pub(super) fn display_per(&self, name: &str) -> String {
        let index = self.rule.per.iter().position(|other| other == name);
        self.display_item("per", index)
    }

    fn display_item(&self, key: &str, index: Option<usize>) -> String {
        let items = option(&self.item, key).map(|item| item.one_or_more()).unwrap_or_default();
        match index.and_then(|index| items.get(index)).map(|item| &item.node.value) {
            Some(Value::Scalar(scalar)) => scalar.redacted(),
            _ => String::new(),
        }
    }
}

/// Reads a rule.
pub(super) fn rule<'n>(item: Item<'n>, report: &mut Report) -> Option<DraftRule<'n>> {
    let before = report.errors();
    let fields = Fields::open_with_misplaced(item.clone(), &KNOWN, &MISPLACED, report)?;
    let name_remedy = "write a name, such as name: USER_MODEL; denials and metrics use it";
    let rule_name = fields.require("name", name_remedy, report);
    let rule_name = rule_name.and_then(|item| name(&item, report));

    let before_matching = report.errors();
    let when = fields.read("when", Vec::new(), report, when);
    let per_remedy = "write the dimensions to count by, such as per: [userId], or per: [] for one \
                      counter for all requests";
    let per = fields.require("per", per_remedy, report);
    let per = per.and_then(|item| per_dimensions(&item, per_remedy, report));
    let key = fields.read_some("key", report, scalar::text);
    let broken_before = has_broken(item.node);
    let has_valid_match = report.errors() == before_matching && !broken_before;

    let limit_remedy = "write a limit, such as limit: 100/h";
    let limits = fields.require("limit", limit_remedy, report);
    let limits = limits.map(|item| limits_or_ban(&item, report));
    let mut rule = Rule::new(rule_name.unwrap_or_default(), limits.unwrap_or_default());
    rule.description = fields.read_some("description", report, scalar::text);
    rule.reason = fields.read_some("reason", report, reason);
    rule.when = when;
    rule.per = per.unwrap_or_default();
    rule.key = key;
    rule.lease = fields.read("lease", Rule::LEASE, report, scalar::span);
    rule.shadow = fields.read("shadow", false, report, scalar::boolean);
    let modes = [("strict", EstimateMode::Strict), ("optimistic", EstimateMode::Optimistic)];
    rule.mode =
        fields.read("mode", EstimateMode::Strict, report, |i, r| scalar::word(i, r, &modes));
    let expiries = [("keep", OnExpiry::Keep), ("refund", OnExpiry::Refund)];
    rule.on_expiry =
        fields.read("on_expiry", OnExpiry::Keep, report, |i, r| scalar::word(i, r, &expiries));
    rule.outage = fields.read_some("outage", report, scalar::outage);
    let mut has_errors = broken_before || report.errors() > before;
    if !has_errors {
        check_contradictions(&fields, &rule, report);
        has_errors = report.errors() > before;
    }
    Some(DraftRule { item, rule, has_errors, has_valid_match })
}

/// Reads the name of a rule or a group. Its length is checked later, when names are compared.
pub(super) fn name(item: &Item<'_>, report: &mut Report) -> Option<String> {
    item.scalar(report, "write a name").map(|scalar| scalar.text().to_owned())
}

/// Reads the reason of denials.
pub(super) fn reason(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let form = "write one word of letters, digits and _, such as HIT_TENANT_TIER_MODEL_LIMIT";
    let text = item.scalar(report, form)?.text();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.is_empty() || text.len() > REASON_BYTES_MAX || !text.chars().all(is_word) {
        let message = format!("not a word of 1 to {REASON_BYTES_MAX} bytes");
        item.fail(report, message, form);
        return None;
    }
    if RESERVED_REASONS.contains(&text) {
        item.fail(report, "reserved for denials that no limit causes", form);
        return None;
    }
    Some(text.to_owned())
}

/// Reports options that have no effect on the limits of the rule.
fn check_contradictions(fields: &Fields<'_>, rule: &Rule, report: &mut Report) {
    if rule.limits.iter().any(Limit::is_ban)
        && let Some(item) = fields.get("reason")
    {
        let message = "the reason of a limit of 0 is always BANNED";
        item.fail(report, message, "remove it, or write a limit of at least 1");
    }
    let units: Vec<_> = rule.limits.iter().map(Limit::unit).collect();
    if !units.contains(&Unit::Slots)
        && let Some(item) = fields.get("lease")
    {
        let remedy = "remove it, or add a limit such as 100 concurrent";
        item.fail(
            report,
            "lease applies to `N concurrent` limits only, and the rule has none",
            remedy,
        );
    }
    if units.iter().all(|unit| matches!(unit, Unit::Requests | Unit::Slots)) {
        for item in ["mode", "on_expiry"].into_iter().filter_map(|key| fields.get(key)) {
            let message = "applies to limits on tokens or money only, and the rule has none";
            item.fail(report, message, "remove it, or add a limit such as 5.00 USD/day");
        }
    }
}

/// Reads the limits of a route, a provider or a worker. A ban is an error there.
pub(super) fn limits(item: &Item<'_>, report: &mut Report) -> Vec<Limit> {
    let mut limits = limits_or_ban(item, report);
    if limits.iter().any(Limit::is_ban) {
        let message = "a limit of 0 would deny every request";
        item.fail(report, message, "write at least 1, or remove this section");
        limits.clear();
    }
    limits
}

/// Reads one limit or a list of limits.
fn limits_or_ban(item: &Item<'_>, report: &mut Report) -> Vec<Limit> {
    if too_many_limits(item, report) {
        return Vec::new();
    }
    let limit = |item: &Item<'_>| {
        let scalar = item.scalar(report, "write a limit, such as 100/h")?;
        match scalar.text().parse() {
            Ok(limit) => Some(limit),
            Err(error) => {
                item.fail(report, redact::limit(&error, scalar), "");
                None
            }
        }
    };
    item.one_or_more().iter().filter_map(limit).collect()
}

/// Reports a list of too many limits. Returns true if it is too long.
fn too_many_limits(item: &Item<'_>, report: &mut Report) -> bool {
    let too_many = matches!(&item.node.value, Value::List(list) if list.len() > LIMITS_MAX);
    if too_many {
        let message = format!("more than {LIMITS_MAX} limits");
        item.fail(report, message, "remove the limits that other limits make redundant");
    }
    too_many
}

fn per_dimensions(item: &Item<'_>, remedy: &str, report: &mut Report) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for item in item.list(report, remedy)? {
        let Some(name) = dimensions::name(&item, report) else { continue };
        if names.contains(&name) {
            item.fail(report, "duplicate dimension", "remove one of them");
        }
        names.push(name);
        if names.len() > sluicegate_core::query::DIMENSIONS_MAX {
            item.fail(
                report,
                "more dimensions than a request may have",
                "count by fewer dimensions",
            );
            return None;
        }
    }
    Some(names)
}

fn when(item: &Item<'_>, report: &mut Report) -> Option<Vec<(String, Pattern)>> {
    let form = "write a map from dimensions to values, such as modelTier: PREMIUM";
    let mut conditions = Vec::new();
    for (key, item) in item.entries(report, form)? {
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
        let form = "write a value, a list of values, or a pattern with * or ?";
        let value = item.scalar(report, form)?.text();
        let is_glob = value.contains(['*', '?']);
        if value.is_empty() || value.len() > VALUE_BYTES_MAX || value.contains('\0') {
            let message = format!(
                "not a possible value: values have 1 to {VALUE_BYTES_MAX} bytes and no NUL"
            );
            item.fail(report, message, "correct or remove it");
        } else if is_glob && is_list {
            let message = "patterns are not allowed in a list";
            item.fail(report, message, "write a separate rule for the pattern");
        } else if is_glob {
            return Some(Pattern::Glob(value.to_owned()));
        }
        values.push(value.to_owned());
    }
    Some(Pattern::OneOf(values))
}

/// Returns true if an error in the node was reported before.
fn has_broken(node: &Node) -> bool {
    match &node.value {
        Value::Broken => true,
        Value::Scalar(_) => false,
        Value::List(list) => list.iter().any(has_broken),
        Value::Map(entries) => entries.iter().any(|(_, node)| has_broken(node)),
    }
}
