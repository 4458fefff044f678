//! What is written: a tree of descriptors.

use std::collections::HashMap;

use sluicegate_core::Span;
use sluicegate_core::limit::{Amount, Window};

use super::super::item::{Fields, Item};
use super::super::scalar;
use crate::report::Report;

/// The most descriptors that lie inside one another.
const DEPTH_MAX: usize = 30;

/// A domain with its descriptors.
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) branches: Vec<Branch>,
}

/// A descriptor, with those inside of it.
pub(super) struct Branch {
    pub(super) key: String,
    pub(super) value: Value,
    /// All values that match share one counter.
    pub(super) shared: bool,
    pub(super) limit: Option<Given>,
    pub(super) shadow: bool,
    /// Refuses only if every quota of a call is used up.
    pub(super) quota: bool,
    pub(super) branches: Vec<Branch>,
}

/// The values that a descriptor matches, the most specific first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Value {
    Exactly(String),
    /// Any that fits this text, in which `*` stands for anything.
    Like(String),
    Any,
}

/// What a descriptor gives.
pub(super) struct Given {
    pub(super) limit: Requests,
    /// What `replaces` calls it.
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<String>,
}

/// How many requests a descriptor allows.
pub(super) enum Requests {
    Unlimited,
    /// `requests_per_unit: 0`, which refuses everything.
    None,
    Rate(Amount, Window),
}

pub(super) fn domain(item: &Item<'_>, report: &mut Report) -> Option<Domain> {
    let fields = Fields::open(item.clone(), &super::FILE, report)?;
    let name = fields.require("domain", "write the domain that Envoy asks for", report)?;
    let name = scalar::text(&name, report)?;
    let branches = branches(&fields, 1, report);
    check_replaces(&branches, item, report);
    Some(Domain { name, branches })
}

fn branches(fields: &Fields<'_>, depth: usize, report: &mut Report) -> Vec<Branch> {
    let Some(item) = fields.get("descriptors") else { return Vec::new() };
    if depth > DEPTH_MAX {
        item.fail(report, format!("lies deeper than {DEPTH_MAX} descriptors"), "use fewer keys");
        return Vec::new();
    }
    let items = item.list(report, "write a list of descriptors, each with a key");
    let mut seen: HashMap<(String, Value), usize> = HashMap::new();
    let mut branches = Vec::new();
    for item in items.unwrap_or_default() {
        let Some(branch) = branch(&item, depth, report) else { continue };
        let place = (branch.key.clone(), branch.value.clone());
        if let Some(first) = seen.insert(place, item.node.at.line) {
            let message = format!("the same key and value are there twice, first on line {first}");
            item.fail(report, message, "keep one of them");
        }
        branches.push(branch);
    }
    branches
}

fn branch(item: &Item<'_>, depth: usize, report: &mut Report) -> Option<Branch> {
    let known = [
        "key",
        "value",
        "rate_limit",
        "descriptors",
        "shadow_mode",
        "share_threshold",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "metadata",
    ];
    let fields = Fields::open(item.clone(), &known, report)?;
    let key = fields.require("key", "write the key that Envoy sends", report);
    let key = key.and_then(|item| scalar::text(&item, report));
    let value = fields.get("value").map_or(Some(Value::Any), |item| value(&item, report));
    let limit = fields.get("rate_limit").and_then(|item| given(&item, report));
    let shadow = fields.read("shadow_mode", false, report, scalar::boolean);
    let shared = fields.read("share_threshold", false, report, scalar::boolean);
    let quota = fields.read("quota_mode", false, report, scalar::boolean);
    // `metadata` is for whoever is told of it, which envoyproxy/ratelimit does only if it is asked
    // to. Which labels metrics have is not the rules' business here; they are bounded anyway.
    for ignored in ["detailed_metric", "value_to_metric"] {
        fields.read(ignored, false, report, scalar::boolean);
    }
    let branches = branches(&fields, depth + 1, report);
    Some(Branch { key: key?, value: value?, shared, limit, shadow, quota, branches })
}

fn value(item: &Item<'_>, report: &mut Report) -> Option<Value> {
    let text = item.scalar(report, "write a text")?.text();
    Some(match text {
        "" => Value::Any,
        text if text.contains('*') => Value::Like(text.to_owned()),
        text => Value::Exactly(text.to_owned()),
    })
}

fn given(item: &Item<'_>, report: &mut Report) -> Option<Given> {
    let known = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
    let fields = Fields::open(item.clone(), &known, report)?;
    let unlimited = fields.read("unlimited", false, report, scalar::boolean);
    let name = fields.read_some("name", report, scalar::text);
    let replaces = fields.get("replaces").map(|item| replaced(&item, report));
    let replaces = replaces.unwrap_or_default();
    if unlimited {
        for item in ["unit", "requests_per_unit"].into_iter().filter_map(|key| fields.get(key)) {
            item.fail(report, "there is no limit", "remove it, or write unlimited: false");
        }
        return Some(Given { limit: Requests::Unlimited, name, replaces });
    }
    let unit =
        fields.require("unit", "write second, minute, hour, day, week, month or year", report);
    let window = unit.and_then(|item| unit_window(&item, report));
    let remedy = "write how many requests, or unlimited: true";
    let amount = fields.require("requests_per_unit", remedy, report);
    let amount = amount.and_then(|item| scalar::whole(&item, report, 0..=u64::from(u32::MAX)));
    let window = window?;
    let limit =
        Amount::new(amount?).map_or(Requests::None, |amount| Requests::Rate(amount, window));
    Some(Given { limit, name, replaces })
}

fn replaced(item: &Item<'_>, report: &mut Report) -> Vec<String> {
    let form = "write a list such as [{name: other}]";
    let mut names = Vec::new();
    for item in item.list(report, form).unwrap_or_default() {
        let Some(fields) = Fields::open(item, &["name"], report) else { continue };
        let name = fields.require("name", "write the name of another rate_limit", report);
        names.extend(name.and_then(|item| scalar::text(&item, report)));
    }
    names
}

fn unit_window(item: &Item<'_>, report: &mut Report) -> Option<Window> {
    const DAY: u64 = 86_400;
    let text = item.scalar(report, "write a unit, such as minute")?.text();
    // In either case, and with the lengths that envoyproxy/ratelimit gives them.
    let seconds = match text.to_ascii_lowercase().as_str() {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => DAY,
        "week" => 7 * DAY,
        "month" => 30 * DAY,
        "year" => 365 * DAY,
        _ => {
            let remedy = "write second, minute, hour, day, week, month or year";
            item.fail(report, "is not a unit of time", remedy);
            return None;
        }
    };
    Window::new(Span::from_secs(seconds))
}

/// No limit replaces itself. One that replaces a limit that does not exist replaces nothing, as in
/// envoyproxy/ratelimit, where the other may be in a file that is not there yet.
fn check_replaces(branches: &[Branch], item: &Item<'_>, report: &mut Report) {
    let mut limits = Vec::new();
    collect(branches, &mut limits);
    for limit in &limits {
        for name in limit.replaces.iter().filter(|&name| limit.name.as_ref() == Some(name)) {
            let message = format!("replaces: {name:?} is the name of the limit itself");
            item.fail(report, message, "write the name of another rate_limit");
        }
    }
}

fn collect<'b>(branches: &'b [Branch], limits: &mut Vec<&'b Given>) {
    for branch in branches {
        limits.extend(&branch.limit);
        collect(&branch.branches, limits);
    }
}
