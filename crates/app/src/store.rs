//! Builds the store that the configuration names, and reads its state for probes and metrics.

use sluicegate_config::{Config, RedisStore, RedisWorkload};
use sluicegate_core::Ruleset;
use sluicegate_http::probe::Readiness;
use sluicegate_store::memory::Capacity;
use sluicegate_store::redis::{ConnectionState, Options, RetryPolicy};
use sluicegate_store::{AnyStore, Redis};

use crate::wire::Role;

/// Capacity of the in-memory fallback during an outage: at most 20 MB.
pub(crate) const FALLBACK: Capacity = Capacity { keys_max: 200_000, records_max: 20_000 };

/// Creates the Redis store. It connects in the background and reconnects when needed.
pub(crate) fn redis(config: &RedisStore, workload: RedisWorkload) -> Redis {
    let timeouts = config.timeouts(workload);
    Redis::new(Options {
        topology: config.topology.clone(),
        key_prefix: config.key_prefix.clone(),
        retry: RetryPolicy {
            timeout: timeouts.timeout.into(),
            retries: config.retries,
            deadline: timeouts.deadline.into(),
        },
        deny_cache: config.deny_cache.into(),
        connections_max: config.connections_max.map(|most| most as usize),
        on_loss: config.on_loss,
    })
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
