//! The counters of one rule, by result, model and tenant.

use std::array;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use sluicegate_core::Limit;
use sluicegate_service::metrics::{Family, FamilyBuilder};

use super::{Outcome, RuleCounts};

pub(super) static FAMILIES: [Family; 5] = [
    Family::counter(
        "rate_limiter_requests_total",
        "Decisions: allowed for each charged rule, denied for the rule that was hit.",
        &["result", "scope", "model_id", "tenant_id"],
    ),
    Family::gauge(
        "rate_limiter_usage_ratio",
        "Used / limit as last seen, of the tightest window of the rule.",
        &["scope", "model_id", "tenant_id"],
    ),
    Family::counter(
        "sluicegate_denials_total",
        "Denials by the limit that was hit.",
        &["scope", "unit", "window"],
    ),
    Family::counter(
        "sluicegate_shadow_denials_total",
        "Admissions that a shadow rule would have denied.",
        &["scope"],
    ),
    Family::gauge(
        "sluicegate_concurrent_peak",
        "Maximum number of slots seen in use since the start.",
        &["scope"],
    ),
];

/// The counters of one rule. They survive reloads; the list of its limits does not.
#[derive(Clone, Debug)]
pub(super) struct RuleMetrics {
    counters: Arc<Counters>,
    /// The current limits of the rule.
    limits: Vec<(Limit, Arc<AtomicU64>)>,
    /// Denials by unit and window, for every limit that the rule ever had.
    denials: BTreeMap<(&'static str, String), Arc<AtomicU64>>,
}

#[derive(Debug)]
struct Counters {
    /// Allocated on first use: most rules use few pairs of labels.
    chunks: Box<[OnceLock<Box<[LabelCounters; CHUNK]>>]>,
    shadow_denials: AtomicU64,
    concurrent_peak: AtomicU64,
}

const CHUNK: usize = 32;

impl RuleMetrics {
    /// Creates counters for `pairs` pairs of labels.
    pub(super) fn new(pairs: usize) -> Self {
        let counters = Counters {
            chunks: (0..pairs.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            shadow_denials: AtomicU64::new(0),
            concurrent_peak: AtomicU64::new(0),
        };
        Self { counters: Arc::new(counters), limits: Vec::new(), denials: BTreeMap::new() }
    }

    /// Sets the limits of the rule.
    pub(super) fn set_limits(&mut self, limits: &[Limit]) {
        let known = limits.iter().map(|limit| {
            let counter = self.denials.entry((limit.unit().name(), window(limit)));
            (limit.clone(), counter.or_default().clone())
        });
        self.limits = known.collect();
    }

    /// Returns the counters of a pair of labels.
    pub(super) fn counters_of(&self, place: usize) -> &LabelCounters {
        let chunk = &self.counters.chunks[place / CHUNK];
        &chunk.get_or_init(|| Box::new(array::from_fn(|_| LabelCounters::default())))[place % CHUNK]
    }

    /// Records the usage seen on a limit.
    pub(super) fn observe(&self, limit: &Limit, used: u64) {
        let peak = &self.counters.concurrent_peak;
        if matches!(limit, Limit::Concurrent(_)) && used > peak.load(Relaxed) {
            peak.fetch_max(used, Relaxed);
        }
    }

    pub(super) fn count_shadow_denial(&self) {
        self.counters.shadow_denials.fetch_add(1, Relaxed);
    }

    pub(super) fn count_denial(&self, limit: &Limit) {
        if let Some((_, denials)) = self.limits.iter().find(|(known, _)| known == limit) {
            denials.fetch_add(1, Relaxed);
        }
    }

    /// Returns the counts of the rule for all models and tenants.
    pub(super) fn counts(&self) -> RuleCounts {
        let Counters { chunks, shadow_denials, .. } = &*self.counters;
        let shadow_denied = shadow_denials.load(Relaxed);
        let mut counts = RuleCounts { shadow_denied, ..Default::default() };
        for counters in chunks.iter().filter_map(OnceLock::get).flat_map(|chunk| chunk.iter()) {
            let of = |outcome: Outcome| counters.outcomes[outcome as usize].load(Relaxed);
            counts.allowed += of(Outcome::Allowed);
            counts.denied += of(Outcome::Denied) + of(Outcome::Never) + of(Outcome::Banned);
        }
        counts
    }

    /// Adds the series of the rule to each family.
    pub(super) fn collect(
        &self,
        name: &str,
        labels: &[(&str, &str, usize)],
        families: &mut [FamilyBuilder; FAMILIES.len()],
    ) {
        let [requests, usages, denials, shadow_denials, concurrent_peak] = families;
        for &(model, tenant, place) in labels {
            let chunk = self.counters.chunks[place / CHUNK].get();
            let Some(counters) = chunk.map(|chunk| &chunk[place % CHUNK]) else {
                continue;
            };
            for (outcome, count) in Outcome::ALL.iter().zip(&counters.outcomes) {
                if let Some(count) = counted(count) {
                    requests.add(&[outcome.name(), name, model, tenant], count);
                }
            }
            let usage = f64::from_bits(counters.usage.load(Relaxed));
            if !usage.is_nan() {
                usages.add(&[name, model, tenant], usage);
            }
        }
        for ((unit, window), count) in &self.denials {
            if let Some(count) = counted(count) {
                denials.add(&[name, unit, window], count);
            }
        }
        if let Some(count) = counted(&self.counters.shadow_denials) {
            shadow_denials.add(&[name], count);
        }
        let peak = self.counters.concurrent_peak.load(Relaxed);
        if peak > 0 {
            concurrent_peak.add(&[name], peak as f64);
        }
    }
}

/// Returns the value of a counter; `None` if it is 0, which has no series.
fn counted(counter: &AtomicU64) -> Option<f64> {
    Some(counter.load(Relaxed)).filter(|&count| count > 0).map(|count| count as f64)
}

/// Returns the window of a limit in the limit grammar.
fn window(limit: &Limit) -> String {
    match limit {
        Limit::Exact(rate) | Limit::Windowed(rate) | Limit::Bucket { rate, .. } => {
            rate.window.to_string()
        }
        Limit::Calendar { calendar, .. } => calendar.to_string(),
        Limit::Concurrent(_) | Limit::Banned { .. } => String::new(),
    }
}

/// The counters of one rule for one model and one tenant.
#[derive(Debug)]
pub(super) struct LabelCounters {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// The bits of a float; NaN until usage was seen.
    usage: AtomicU64,
}

impl Default for LabelCounters {
    fn default() -> Self {
        Self { outcomes: Default::default(), usage: AtomicU64::new(f64::NAN.to_bits()) }
    }
}

impl LabelCounters {
    pub(super) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn set_usage(&self, usage: f64) {
        self.usage.store(usage.to_bits(), Relaxed);
    }
}
