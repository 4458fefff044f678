//! Lists the options that need a restart: a reload that changes one of them is rejected.

use sluicegate_config::{Config, Dispatch, GatewayOptions, WorkerOptions};

use crate::wire::Role;

/// Returns the names of the options that differ between two configurations and need a restart.
/// Sections that this process does not run are not compared.
pub(crate) fn required_by(before: &Config, after: &Config, roles: &[Role]) -> Vec<String> {
    let mut changed = ChangedOptions(Vec::new());
    changed.option("listen.admin", &before.listen.admin, &after.listen.admin);
    if roles.contains(&Role::Limiter) {
        changed.option("listen.http", &before.listen.http, &after.listen.http);
        changed.option("listen.grpc", &before.listen.grpc, &after.listen.grpc);
        changed.option("envoy.headers", &before.envoy.headers, &after.envoy.headers);
        changed.option("envoy.closed", &before.envoy.closed, &after.envoy.closed);
    }
    changed.option("store", &before.store, &after.store);
    changed.server(before, after);
    changed.option("log.level", &before.log.level, &after.log.level);
    changed.option("log.format", &before.log.format, &after.log.format);
    changed.option("log.decisions", &before.log.decisions, &after.log.decisions);
    changed.metrics(before, after);
    changed.option("traces", &before.traces, &after.traces);
    // The decision log and the metrics read the list of secret dimensions only at the start.
    let secret = |config: &Config| {
        let mut names = config.settings().secret.clone();
        names.sort();
        (names, config.settings().hash_key)
    };
    changed.option("dimensions (secret)", &secret(before), &secret(after));
    if roles.contains(&Role::Gateway) {
        changed.gateways(&before.gateways, &after.gateways);
    }
    let (dispatches, works) = (roles.contains(&Role::Dispatch), roles.contains(&Role::Worker));
    if dispatches {
        let fixed = |config: &Config| config.dispatch.as_ref().map(fixed_of_dispatch);
        changed.option("dispatch", &fixed(before), &fixed(after));
    }
    if works {
        changed.workers(&before.workers, &after.workers);
    }
    let clients = roles.contains(&Role::Limiter);
    if clients || dispatches && before.dispatch.is_some() || works && !before.workers.is_empty() {
        changed.option("queue", &before.queue, &after.queue);
    }
    changed.0
}

/// Names of the options that differ.
struct ChangedOptions(Vec<String>);

impl ChangedOptions {
    fn option<T: PartialEq>(&mut self, name: &str, before: &T, after: &T) {
        if before != after {
            self.0.push(name.to_owned());
        }
    }

    fn server(&mut self, before: &Config, after: &Config) {
        let (before, after) = (&before.server, &after.server);
        self.option("server.connections_max", &before.connections_max, &after.connections_max);
        self.option("server.header_timeout", &before.header_timeout, &after.header_timeout);
        self.option("server.body_limit", &before.body_limit, &after.body_limit);
        self.option("server.shutdown_grace", &before.shutdown_grace, &after.shutdown_grace);
        self.option("server.drain_timeout", &before.drain_timeout, &after.drain_timeout);
    }

    fn metrics(&mut self, before: &Config, after: &Config) {
        let (before, after) = (&before.metrics, &after.metrics);
        self.option("metrics.label_values_max", &before.label_values_max, &after.label_values_max);
        self.option("metrics.statsd", &before.statsd, &after.statsd);
    }

    /// Compares gateways. All their options but `listen` can be reloaded.
    fn gateways(&mut self, before: &[GatewayOptions], after: &[GatewayOptions]) {
        for (number, gateway) in after.iter().enumerate() {
            match before.iter().find(|other| other.name == gateway.name) {
                None => self.0.push(format!("gateways[{number}] ({}: added)", gateway.name)),
                Some(other) => {
                    let name = format!("gateways[{number}].listen");
                    self.option(&name, &other.listen, &gateway.listen);
                }
            }
        }
        for gateway in before.iter().filter(|old| after.iter().all(|new| new.name != old.name)) {
            self.0.push(format!("gateways ({}: removed)", gateway.name));
        }
    }

    fn workers(&mut self, before: &[WorkerOptions], after: &[WorkerOptions]) {
        if before.len() != after.len() {
            self.0.push("workers".to_owned());
            return;
        }
        for (number, (old, new)) in before.iter().zip(after).enumerate() {
            let name = format!("workers[{number}]");
            self.option(&name, &fixed_of_worker(old), &fixed_of_worker(new));
        }
    }
}

/// Returns the options of a dispatcher without those that a reload applies: `enabled` and limits.
fn fixed_of_dispatch(dispatch: &Dispatch) -> Dispatch {
    let mut fixed = Dispatch { enabled: true, ..dispatch.clone() };
    for provider in &mut fixed.providers {
        provider.limits.clear();
    }
    fixed
}

/// Returns the options of a worker without those that a reload applies: `enabled` and limits.
fn fixed_of_worker(worker: &WorkerOptions) -> WorkerOptions {
    WorkerOptions { enabled: true, limits: Vec::new(), ..worker.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let loaded = sluicegate_config::load("test", text, &|_| None);
        loaded.unwrap_or_else(|errors| panic!("{errors}")).config
    }

    fn check(before: &str, after: &str, expected: &[&str]) {
        let found = required_by(&config(before), &config(after), &Role::ALL);
        assert_eq!(found, expected, "{before} → {after}");
    }

    const GATEWAY: &str = "gateways: [{name: a, listen: '127.0.0.1:7000', routes: [{path: /, \
                           upstream: 'http://a', limit: 5/s}]}]";
    const DISPATCH: &str = "dispatch: {source: jobs, providers: {p: {limit: 5/s}}}";

    #[test]
    fn every_option_that_needs_a_restart_is_named() {
        check("", "listen: {http: '127.0.0.1:1'}", &["listen.http"]);
        check(
            "",
            "listen: {grpc: '127.0.0.1:1', admin: '127.0.0.1:2'}",
            &["listen.admin", "listen.grpc"],
        );
        check("", "store: {kind: memory, keys_max: 5000}", &["store"]);
        check("", "server: {body_limit: 1MB}", &["server.body_limit"]);
        check(
            "",
            "log: {level: debug, decisions: {allowed: 0.5}}",
            &["log.level", "log.decisions"],
        );
        check("", "metrics: {label_values_max: 7}", &["metrics.label_values_max"]);
        check("", "traces: {endpoint: 'http://127.0.0.1:4318'}", &["traces"]);
        check("", "envoy: {headers: false}", &["envoy.headers"]);
        check("", "dimensions: {ssn: secret}", &["dimensions (secret)"]);
        check("", GATEWAY, &["gateways[0] (a: added)"]);
        check(GATEWAY, "", &["gateways (a: removed)"]);
        check(GATEWAY, &GATEWAY.replace("7000", "7001"), &["gateways[0].listen"]);
        check("", DISPATCH, &["dispatch"]);
        check(DISPATCH, &DISPATCH.replace("jobs", "others"), &["dispatch"]);
    }

    #[test]
    fn options_that_a_reload_applies_need_no_restart() {
        for (before, after) in [
            ("", "limits: [{name: g, rules: [{name: R, per: [], limit: 5/s}]}]".to_owned()),
            ("", "enabled: false".to_owned()),
            ("", "auth: {tokens: {ci: 0123456789abcdef}}".to_owned()),
            (GATEWAY, GATEWAY.replace("5/s", "6/s")),
            (DISPATCH, DISPATCH.replace("5/s", "6/s")),
            (DISPATCH, DISPATCH.replace("source", "enabled: false, source")),
        ] {
            check(before, &after, &[]);
        }
    }

    #[test]
    fn roles_that_do_not_run_here_are_not_compared() {
        let (before, after) = (config(""), config(GATEWAY));
        assert_eq!(required_by(&before, &after, &[Role::Limiter]), [] as [&str; 0]);
    }
}
