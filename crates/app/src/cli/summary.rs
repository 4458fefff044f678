//! The part of `sluicegate check`'s output below the rules: required dimensions, the store, and
//! the policy that applies while the store is down.

use sluicegate_config::{Config, RedisTopology, Sentinels, StoreOptions};
use sluicegate_core::limit::Unit;
use sluicegate_core::ruleset::{Bypass, bypassed, is_set_for_callers};

use super::gateway_notes::has_idle_default_rule;

/// Returns the facts of the summary, each with its name and its lines.
pub(super) fn facts(config: &Config) -> [(&'static str, Vec<String>); 3] {
    [
        ("required", required(config)),
        ("store", vec![store(&config.store)]),
        ("outage", vec![outage(config)]),
    ]
}

/// Formats the summary, one line per fact.
pub(super) fn summary(config: &Config) -> String {
    let lines = facts(config).into_iter().flat_map(|(name, texts)| {
        let named = texts.into_iter().enumerate();
        named.map(move |(n, text)| format!("{:<10}{text}", if n == 0 { name } else { "" }))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Lists the dimensions that a request must have, and the groups that it bypasses without them.
fn required(config: &Config) -> Vec<String> {
    let settings = config.settings();
    if !config.enabled {
        return vec!["none: limits are disabled".to_owned()];
    }
    let mut always: Vec<&str> = settings.required.iter().map(String::as_str).collect();
    for name in settings.needs.iter().flat_map(|need| need.in_every_set()) {
        if !always.contains(&name) {
            always.push(name);
        }
    }
    let mut lines = vec![match always.as_slice() {
        [] => "none".to_owned(),
        names if has_idle_default_rule(config) => {
            format!("{} of requests to listen.http and listen.grpc", names.join(", "))
        }
        names => names.join(", "),
    }];
    let met = |set: &Vec<String>| set.iter().all(|name| always.contains(&name.as_str()));
    for need in settings.needs.iter().filter(|need| !need.sets.iter().any(met)) {
        lines.push(format!("{need} (group {})", need.group));
    }
    let unnamed = ["userId", "modelId"].into_iter().filter(|name| !always.contains(name));
    let unnamed: Vec<_> = unnamed.collect();
    if !unnamed.is_empty() {
        let names = unnamed.join(" and ");
        lines.push(format!("{names} on POST /rate-limit/allow and gRPC Allow"));
    }
    for Bypass { group, dimensions, each } in bypassed(config.groups(), &settings.optional) {
        let names = dimensions.join(if each { " or " } else { " and " });
        lines.push(format!("optional: a request without {names} bypasses group {group}"));
    }
    lines
}

/// Returns notes for callers of `POST /rate-limit/allow` and gRPC `Allow`: these calls carry no
/// cost, so some rules need a settle or release call afterwards.
pub(super) fn notes(config: &Config) -> Vec<String> {
    let limits = |unit: fn(Unit) -> bool| {
        let rules = config.groups().iter().flat_map(|group| &group.rules);
        let asked = rules.filter(|rule| !rule.dimensions().any(is_set_for_callers));
        let limiting = asked.filter(|rule| rule.limits.iter().any(|limit| unit(limit.unit())));
        limiting.map(|rule| rule.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let costs = limits(|unit| !matches!(unit, Unit::Requests | Unit::Slots));
    let slots = limits(|unit| unit == Unit::Slots);
    let mut notes = Vec::new();
    let callers = "callers of POST /rate-limit/allow and gRPC Allow";
    if !costs.is_empty() {
        notes.push(format!(
            "{costs}: {callers} send no cost, so nothing is charged until they settle the \
             returned handle (POST /v1/settle, within 5min), and requests in flight can exceed the \
             limit: use POST /v1/acquire, which accepts an estimate"
        ));
    }
    if !slots.is_empty() {
        notes.push(format!(
            "{slots}: {callers} hold a slot until they release the returned handle (POST \
             /v1/release), or until its lease expires"
        ));
    }
    notes
}

/// Describes the store. Omits addresses: one may contain a password in the wrong place.
fn store(store: &StoreOptions) -> String {
    match store {
        StoreOptions::Memory { keys_max, snapshot, .. } => {
            let kept = if snapshot.is_some() { ", with a snapshot" } else { "" };
            format!("memory of this process, at most {keys_max} counters{kept}")
        }
        StoreOptions::Redis(redis) => {
            let topology = match &redis.topology {
                RedisTopology::Single(_) => "single server".to_owned(),
                RedisTopology::Cluster(nodes) => format!("cluster ({} seed nodes)", nodes.len()),
                RedisTopology::Sentinel(Sentinels { nodes, .. }) => {
                    format!("{} sentinels", nodes.len())
                }
            };
            format!("Redis, {topology}, shared by at most {} nodes", redis.nodes_max)
        }
    }
}

/// Describes the outage policies, which decide while the store does not respond.
fn outage(config: &Config) -> String {
    if matches!(config.store, StoreOptions::Memory { .. }) {
        return "not possible: the store is the memory of this process".to_owned();
    }
    let outage = &config.settings().outage;
    let by_type = outage.by_client_type.iter();
    let by_type = by_type.map(|(kind, policy)| format!(", clientType {kind}: {}", policy.word()));
    let rules = config.groups().iter().flat_map(|group| &group.rules);
    let by_rule =
        rules.filter_map(|rule| Some(format!(", rule {}: {}", rule.name, rule.outage?.word())));
    let all: String = by_type.chain(by_rule).collect();
    format!("{}{all}", outage.default.word())
}
