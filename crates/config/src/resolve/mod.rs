//! What the tree means. Every part reads its own keys and reports all that is wrong with them; a
//! part that is wrong stands in with its default, so that the others can be checked too.

mod advice;
mod auth;
mod compile;
mod dimensions;
mod item;
mod limits;
mod listen;
mod never;
mod outage;
mod prices;
mod redis;
mod rule;
mod scalar;
mod service;
mod store;
mod wording;

use std::collections::HashMap;

use sluicegate_core::ruleset::Settings;
use sluicegate_core::{Group, Ruleset};

use crate::config::{Config, RuleExtras, Store};
use crate::place::Path;
use crate::raw::{Node, Value};
use crate::report::Report;
use item::{Fields, Item};
use limits::DraftGroup;

const KNOWN: [&str; 12] = [
    "enabled",
    "listen",
    "auth",
    "store",
    "dimensions",
    "outage",
    "limits",
    "booking",
    "prices",
    "log",
    "metrics",
    "server",
];
/// Other parts of the product, which read the same file.
const ELSEWHERE: [&str; 4] = ["gateways", "queue", "dispatch", "workers"];

/// The configuration, which is of use only if nothing was reported.
pub(crate) fn config(root: &Node, report: &mut Report) -> Option<Config> {
    let empty = Node { at: root.at, value: Value::Map(Vec::new()) };
    let is_nothing = matches!(&root.value, Value::Scalar(scalar) if scalar.is_null());
    let node = if is_nothing { &empty } else { root };
    let item = Item { node, path: Path::default() };
    let fields = Fields::open_besides(item, &KNOWN, &ELSEWHERE, report)?;
    let part = |key: &str| fields.get(key);

    let auth = part("auth").map(|item| auth::auth(item, report)).unwrap_or_default();
    let authenticated = !auth.tokens.is_empty();
    let listen = listen::listen(part("listen"), authenticated, report);
    let store = part("store").map(|item| store::store(item, report)).unwrap_or_default();
    let dimensions = part("dimensions").map(|item| dimensions::dimensions(&item, report));
    let mut dimensions = dimensions.unwrap_or_default();
    let mut settings = Settings::default();
    if let Some(item) = part("outage") {
        settings.outage = outage::outage(item, report);
    }
    if let Store::Redis(redis) = &store {
        settings.partition.clone_from(&redis.partition);
        settings.outage.nodes_max = redis.nodes_max;
    }
    if let Some(item) = part("booking") {
        service::booking(item, &mut settings, report);
    }
    let drafts = part("limits").map(|item| limits::limits(&item, report));
    if drafts.is_none() {
        dimensions.require_for_default_rule(&default_dimensions(), report);
    }
    settings.required.clone_from(&dimensions.required);
    settings.secret.extend(dimensions.secret.iter().filter(|&name| name != "apiKey").cloned());
    if let Some(drafts) = &drafts {
        compile::check(drafts, &settings, report);
        never::check(drafts, &settings.required, report);
        let partition = part("store").and_then(|item| limits::option(&item, "partition"));
        let (dimensions, outage, store) = (&dimensions, &settings.outage, &store);
        let context = advice::Context { dimensions, outage, store, partition };
        advice::advise(drafts, &context, report);
    }
    let extras = drafts.as_deref().map(extras).unwrap_or_default();
    let groups = drafts.map(|drafts| drafts.iter().map(DraftGroup::group).collect());
    Some(Config {
        enabled: fields.read("enabled", true, report, scalar::boolean),
        listen,
        auth,
        store,
        prices: part("prices").map(|item| prices::prices(&item, report)).unwrap_or_default(),
        log: part("log").map(|item| service::log(item, report)).unwrap_or_default(),
        metrics: part("metrics").map(|item| service::metrics(item, report)).unwrap_or_default(),
        server: part("server").map(|item| service::server(item, report)).unwrap_or_default(),
        groups: groups.unwrap_or_else(default_groups),
        settings,
        extras,
    })
}

/// What the file says of its rules besides the rules.
fn extras(groups: &[DraftGroup<'_>]) -> HashMap<String, RuleExtras> {
    let drafts = groups.iter().flat_map(|group| &group.rules);
    drafts
        .filter(|draft| draft.extras != RuleExtras::default())
        .map(|draft| (draft.rule.name.clone(), draft.extras.clone()))
        .collect()
}

/// What applies where a file has no limits.
fn default_groups() -> Vec<Group> {
    let default = Ruleset::default_rules();
    default.groups().map(|(name, rules)| Group::new(name, rules.cloned())).collect()
}

fn default_dimensions() -> Vec<String> {
    default_groups().into_iter().flat_map(|group| group.rules).flat_map(|rule| rule.per).collect()
}
