//! Notes about rules that do not apply to requests through gateways, or not to all of them.

use sluicegate_config::{CALLER, Config, GatewayOptions, ROUTE};
use sluicegate_core::ruleset::is_set_for_callers;
use sluicegate_core::{Rule, Ruleset};

/// Returns a note for each gateway and rule that never applies to its requests, and for each header
/// that a request can leave out to bypass limits.
pub(super) fn gateway_notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    for gateway in &config.gateways {
        let name = &gateway.name;
        for (rule, missing) in rules_without_effect(config, gateway) {
            notes.push(format!(
                "gateway {name}: {rule} never applies, because the gateway provides no {missing}"
            ));
        }
        for (dimension, of) in gateway.dimensions.iter().filter(|(_, of)| !of.required) {
            let bypassed = rules_by(config, gateway, dimension);
            if !bypassed.is_empty() {
                notes.push(format!(
                    "gateway {name}: a request without the header {} bypasses {}; to refuse it, \
                     write {dimension}: {{header: {0}, required: true}}",
                    of.header,
                    bypassed.join(", ")
                ));
            }
        }
    }
    notes
}

/// Returns the names of rules that apply to no request through any gateway.
pub(super) fn rules_for_no_gateway(config: &Config) -> Vec<String> {
    let mut gateways = config.gateways.iter();
    let Some(first) = gateways.next() else { return Vec::new() };
    let mut found: Vec<_> =
        rules_without_effect(config, first).into_iter().map(|(rule, _)| rule).collect();
    for gateway in gateways {
        let others = rules_without_effect(config, gateway);
        found.retain(|rule| others.iter().any(|(other, _)| other == rule));
    }
    found
}

/// Returns the rules of the file that never apply to requests through a gateway, each with the
/// dimensions that the gateway does not provide.
fn rules_without_effect(config: &Config, gateway: &GatewayOptions) -> Vec<(String, String)> {
    let default = Ruleset::default_rules();
    let is_default = |rule: &Rule| {
        let mut rules = default.groups().flat_map(|(_, rules)| rules);
        rules.any(|other| other == rule)
    };
    let rules = config.groups().iter().flat_map(|group| &group.rules);
    let rules = rules.filter(|rule| !rule.dimensions().any(is_set_for_callers));
    let without_effect = |rule: &Rule| {
        let mut missing: Vec<_> =
            rule.dimensions().filter(|dimension| !provides(gateway, dimension)).collect();
        missing.sort_unstable();
        missing.dedup();
        (!missing.is_empty()).then(|| (rule.name.clone(), missing.join(" and no ")))
    };
    rules.filter(|rule| !is_default(rule)).filter_map(without_effect).collect()
}

/// Returns the names of the rules that apply to requests through a gateway only if these have a
/// dimension.
fn rules_by<'c>(config: &'c Config, gateway: &GatewayOptions, dimension: &str) -> Vec<&'c str> {
    let is_route_of_gateway = |rule: &Rule| {
        let of_route = |(name, pattern): &(String, _)| {
            let pattern: &sluicegate_core::rule::Pattern = pattern;
            let is_matched = |route| pattern.matches(&gateway.route_key(route));
            name == ROUTE && gateway.routes.iter().any(is_matched)
        };
        rule.when.iter().any(of_route)
    };
    let applies = |rule: &&Rule| {
        let mut dimensions = rule.dimensions();
        rule.dimensions().any(|other| other == dimension)
            && dimensions.all(|other| {
                provides(gateway, other) || other == ROUTE && is_route_of_gateway(rule)
            })
    };
    let rules = config.groups().iter().flat_map(|group| &group.rules);
    rules.filter(applies).map(|rule| rule.name.as_str()).collect()
}

fn provides(gateway: &GatewayOptions, dimension: &str) -> bool {
    dimension == CALLER || gateway.dimensions.contains_key(dimension)
}
