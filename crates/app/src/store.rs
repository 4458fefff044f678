//! Reads the state of the store for probes and metrics, determines the workload of a process on it,
//! and logs which store is used.

use sluicegate_config::{Config, RedisEndpoint, RedisTopology, RedisWorkload, StoreOptions};
use sluicegate_core::Ruleset;
use sluicegate_http::probe::Readiness;
use sluicegate_store::AnyStore;
use sluicegate_store::redis::ConnectionState;
use tracing::info;

use crate::wire::Role;

/// Logs which store is used, and why.
pub(crate) fn log_selected(config: &Config) {
    let reason = config.store_reason;
    match &config.store {
        StoreOptions::Memory { .. } => info!(store = "memory", reason, "store selected"),
        StoreOptions::Redis(redis) => {
            let (topology, servers) = match &redis.topology {
                RedisTopology::Single(server) => {
                    ("single", addresses(std::slice::from_ref(server)))
                }
                RedisTopology::Cluster(servers) => ("cluster", addresses(servers)),
                RedisTopology::Sentinel(sentinels) => ("sentinel", addresses(&sentinels.nodes)),
            };
            info!(store = "redis", topology, servers, reason, "store selected");
        }
    }
}

/// Joins the addresses of servers, without their logins.
fn addresses(servers: &[RedisEndpoint]) -> String {
    let address = |server: &RedisEndpoint| match server.host.contains(':') {
        true => format!("[{}]:{}", server.host, server.port),
        false => format!("{}:{}", server.host, server.port),
    };
    servers.iter().map(address).collect::<Vec<_>>().join(", ")
}

/// Returns the kind of load that a process with these roles puts on the store.
pub(crate) fn workload(config: &Config, roles: &[Role]) -> RedisWorkload {
    let dispatches = roles.contains(&Role::Dispatch) && config.dispatch.is_some();
    let works = roles.contains(&Role::Worker) && !config.workers.is_empty();
    if dispatches || works { RedisWorkload::Jobs } else { RedisWorkload::Requests }
}

/// Reason in probes of a process that is about to stop.
pub(crate) const SHUTTING_DOWN: &str = "shutting_down";

/// Returns the readiness for probes: the store responds, or an outage policy of the rules decides
/// in its place.
pub(crate) fn readiness(store: &AnyStore, rules: &Ruleset) -> Readiness {
    readiness_if(store, rules.admits_during_outage())
}

/// Returns the readiness; `answers_alone` is true if an outage policy decides without the store.
pub(crate) fn readiness_if(store: &AnyStore, answers_alone: bool) -> Readiness {
    let AnyStore::Redis(redis) = store else { return Readiness::Ready };
    let reason = match redis.refusal() {
        Some(refusal) => refusal.name(),
        None if redis.state() == ConnectionState::Up => return Readiness::Ready,
        None => "redis",
    };
    if answers_alone { Readiness::Degraded(reason) } else { Readiness::Unhealthy(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dispatchers_and_workers_use_the_timeouts_of_jobs() {
        let worker = "workers: [{provider: p, queue: q, handler: {command: [cat]}}]\n";
        let dispatch = "dispatch: {source: raw, providers: {p: {limit: 5/s}}}\n";
        for (text, roles, expected) in [
            ("", &Role::ALL[..], RedisWorkload::Requests),
            ("workers: []\n", &Role::ALL, RedisWorkload::Requests),
            (worker, &Role::ALL, RedisWorkload::Jobs),
            (worker, &[Role::Worker], RedisWorkload::Jobs),
            (worker, &[Role::Limiter, Role::Gateway, Role::Dispatch], RedisWorkload::Requests),
            (dispatch, &[Role::Limiter, Role::Dispatch], RedisWorkload::Jobs),
            (dispatch, &[Role::Gateway, Role::Worker], RedisWorkload::Requests),
        ] {
            let loaded = sluicegate_config::load("test", text, &|_| None).expect(text);
            assert_eq!(workload(&loaded.config, roles), expected, "{text} {roles:?}");
        }
    }
}
