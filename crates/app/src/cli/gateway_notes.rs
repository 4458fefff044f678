//! Notes about gateways: rules that do not apply to their requests, or not to all of them, and requests that
//! wait for longer than a shutdown lasts.

use sluicegate_config::{
    CALLER, Config, GatewayOptions, ROUTE, RouteOptions, ServerOptions, WaitOptions,
};
use sluicegate_core::Rule;
use sluicegate_core::ruleset::is_set_for_callers;

/// Returns a note for each gateway and rule that never applies to its requests, for each header that a
/// request can leave out to bypass limits, and for each gateway whose requests may wait longer than a
/// shutdown lasts.
pub(super) fn gateway_notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    let defaults = (WaitOptions::MAX, ServerOptions::default().shutdown_grace);
    for gateway in &config.gateways {
        let name = &gateway.name;
        // Other values than the defaults are in the file, so there is a warning.
        let wait_max = |route: &RouteOptions| {
            let is_default = (route.wait.max, config.server.shutdown_grace) == defaults;
            let max = route.deadline.map_or(route.wait.max, |total| total.min(route.wait.max));
            (is_default && !route.limits.is_empty() && max > defaults.1).then_some(max)
        };
        if let Some(max) = gateway.routes.iter().filter_map(wait_max).max() {
            let grace = defaults.1;
            notes.push(format!(
                "gateway {name}: requests wait up to {max}, and a shutdown lasts {grace}: those that \
                 still wait then get 503; to serve them, raise server.shutdown_grace"
            ));
        }
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
    let rules = config.stated_groups().iter().flat_map(|group| &group.rules);
    let rules = rules.filter(|rule| !rule.dimensions().any(is_set_for_callers));
    let without_effect = |rule: &Rule| {
        let mut missing: Vec<_> =
            rule.dimensions().filter(|dimension| !provides(gateway, dimension)).collect();
        missing.sort_unstable();
        missing.dedup();
        (!missing.is_empty()).then(|| (rule.name.clone(), missing.join(" and no ")))
    };
    rules.filter_map(without_effect).collect()
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

/// Returns true if the default rule applies to nothing that the file configures: the file has
/// gateways or jobs, and no gateway provides the dimensions of the rule.
pub(super) fn has_idle_default_rule(config: &Config) -> bool {
    let rules = || config.default_groups().iter().flat_map(|group| &group.rules);
    let has_parts =
        !config.gateways.is_empty() || config.dispatch.is_some() || !config.workers.is_empty();
    let applies = |gateway: &GatewayOptions| {
        rules().any(|rule| rule.dimensions().all(|dimension| provides(gateway, dimension)))
    };
    rules().next().is_some() && has_parts && !config.gateways.iter().any(applies)
}

/// Returns a note about an idle default rule: the listeners for callers still apply it.
pub(super) fn default_rule_note(config: &Config) -> Option<String> {
    if !has_idle_default_rule(config) {
        return None;
    }
    let rule = config.default_groups().iter().flat_map(|group| &group.rules).next()?;
    let limits: Vec<_> = rule.limits.iter().map(ToString::to_string).collect();
    let parts = [
        ("gateway", !config.gateways.is_empty()),
        ("dispatch", config.dispatch.is_some()),
        ("worker", !config.workers.is_empty()),
    ];
    let parts: Vec<_> = parts.into_iter().filter_map(|(part, runs)| runs.then_some(part)).collect();
    Some(format!(
        "the file has no section limits, so requests to listen.http and listen.grpc get the default \
         rule {} ({} per {}); `sluicegate serve --only {}` runs without these listeners",
        rule.name,
        limits.join(", "),
        rule.per.join(" and "),
        parts.join(",")
    ))
}

fn provides(gateway: &GatewayOptions, dimension: &str) -> bool {
    dimension == CALLER || gateway.dimensions.contains_key(dimension)
}
