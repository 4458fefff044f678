//! [`Metrics`]: counts decisions and exports all metrics to Prometheus.
//!
//! | metric | meaning |
//! |---|---|
//! | `rate_limiter_requests_total{result,scope,model_id,tenant_id}` | decisions by rule: see below |
//! | `rate_limiter_usage_ratio{scope,model_id,tenant_id}` | used / limit as last seen, of the rule's tightest window |
//! | `rate_limiter_latency_seconds{operation}` | duration of decisions and of operations such as settle and release |
//! | `rate_limiter_config_version{source}` | the configuration in force |
//! | `rate_limiter_config_load_failures_total` | invalid configurations that were not loaded |
//! | `sluicegate_config_last_load_successful` | 0 after an invalid configuration, until a valid one is loaded |
//! | `rate_limiter_fallback_total{mode}` | decisions by an outage policy |
//! | `sluicegate_decisions_total{operation,result}` | every decision once, independent of the number of rules |
//! | `sluicegate_denials_total{scope,unit,window}` | denials by the limit that was hit |
//! | `sluicegate_shadow_denials_total{scope}` | admissions that a shadow rule would have denied |
//! | `sluicegate_concurrent_peak{scope}` | the maximum number of slots seen in use |
//! | `sluicegate_user_requests{window}`, `sluicegate_user_cost_usd{window}` | usage of users per minute, hour and day, as each admission saw it |
//! | `sluicegate_store_full_total{result}` | decisions on a counter that several keys share, because the store had no room for one each |
//! | `sluicegate_replays_total` | replayed ids, which are not charged again |
//!
//! A decision adds this to `rate_limiter_requests_total`:
//!
//! | decision | adds |
//! |---|---|
//! | allowed | `allowed` for each rule that was charged, including shadow rules |
//! | allowed, but a replay or a peek | nothing: nothing was charged |
//! | denied, never | `denied` or `never` for the rule that was hit, and for no other |
//! | denied because of usage counted beyond a limit | `denied` for the rule of that limit, and for no other |
//! | denied or never, but a peek | nothing: no work was denied |
//! | no answer from the store | `error` for each rule that would have been charged |
//!
//! **Clients cannot create series.** The first [`Options::values_max`] values of `model_id` and of
//! `tenant_id` have separate series, and the first [`Options::pairs_max`] of their combinations; the
//! rest is `other`. Inline rules of queries share one scope, [`INLINE`]. Values that rules name are
//! added at the start, so that arbitrary values cannot displace them. No other dimension becomes a
//! label.
//!
//! **A decision formats nothing and allocates nothing** once its labels are known: it finds its
//! counters through one table that is read without a lock and replaced when labels are added.

mod labels;
mod operations;
mod rule;
mod rules;
pub mod statsd;
mod users;

use std::fmt;
use std::sync::Arc;

use sluicegate_core::Decision;
use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::ruleset::Ruleset;
use sluicegate_service::metrics::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use sluicegate_service::series::LatencySketch;

pub use labels::Options;
use labels::QueryLabels;
use operations::OperationMetrics;
pub use rules::INLINE;
use rules::RuleMetricsTable;
use users::UserMetrics;

use crate::answer::Answer;
use crate::service::{ChangeEvent, DecisionEvent, FailureEvent, Observer, Operation};

/// The media type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of one process. Clones share the same metrics.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    scopes: Arc<RuleMetricsTable>,
    operations: Arc<OperationMetrics>,
    users: UserMetrics,
    replays: IntCounter,
    fallbacks: IntCounterVec,
    full: IntCounterVec,
    config_version: IntGaugeVec,
    config_load_failures: IntCounter,
    config_loaded: IntGauge,
}

/// Decisions since the start of the process, as the dashboard reads them every second.
#[derive(Clone, Debug, Default)]
pub struct DecisionCounts {
    /// Admissions.
    pub allowed: u64,
    /// Denials of all kinds.
    pub denied: u64,
    /// Decisions that failed because the store did not answer.
    pub errors: u64,
    /// Durations of the decisions.
    pub latency: LatencySketch,
    /// Counts by rule.
    pub rules: Vec<(Arc<str>, RuleCounts)>,
}

/// Decisions of one rule since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Admissions that were charged.
    pub allowed: u64,
    /// Denials by the rule.
    pub denied: u64,
    /// Admissions that the rule would have denied, if it were not a shadow rule.
    pub shadow_denied: u64,
}

/// The result of an operation, for the label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Allowed,
    Denied,
    Never,
    Banned,
    Error,
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Allowed, Self::Denied, Self::Never, Self::Banned, Self::Error];

    fn of(answer: &Answer<'_, '_>) -> Self {
        match answer.decision() {
            _ if answer.is_banned() => Self::Banned,
            Decision::Allow(_) if !answer.is_allowed() => Self::Denied,
            Decision::Allow(_) => Self::Allowed,
            Decision::Deny(_) => Self::Denied,
            Decision::Never(_) => Self::Never,
            Decision::Closed(_) => Self::Error,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Never => "never",
            Self::Banned => "banned",
            Self::Error => "error",
        }
    }
}

impl Metrics {
    /// Creates empty metrics with a separate registry.
    pub fn new(options: &Options) -> Self {
        let registry = Registry::default();
        let fallbacks = registry.counters(
            "rate_limiter_fallback_total",
            "Decisions by an outage policy because the store did not answer.",
            &["mode"],
        );
        for (word, _) in OutagePolicy::ALL {
            // Starts at 0, so that an alert on the rate sees the first one.
            fallbacks.with_label_values(&[word]);
        }
        let full = registry.counters(
            "sluicegate_store_full_total",
            "Decisions on a counter that several keys share, because the store had no room for \
             one each.",
            &["result"],
        );
        for outcome in [Outcome::Allowed, Outcome::Denied] {
            full.with_label_values(&[outcome.name()]);
        }
        let config_loaded = registry.gauge(
            "sluicegate_config_last_load_successful",
            "1 if the last loaded configuration was valid, 0 if not.",
        );
        // The process runs, so its first configuration was valid.
        config_loaded.set(1);
        Self(Arc::new(Inner {
            scopes: RuleMetricsTable::new(options, &registry),
            operations: OperationMetrics::new(&registry),
            users: UserMetrics::new(&registry),
            replays: registry
                .counter("sluicegate_replays_total", "Replayed ids, which are not charged again."),
            fallbacks,
            full,
            config_version: registry.gauges(
                "rate_limiter_config_version",
                "The version of the configuration in force.",
                &["source"],
            ),
            config_load_failures: registry.counter(
                "rate_limiter_config_load_failures_total",
                "Invalid configurations that were not loaded; the previous one stayed in force.",
            ),
            config_loaded,
            registry,
        }))
    }

    /// Registers the rules and keeps the counts of rules that are already registered. Call it
    /// before the rules are put in force: until then a rule counts as [`INLINE`].
    pub fn register_rules(&self, rules: &Ruleset) {
        self.0.scopes.register_rules(rules);
    }

    /// Records that a configuration was put in force.
    pub fn config_loaded(&self, source: &str, version: i64) {
        self.0.config_version.with_label_values(&[source]).set(version);
        self.0.config_loaded.set(1);
    }

    /// Records that a configuration was invalid.
    pub fn config_failed(&self) {
        self.0.config_load_failures.inc();
        self.0.config_loaded.set(0);
    }

    /// Returns the counts of all decisions. A peek is no decision: it charges nothing.
    pub fn decisions(&self) -> DecisionCounts {
        let mut counts = DecisionCounts { rules: self.0.scopes.counts(), ..Default::default() };
        for operation in [Operation::Acquire, Operation::Book] {
            let [allowed, denied, never, banned, error] = self.0.operations.outcomes(operation);
            counts.allowed += allowed;
            counts.denied += denied + never + banned;
            counts.errors += error;
            counts.latency.merge(&self.0.operations.latencies(operation));
        }
        counts
    }

    /// Returns the registry, in which other parts of the process register their metrics.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Returns all metrics in the text format of Prometheus.
    pub fn render(&self) -> String {
        self.0.registry.render()
    }
}

impl Observer for Metrics {
    fn on_decision(&self, event: &DecisionEvent<'_, '_, '_>) {
        let DecisionEvent { query, answer, operation, latency, .. } = *event;
        let decision = answer.decision();
        self.0.operations.decided(operation, Outcome::of(&answer), latency);
        if matches!(decision, Decision::Allow(allow) if allow.replayed) {
            self.0.replays.inc();
        }
        // A peek charges nothing, and a claim uses what was charged when it was booked.
        if matches!(operation, Operation::Acquire | Operation::Book) {
            let query_labels = QueryLabels::of(query);
            match decision {
                Decision::Closed(_) => self.0.scopes.failed(answer.plan(), query_labels),
                _ => self.0.scopes.decided(&answer, query_labels),
            }
            if answer.shared().is_some() {
                self.0.full.with_label_values(&[Outcome::of(&answer).name()]).inc();
            }
            if matches!(decision, Decision::Allow(allow) if !allow.replayed) {
                self.0.users.admitted(answer.plan(), decision);
            }
        }
        if let Some(policy) = answer.outage() {
            self.0.fallbacks.with_label_values(&[policy.word()]).inc();
        }
    }

    fn on_change(&self, event: &ChangeEvent<'_, '_>) {
        self.0.operations.record(event.operation, event.latency);
    }

    fn on_failure(&self, event: &FailureEvent<'_, '_, '_>) {
        let FailureEvent { query, plan, operation, latency, .. } = *event;
        self.0.operations.decided(operation, Outcome::Error, latency);
        self.0.scopes.failed(plan, QueryLabels::of(query));
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
