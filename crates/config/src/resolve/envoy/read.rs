//! Parses the descriptors of envoyproxy/ratelimit into a tree.

use std::collections::HashMap;

use sluicegate_core::Span;
use sluicegate_core::limit::{Amount, Window};

use super::super::item::{Fields, Item};
use super::super::scalar;
use crate::report::Report;

/// Maximum nesting depth of descriptors.
const DEPTH_MAX: usize = 30;

/// A domain with its descriptors.
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) descriptors: Vec<Descriptor>,
}

/// A descriptor and the descriptors nested in it.
pub(super) struct Descriptor {
    pub(super) key: String,
    pub(super) value: ValuePattern,
    /// True if all matching values share one counter.
    pub(super) shared: bool,
    pub(super) limit: Option<DescriptorLimit>,
    pub(super) shadow: bool,
    /// True if it denies only when every quota of a request is used up.
    pub(super) quota: bool,
    pub(super) descriptors: Vec<Descriptor>,
}

/// The values that a descriptor matches, the most specific first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ValuePattern {
    Exactly(String),
    /// Values that match this pattern, in which `*` stands for any text.
    Like(String),
    Any,
}

/// The limit of a descriptor.
pub(super) struct DescriptorLimit {
    pub(super) limit: RequestLimit,
    /// Name of the limit, for `replaces`.
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<String>,
}

/// The number of requests that a descriptor allows.
pub(super) enum RequestLimit {
    Unlimited,
    /// `requests_per_unit: 0`, which denies everything.
    None,
    Rate(Amount, Window),
}

pub(super) fn domain(item: &Item<'_>, report: &mut Report) -> Option<Domain> {
    let fields = Fields::open(item.clone(), &super::FILE, report)?;
    let name = fields.require("domain", "write the domain that Envoy sends", report)?;
    let name = scalar::text(&name, report)?;
    let descriptors = descriptors(&fields, 1, report);
    check_replaces(&descriptors, item, report);
    Some(Domain { name, descriptors })
}

fn descriptors(fields: &Fields<'_>, depth: usize, report: &mut Report) -> Vec<Descriptor> {
    let Some(item) = fields.get("descriptors") else { return Vec::new() };
    if depth > DEPTH_MAX {
        item.fail(report, format!("nested more than {DEPTH_MAX} levels deep"), "use fewer keys");
        return Vec::new();
    }
    let items = item.list(report, "write a list of descriptors, each with a key");
    let mut seen: HashMap<(String, ValuePattern), usize> = HashMap::new();
    let mut descriptors = Vec::new();
    for item in items.unwrap_or_default() {
        let Some(descriptor) = descriptor(&item, depth, report) else { continue };
        let pair = (descriptor.key.clone(), descriptor.value.clone());
        if let Some(first) = seen.insert(pair, item.node.at.line) {
            let message = format!("duplicate descriptor: same key and value as on line {first}");
            item.fail(report, message, "remove one of them");
        }
        descriptors.push(descriptor);
    }
    descriptors
}

fn descriptor(item: &Item<'_>, depth: usize, report: &mut Report) -> Option<Descriptor> {
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
    let value = fields.get("value").map_or(Some(ValuePattern::Any), |item| value(&item, report));
    let limit = fields.get("rate_limit").and_then(|item| given(&item, report));
    let shadow = fields.read("shadow_mode", false, report, scalar::boolean);
    let shared = fields.read("share_threshold", false, report, scalar::boolean);
    let quota = fields.read("quota_mode", false, report, scalar::boolean);
    // envoyproxy/ratelimit returns `metadata` only on request, and we don't. The labels of metrics
    // are not a matter of rules here; their number is bounded anyway.
    for ignored in ["detailed_metric", "value_to_metric"] {
        fields.read(ignored, false, report, scalar::boolean);
    }
    let descriptors = descriptors(&fields, depth + 1, report);
    Some(Descriptor { key: key?, value: value?, shared, limit, shadow, quota, descriptors })
}

fn value(item: &Item<'_>, report: &mut Report) -> Option<ValuePattern> {
    let text = item.scalar(report, "write a text")?.text();
    Some(match text {
        "" => ValuePattern::Any,
        text if text.contains('*') => ValuePattern::Like(text.to_owned()),
        text => ValuePattern::Exactly(text.to_owned()),
    })
}

fn given(item: &Item<'_>, report: &mut Report) -> Option<DescriptorLimit> {
    let known = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
    let fields = Fields::open(item.clone(), &known, report)?;
    let unlimited = fields.read("unlimited", false, report, scalar::boolean);
    let name = fields.read_some("name", report, scalar::text);
    let replaces = fields.get("replaces").map(|item| replaced(&item, report));
    let replaces = replaces.unwrap_or_default();
    if unlimited {
        for item in ["unit", "requests_per_unit"].into_iter().filter_map(|key| fields.get(key)) {
            item.fail(report, "not allowed with unlimited: true", "remove one of the two");
        }
        return Some(DescriptorLimit { limit: RequestLimit::Unlimited, name, replaces });
    }
    let unit =
        fields.require("unit", "write second, minute, hour, day, week, month or year", report);
    let window = unit.and_then(|item| unit_window(&item, report));
    let remedy = "write the number of requests, or unlimited: true";
    let amount = fields.require("requests_per_unit", remedy, report);
    let amount = amount.and_then(|item| scalar::whole(&item, report, 0..=u64::from(u32::MAX)));
    let window = window?;
    let limit = Amount::new(amount?)
        .map_or(RequestLimit::None, |amount| RequestLimit::Rate(amount, window));
    Some(DescriptorLimit { limit, name, replaces })
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
    // Case-insensitive, and with the lengths that envoyproxy/ratelimit uses.
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
            item.fail(report, "unknown unit of time", remedy);
            return None;
        }
    };
    Window::new(Span::from_secs(seconds))
}

/// Reports a limit that replaces itself. One that replaces an unknown limit replaces nothing, as in
/// envoyproxy/ratelimit, where the other limit may be in a file that is not loaded yet.
fn check_replaces(descriptors: &[Descriptor], item: &Item<'_>, report: &mut Report) {
    let mut limits = Vec::new();
    collect(descriptors, &mut limits);
    for limit in &limits {
        for name in limit.replaces.iter().filter(|&name| limit.name.as_ref() == Some(name)) {
            let message = format!("replaces: {name:?} is the name of the same limit");
            item.fail(report, message, "write the name of another rate_limit");
        }
    }
}

fn collect<'b>(descriptors: &'b [Descriptor], limits: &mut Vec<&'b DescriptorLimit>) {
    for descriptor in descriptors {
        limits.extend(&descriptor.limit);
        collect(&descriptor.descriptors, limits);
    }
}
