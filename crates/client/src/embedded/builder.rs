//! [`Builder`]: creates a limiter in this process.

use std::sync::Arc;

use sluicegate_config::{Config, StoreOptions};
use sluicegate_core::ruleset::{Settings, needs};
use sluicegate_core::{Group, Limiter as CoreLimiter, Ruleset};
use sluicegate_service::Service;
use sluicegate_store::memory::Capacity;
use sluicegate_store::{AnyStore, Memory, MonotonicClock};

use super::engine::Engine;
use super::rule::Rule;
use crate::clock::{ManualClock, TimeSource};
use crate::error::Error;
use crate::limiter::Limiter;

/// A builder of a limiter in this process, from a configuration file or from rules in code.
///
/// ```
/// use sluicegate::{Limiter, Rule};
///
/// let limiter = Limiter::builder()
///     .rule(Rule::new("ADDRESS").per(["ip"]).limit("5/s"))
///     .group("user", [
///         Rule::new("PREMIUM").when("tier", "premium").per(["userId"]).limit("100/min"),
///         Rule::new("USER").per(["userId"]).limit("10/min"),
///     ])
///     .optional(["tier"])
///     .build()?;
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    yaml: Option<String>,
    groups: Vec<(String, Vec<Rule>)>,
    optional: Vec<String>,
    keys_max: Option<usize>,
    #[cfg(feature = "redis")]
    redis: Option<String>,
    clock: Option<ManualClock>,
}

impl Builder {
    /// Takes everything from the text of a configuration file: see [`Limiter::from_yaml`].
    pub fn yaml(mut self, text: impl Into<String>) -> Self {
        self.yaml = Some(text.into());
        self
    }

    /// Adds a rule as a group of its own. A request has to pass all groups.
    pub fn rule(self, rule: Rule) -> Self {
        let name = format!("group {}", self.groups.len() + 1);
        self.group(name, [rule])
    }

    /// Adds a group of rules, of which the first match applies.
    pub fn group(mut self, name: impl Into<String>, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.groups.push((name.into(), rules.into_iter().collect()));
        self
    }

    /// Allows requests without these dimensions, although they then bypass a group. Without it, such
    /// a request is an error.
    pub fn optional<D: Into<String>>(mut self, dimensions: impl IntoIterator<Item = D>) -> Self {
        self.optional.extend(dimensions.into_iter().map(Into::into));
        self
    }

    /// Sets the maximum number of counters in memory; beyond it, new keys share one counter.
    /// Default: 2,000,000, about 200 MB.
    pub fn keys_max(mut self, keys_max: usize) -> Self {
        self.keys_max = Some(keys_max);
        self
    }

    /// Shares the limits with other processes through the Redis server at `url`. Further options
    /// (timeouts, Sentinel, Cluster) are those of the section `store` of a configuration file.
    #[cfg(feature = "redis")]
    pub fn redis(mut self, url: impl Into<String>) -> Self {
        self.redis = Some(url.into());
        self
    }

    /// Uses a clock that tests advance, instead of the machine's. Not with Redis, which has a clock
    /// of its own.
    pub fn clock(mut self, clock: &ManualClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Creates the limiter. The error lists all mistakes.
    ///
    /// A store on Redis connects in the background, on the current Tokio runtime.
    pub fn build(self) -> Result<Limiter, Error> {
        let (rules, store) = match &self.yaml {
            Some(text) => {
                self.check_only_yaml()?;
                let config = load(text)?;
                (config.active_ruleset(), config.store)
            }
            None => (self.rules()?, self.store()?),
        };
        let clock = match &self.clock {
            None => TimeSource::System(MonotonicClock::new()),
            Some(clock) => TimeSource::Manual(clock.clone()),
        };
        let limiter = match store {
            StoreOptions::Memory { keys_max, records_max, snapshot, overrides } => {
                if snapshot.is_some() || overrides.is_some() {
                    return Err(Error::configuration(
                        "store.snapshot and store.overrides: the library writes no files: remove \
                         them, or use Redis",
                    ));
                }
                let capacity = Capacity { keys_max, records_max };
                let memory = match &clock {
                    TimeSource::System(_) => Memory::new(capacity).into(),
                    TimeSource::Manual(clock) => {
                        AnyStore::custom(Memory::with_clock(capacity, clock.clone()))
                    }
                };
                CoreLimiter::new(rules, memory)
            }
            StoreOptions::Redis(redis) => self.open_redis(rules, &redis)?,
        };
        let service = Service::new(limiter, clock.clone(), Vec::new());
        Ok(Limiter::new(Engine::new(Arc::new(service), clock)))
    }

    #[cfg(feature = "redis")]
    fn open_redis(
        &self,
        rules: Ruleset,
        redis: &sluicegate_config::RedisStore,
    ) -> Result<CoreLimiter<AnyStore>, Error> {
        if self.clock.is_some() {
            return Err(Error::configuration(
                "clock: Redis has a clock of its own: use the memory store in tests",
            ));
        }
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::configuration(
                "store: Redis needs a Tokio runtime: create the limiter inside of one",
            ));
        }
        let store = Arc::new(redis.open(sluicegate_config::RedisWorkload::Requests));
        let fallback = Memory::new(Capacity::FALLBACK).into();
        Ok(CoreLimiter::new(rules, store.into()).with_fallback(fallback, MonotonicClock::new()))
    }

    #[cfg(not(feature = "redis"))]
    fn open_redis(
        &self,
        _: Ruleset,
        _: &sluicegate_config::RedisStore,
    ) -> Result<CoreLimiter<AnyStore>, Error> {
        Err(Error::configuration(
            "store.kind: redis is not compiled in: enable the feature `redis` of the crate sluicegate",
        ))
    }

    /// Returns the store that the methods of the builder describe.
    fn store(&self) -> Result<StoreOptions, Error> {
        #[cfg(feature = "redis")]
        if let Some(url) = &self.redis {
            if self.keys_max.is_some() {
                let message = "keys_max: applies to the memory store only: remove it, or redis";
                return Err(Error::configuration(message));
            }
            let store = serde_json::json!({ "store": { "kind": "redis", "url": url } });
            return Ok(load(&store.to_string())?.store);
        }
        let mut store = StoreOptions::default();
        if let (StoreOptions::Memory { keys_max, .. }, Some(most)) = (&mut store, self.keys_max) {
            *keys_max = most;
        }
        Ok(store)
    }

    /// Returns the compiled rules that the methods of the builder describe.
    fn rules(&self) -> Result<Ruleset, Error> {
        if self.groups.is_empty() {
            let message = "no rules: add one with rule, or a configuration with yaml";
            return Err(Error::configuration(message));
        }
        let mut errors = Vec::new();
        let groups: Vec<Group> = self
            .groups
            .iter()
            .map(|(name, rules)| {
                let rules = rules.iter().map(|rule| rule.clone().compile(&mut errors));
                Group::new(name.clone(), rules.collect::<Vec<_>>())
            })
            .collect();
        if !errors.is_empty() {
            return Err(Error::configuration(errors.join("\n")));
        }
        let settings = Settings {
            needs: needs(&groups, &self.optional),
            optional: self.optional.clone(),
            ..Settings::default()
        };
        Ruleset::new(groups, settings).map_err(|errors| {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            Error::configuration(errors.join("\n"))
        })
    }

    /// Refuses options that a configuration file replaces.
    fn check_only_yaml(&self) -> Result<(), Error> {
        #[cfg(feature = "redis")]
        let redis = self.redis.is_some();
        #[cfg(not(feature = "redis"))]
        let redis = false;
        let others = [
            ("rule and group", !self.groups.is_empty(), "limits"),
            ("optional", !self.optional.is_empty(), "dimensions"),
            ("keys_max", self.keys_max.is_some(), "store.keys_max"),
            ("redis", redis, "store"),
        ];
        match others.into_iter().find(|(_, given, _)| *given) {
            None => Ok(()),
            Some((method, _, option)) => Err(Error::configuration(format!(
                "{method}: can't be combined with yaml: write {option} into the configuration"
            ))),
        }
    }
}

/// Loads a configuration and the price file that it names.
pub(super) fn load(text: &str) -> Result<Config, Error> {
    let env = |name: &str| std::env::var(name).ok();
    let loaded = sluicegate_config::load("limits", text, &env).map_err(Error::configuration)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut config = loaded.config;
    let other_parts = [
        ("gateways", !config.gateways.is_empty()),
        ("queue", config.queue.is_some()),
        ("dispatch", config.dispatch.is_some()),
        ("workers", !config.workers.is_empty()),
    ];
    if let Some((section, _)) = other_parts.into_iter().find(|(_, given)| *given) {
        return Err(Error::configuration(format!(
            "{section}: the library only decides: remove the section, or run it with `sluicegate \
             serve`"
        )));
    }
    if let Some(path) = config.prices.file.clone() {
        let named = |error: String| {
            Error::configuration(format!("prices.file {}: {error}", path.display()))
        };
        let text = std::fs::read_to_string(&path).map_err(|error| named(error.to_string()))?;
        config.import_prices(&text).map_err(|error| named(error.to_string()))?;
    }
    Ok(config)
}
