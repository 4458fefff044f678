//! The store that the configuration chose.

use std::sync::Arc;

use sluicegate_config::{Asking, Config, OnLoss, RedisAddress, RedisStore, RedisTopology};
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Attempt, Claim, Ended, Error, Renewed, Shut, Usage};
use sluicegate_core::{Decision, Id, Plan, Ruleset, Span, Store, Timestamp};
use sluicegate_server::metrics::{RedisCalls, RedisStats};
use sluicegate_server::probe::Readiness;
use sluicegate_store::memory::Capacity;
use sluicegate_store::redis::{
    self, Counted, Options, Patience, Sentinels, Server, State, Topology,
};
use sluicegate_store::{Memory, Redis};

use crate::wire::Part;

/// What a node remembers of an outage, in at most 20 MB.
pub(crate) const FALLBACK: Capacity = Capacity { keys_max: 200_000, records_max: 20_000 };

/// One of the stores there are.
pub(crate) enum Chosen {
    Memory(Memory),
    Redis(Arc<Redis>),
}

/// The store of a Redis configuration. It connects by itself, and again when it has to.
pub(crate) fn redis(config: &RedisStore, asking: Asking) -> Redis {
    let waits = config.waits(asking);
    let topology = match &config.topology {
        RedisTopology::Single(address) => Topology::Single(server(address)),
        RedisTopology::Cluster(nodes) => Topology::Cluster(nodes.iter().map(server).collect()),
        RedisTopology::Sentinel { master, nodes, username, password } => {
            let login = Server {
                username: username.clone(),
                password: password.as_ref().map(|password| password.expose().to_owned()),
                ..nodes.first().map(server).unwrap_or_else(|| Server::at("", 0))
            };
            let nodes = nodes.iter().map(server).collect();
            Topology::Sentinel(Sentinels { master: master.clone(), nodes, login })
        }
    };
    Redis::new(Options {
        topology,
        key_prefix: config.key_prefix.clone(),
        patience: Patience {
            timeout: waits.timeout.into(),
            retries: config.retries,
            deadline: waits.deadline.into(),
        },
        deny_cache: config.deny_cache.into(),
        connections_max: config.connections_max.map(|most| most as usize),
        on_loss: match config.on_loss {
            OnLoss::Continue => redis::OnLoss::Continue,
            OnLoss::Closed => redis::OnLoss::Closed,
        },
    })
}

/// On whose behalf a process with these parts asks the store.
pub(crate) fn asking(config: &Config, parts: &[Part]) -> Asking {
    let dispatches = parts.contains(&Part::Dispatch) && config.dispatch.is_some();
    let works = parts.contains(&Part::Worker) && !config.workers.is_empty();
    if dispatches || works { Asking::Jobs } else { Asking::Requests }
}

impl Chosen {
    /// Usage in this process, if that is where it is kept.
    pub(crate) const fn memory(&self) -> Option<&Memory> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Redis(_) => None,
        }
    }

    /// Whether decisions can be made by the store, or by a policy of these rules in its place.
    pub(crate) fn readiness(&self, rules: &Ruleset) -> Readiness {
        self.readiness_if(rules.answers_alone())
    }

    /// The same, where it is known whether a policy answers in the store's place.
    pub(crate) fn readiness_if(&self, answers_alone: bool) -> Readiness {
        match self {
            Self::Memory(_) => Readiness::Ready,
            Self::Redis(redis) => {
                let reason = match redis.refusal() {
                    Some(refusal) => refusal.word(),
                    None if redis.state() == State::Up => return Readiness::Ready,
                    None => "redis",
                };
                if answers_alone {
                    Readiness::Degraded(reason)
                } else {
                    Readiness::Unhealthy(reason)
                }
            }
        }
    }

    /// What was asked of Redis, if that is where usage is kept.
    pub(crate) fn redis_stats(&self) -> Option<RedisStats> {
        let Self::Redis(redis) = self else { return None };
        let calls = redis.counted().into_iter().map(|counted| {
            let Counted { operation, errors, took, micros } = counted;
            RedisCalls { operation, errors, took, micros }
        });
        Some(RedisStats {
            up: redis.state() == State::Up,
            evicts: redis.evicts(),
            refusal: redis.refusal().map(|refusal| refusal.word()),
            losses: redis.losses(),
            nodes: redis.nodes(),
            taking_back: redis.taking_back() as u64,
            not_taken_back: redis.not_taken_back(),
            denied_without_asking: redis.denied_without_asking(),
            calls: calls.collect(),
        })
    }

    /// What keeps what this node lets through on its own, for a store that may not answer.
    pub(crate) fn fallback(&self) -> Option<Memory> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(_) => Some(Memory::new(FALLBACK)),
        }
    }
}

fn server(address: &RedisAddress) -> Server {
    Server {
        host: address.host.clone(),
        port: address.port,
        tls: address.tls,
        username: address.username.clone(),
        password: address.password.as_ref().map(|password| password.expose().to_owned()),
        db: address.db,
    }
}

/// Asks whichever it is.
macro_rules! ask {
    ($chosen:expr, $store:ident => $question:expr) => {
        match $chosen {
            Chosen::Memory($store) => $question.await,
            Chosen::Redis($store) => $question.await,
        }
    };
}

impl Store for Chosen {
    async fn acquire(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        ask!(self, store => store.acquire(plan))
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        ask!(self, store => store.peek(plan))
    }

    async fn book(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        ask!(self, store => store.book(plan))
    }

    async fn claim(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        ask!(self, store => store.claim(plan, claimant))
    }

    async fn cancel(&self, handle: &Handle) -> Result<Ended, Error> {
        ask!(self, store => store.cancel(handle))
    }

    async fn settle(&self, handle: &Handle, actual: &Cost) -> Result<Ended, Error> {
        ask!(self, store => store.settle(handle, actual))
    }

    async fn release(&self, handle: &Handle) -> Result<Ended, Error> {
        ask!(self, store => store.release(handle))
    }

    async fn renew(&self, handle: &Handle) -> Result<Renewed, Error> {
        ask!(self, store => store.renew(handle))
    }

    async fn refund(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        ask!(self, store => store.refund(plan))
    }

    async fn close(&self, plan: &Plan<'_>, wait: Span) -> Result<Shut, Error> {
        ask!(self, store => store.close(plan, wait))
    }

    async fn reset(&self, plan: &Plan<'_>) -> Result<Timestamp, Error> {
        ask!(self, store => store.reset(plan))
    }

    async fn usage(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        ask!(self, store => store.usage(plan))
    }

    fn give_up(&self, plan: &Plan<'_>, attempt: Attempt) {
        match self {
            Self::Memory(memory) => memory.give_up(plan, attempt),
            Self::Redis(redis) => redis.give_up(plan, attempt),
        }
    }

    fn nodes(&self) -> u32 {
        match self {
            Self::Memory(memory) => memory.nodes(),
            Self::Redis(redis) => redis.nodes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_answers_requests_does_not_wait_like_a_job() {
        let worker = "workers: [{provider: p, queue: q, handler: {command: [cat]}}]\n";
        let dispatch = "dispatch: {source: raw, providers: {p: {limit: 5/s}}}\n";
        for (text, parts, expected) in [
            ("", &Part::ALL[..], Asking::Requests),
            ("workers: []\n", &Part::ALL, Asking::Requests),
            (worker, &Part::ALL, Asking::Jobs),
            (worker, &[Part::Worker], Asking::Jobs),
            (worker, &[Part::Limiter, Part::Gateway, Part::Dispatch], Asking::Requests),
            (dispatch, &[Part::Limiter, Part::Dispatch], Asking::Jobs),
            (dispatch, &[Part::Gateway, Part::Worker], Asking::Requests),
        ] {
            let loaded = sluicegate_config::load("test", text, &|_| None).expect(text);
            assert_eq!(asking(&loaded.config, parts), expected, "{text} {parts:?}");
        }
    }
}
