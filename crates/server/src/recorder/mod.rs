//! [`Recorder`]: recent data of a process for the dashboard, in bounded memory.
//!
//! | data | source | maximum |
//! |---|---|---|
//! | decisions per second, by rule, and their latency | the counters of [`Metrics`], read once a second | 300 series of 15 minutes and 24 hours |
//! | gateways, queues, Redis | the same registry that Prometheus scrapes, once a second | part of the 300 series |
//! | most frequent and most denied callers | a sample of decisions | 1,000 counters per dimension |
//! | keys closest to their limits | the readings in a sample of decisions | 1,000 keys |
//! | live tail | a sample of decisions | 1,000 decisions |
//! | reloads | the process | 50 |
//!
//! **Nothing is measured twice.** Counts and latencies are differences of counters that exist anyway,
//! so they cost a decision nothing. **The sample has a maximum**: up to 1,000 admissions and 1,000
//! denials per second are all looked at; of more, a random share is, and counts are scaled up by it.
//! A decision that is not in the sample costs one relaxed load and a step of a random number
//! generator.

mod callers;
mod metric_reading;
mod sampling;
mod tail;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use sluicegate_core::limit::Unit;
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_service::series::{Resolution, SeriesTable};
use tokio::sync::watch;

use crate::decision_log::SecretDimensions;
use crate::metrics::{DecisionCounts, Metrics};
use crate::service::{ChangeEvent, DecisionEvent, Effect, Observer, Operation};
use callers::Callers;
pub use callers::{CallerDimension, RankedCaller, RankedCallers, TopCallers};
pub use metric_reading::MetricReading;
use metric_reading::is_series;
use sampling::{DecisionSampler, SampledClass};
use tail::Tail;

/// Interval of [`Recorder::tick`].
pub const TICK: Span = Span::from_secs(1);
/// Maximum number of time series.
const SERIES_MAX: usize = 300;
/// Number of reloads that are kept.
const RELOADS_MAX: usize = 50;

/// The recorder of a process. Clones share the same data.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    secrets: SecretDimensions,
    node: NodeName,
    sampler: DecisionSampler,
    callers: Mutex<Callers>,
    tail: Mutex<Tail>,
    series: Mutex<SeriesTable>,
    /// Money that admissions reserved, in nano-dollars.
    reserved_nanos: AtomicU64,
    /// Money that was settled, in nano-dollars.
    settled_nanos: AtomicU64,
    last: Mutex<LastReading>,
    reloads: Mutex<VecDeque<Reload>>,
    ticks: watch::Sender<Arc<Tick>>,
}

/// Name and start of the process, which identify it among other nodes.
#[derive(Clone, Debug)]
pub struct NodeName {
    /// Name of the machine or container.
    pub host: String,
    /// Version of the program.
    pub version: &'static str,
    /// Start of the process.
    pub started: Timestamp,
}

/// The data of one second, as it is sent to open dashboards.
#[derive(Debug, Default)]
pub struct Tick {
    /// The second, since 1970.
    pub second: u64,
    /// The newest values of all series, as JSON.
    pub values: String,
    /// The decisions of the live tail since the last tick, as JSON.
    pub decisions: String,
}

/// A reload of the configuration.
#[derive(Clone, Debug)]
pub struct Reload {
    /// Time of the reload.
    pub at: Timestamp,
    /// Version of the configuration after it.
    pub version: i64,
    /// The changes, or the reason why the configuration was rejected.
    pub outcome: Result<Vec<String>, String>,
}

/// The counters at the last tick, from which the next one computes rates.
#[derive(Default)]
struct LastReading {
    at: Option<Timestamp>,
    decisions: DecisionCounts,
    /// Money that was reserved, and settled.
    money_nanos: [u64; 2],
    /// Counters at the last full ten seconds, for the latency of that resolution.
    ten_seconds: (u64, DecisionCounts),
    metrics: BTreeMap<String, f64>,
}

impl Recorder {
    /// Creates a recorder that reads `metrics`. Values of `secret` dimensions are shown as hashes
    /// with `hash_key`, as in the decision log.
    pub fn new(
        metrics: Metrics,
        clock: impl Clock + 'static,
        node: NodeName,
        secret: Vec<String>,
        hash_key: [u8; 32],
    ) -> Self {
        let now = clock.now();
        Self(Arc::new(Inner {
            metrics,
            clock: Arc::new(clock),
            secrets: SecretDimensions::new(secret, hash_key),
            node,
            sampler: DecisionSampler::default(),
            callers: Mutex::new(Callers::new(now)),
            tail: Mutex::default(),
            series: Mutex::new(SeriesTable::new(SERIES_MAX)),
            reserved_nanos: AtomicU64::new(0),
            settled_nanos: AtomicU64::new(0),
            last: Mutex::default(),
            reloads: Mutex::default(),
            ticks: watch::Sender::new(Arc::default()),
        }))
    }

    /// Returns the time of this node.
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// Returns the name of this node.
    pub fn node(&self) -> &NodeName {
        &self.0.node
    }

    /// Returns a receiver of the data of each second. A receiver that is too slow skips seconds.
    pub fn ticks(&self) -> watch::Receiver<Arc<Tick>> {
        self.0.ticks.subscribe()
    }

    /// Records one second. The process calls it every [`TICK`].
    pub fn tick(&self) {
        let now = self.now();
        let second = now.as_micros() / 1_000_000;
        // Read before the shares of the next second are set.
        let shares = self.sampled_shares();
        let values = self.record_series(now, second);
        lock(&self.0.callers).rotate(now);
        let decisions = lock(&self.0.tail).take_new(shares);
        self.0.ticks.send_replace(Arc::new(Tick { second, values, decisions }));
    }

    /// Records the series of a second. Returns their newest values as JSON.
    fn record_series(&self, now: Timestamp, second: u64) -> String {
        let decisions = self.0.metrics.decisions();
        let reading = MetricReading::of(&self.0.metrics.registry().gather_only(is_series));
        let money = [&self.0.reserved_nanos, &self.0.settled_nanos].map(|sum| sum.load(Relaxed));
        let mut last = lock(&self.0.last);
        let mut series = lock(&self.0.series);
        let Some(before) = last.at.filter(|&before| before < now) else {
            last.at = Some(now);
            last.ten_seconds = (second / 10, decisions.clone());
            last.decisions = decisions;
            last.money_nanos = money;
            last.metrics = reading.counters();
            return String::from("{}");
        };
        let elapsed = now.since(before).as_micros() as f64 / 1e6;
        let rate = |newer: u64, older: u64| newer.saturating_sub(older) as f64 / elapsed;
        for (name, (sum, before)) in
            ["reserved", "settled"].into_iter().zip(money.into_iter().zip(last.money_nanos))
        {
            if sum > 0 {
                series.record(second, name, rate(sum, before) / 1e9);
            }
        }
        let older = &last.decisions;
        let allowed = rate(decisions.allowed, older.allowed);
        let denied = rate(decisions.denied, older.denied);
        series.record(second, "allowed", allowed);
        series.record(second, "denied", denied);
        series.record(second, "errors", rate(decisions.errors, older.errors));
        self.0.sampler.adapt(SampledClass::Admission, allowed);
        self.0.sampler.adapt(SampledClass::Denial, denied);
        record_latency(&mut series, Resolution::Seconds, second, &decisions, older);
        let (step, at_step) = &last.ten_seconds;
        record_latency(&mut series, Resolution::TenSeconds, second, &decisions, at_step);
        let next_step = (second / 10 != *step).then(|| (second / 10, decisions.clone()));
        for (name, counts) in &decisions.rules {
            let place = older.rules.binary_search_by(|(other, _)| other.cmp(name));
            let before = place.map(|place| older.rules[place].1).unwrap_or_default();
            if counts.allowed + counts.denied + counts.shadow_denied == 0 {
                continue;
            }
            let id = |kind: &str| json!(["rule", &**name, kind]).to_string();
            series.record(second, &id("allowed"), rate(counts.allowed, before.allowed));
            series.record(second, &id("denied"), rate(counts.denied, before.denied));
            if counts.shadow_denied > 0 {
                let shadow = rate(counts.shadow_denied, before.shadow_denied);
                series.record(second, &id("shadow"), shadow);
            }
        }
        for (id, value) in reading.values(&last.metrics, elapsed) {
            series.record(second, &id, value);
        }
        let newest: serde_json::Map<_, _> = match self.0.ticks.receiver_count() {
            // Nobody looks.
            0 => serde_json::Map::new(),
            _ => series.newest().map(|(name, value)| (name.to_owned(), rounded(value))).collect(),
        };
        if let Some(next_step) = next_step {
            last.ten_seconds = next_step;
        }
        last.at = Some(now);
        last.decisions = decisions;
        last.money_nanos = money;
        last.metrics = reading.counters();
        Value::Object(newest).to_string()
    }

    /// Returns the last values of the series whose names start with one of `prefixes`; all if there
    /// are none.
    pub fn series(&self, resolution: Resolution, steps: usize, prefixes: &[String]) -> Value {
        let series = lock(&self.0.series);
        let step = resolution.step_secs();
        let selects = |name: &str| {
            prefixes.is_empty() || prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
        };
        let read = series.read(resolution, steps, selects);
        let values: serde_json::Map<_, _> = read
            .map(|(name, values)| {
                let values = values.into_iter().map(|value| value.map_or(Value::Null, rounded));
                (name.to_owned(), values.collect::<Vec<_>>().into())
            })
            .collect();
        json!({ "until": series.now() / step * step, "step": step, "series": values })
    }

    /// Returns the mean of each series whose name starts with `prefix` over the last seconds, without
    /// gaps.
    pub fn means(&self, prefix: &str, seconds: usize) -> Vec<(String, f64)> {
        let series = lock(&self.0.series);
        let read = series.read(Resolution::Seconds, seconds, |name| name.starts_with(prefix));
        let means = read.filter_map(|(name, values)| {
            let values: Vec<_> = values.into_iter().flatten().map(f64::from).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            mean.is_finite().then(|| (name.to_owned(), mean))
        });
        means.collect()
    }

    /// Returns the sum of each series of rates whose name starts with `prefix` over the last seconds:
    /// the number of events.
    pub fn totals(&self, prefix: &str, seconds: usize) -> Vec<(String, f64)> {
        let series = lock(&self.0.series);
        let read = series.read(Resolution::Seconds, seconds, |name| name.starts_with(prefix));
        let total = |values: Vec<Option<f32>>| values.into_iter().flatten().map(f64::from).sum();
        read.map(|(name, values)| (name.to_owned(), total(values))).collect()
    }

    /// Returns the most frequent and the most denied callers, and the keys closest to their limits.
    pub fn callers(&self, count: usize) -> TopCallers {
        lock(&self.0.callers).top(self.now(), count)
    }

    /// Returns the last decisions of the live tail as a JSON list, the oldest first.
    pub fn tail(&self) -> String {
        lock(&self.0.tail).all()
    }

    /// Returns the newest decisions of the live tail as JSON, the newest first.
    pub fn newest_decisions(&self, count: usize) -> Vec<Value> {
        lock(&self.0.tail).newest(count)
    }

    /// Returns the shares of admissions and of denials that the sample contains.
    pub fn sampled_shares(&self) -> (f64, f64) {
        let share = |class| 1.0 / f64::from(self.0.sampler.stride(class));
        (share(SampledClass::Admission), share(SampledClass::Denial))
    }

    /// Returns the current values of all metrics that `selects` accepts.
    pub fn read_metrics(&self, selects: impl Fn(&str) -> bool) -> MetricReading {
        MetricReading::of(&self.0.metrics.registry().gather_only(selects))
    }

    /// Returns the counts of all decisions.
    pub fn decisions(&self) -> DecisionCounts {
        self.0.metrics.decisions()
    }

    /// Records a reload.
    pub fn reloaded(&self, version: i64, outcome: Result<Vec<String>, String>) {
        let mut reloads = lock(&self.0.reloads);
        if reloads.len() == RELOADS_MAX {
            reloads.pop_front();
        }
        reloads.push_back(Reload { at: self.now(), version, outcome });
    }

    /// Returns the last reloads, the newest first.
    pub fn reloads(&self) -> Vec<Reload> {
        lock(&self.0.reloads).iter().rev().cloned().collect()
    }
}

impl Observer for Recorder {
    fn on_decision(&self, event: &DecisionEvent<'_, '_, '_>) {
        if !matches!(event.operation, Operation::Acquire | Operation::Book) {
            return;
        }
        let allowed = event.answer.is_allowed();
        if allowed {
            let charges = event.answer.plan().charges().iter();
            let money = charges.filter(|charge| charge.unit() == Unit::Usd);
            if let Some(money) = money.map(|charge| charge.take).max() {
                self.0.reserved_nanos.fetch_add(money, Relaxed);
            }
        }
        let class = if allowed { SampledClass::Admission } else { SampledClass::Denial };
        let Some(weight) = self.0.sampler.takes(class) else { return };
        let now = self.now();
        lock(&self.0.callers).record(event, weight, now, &self.0.secrets);
        lock(&self.0.tail).record(event, class, now, &self.0.secrets);
    }

    fn on_change(&self, event: &ChangeEvent<'_, '_>) {
        if let Effect::Ended { replayed: false, cost: Some(cost), .. } = event.effect
            && let Some(money) = cost.money
        {
            self.0.settled_nanos.fetch_add(money.as_nanos(), Relaxed);
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// Records the quantiles of the decisions between two readings, in milliseconds.
fn record_latency(
    series: &mut SeriesTable,
    resolution: Resolution,
    second: u64,
    newer: &DecisionCounts,
    older: &DecisionCounts,
) {
    let latency = newer.latency.since(&older.latency);
    for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
        if let Some(micros) = latency.quantile(share) {
            series.record_in(resolution, second, name, micros / 1e3);
        }
    }
}

/// Returns a number with four significant decimals, which is enough for a chart.
fn rounded(value: f32) -> Value {
    let value = (f64::from(value) * 1e4).round() / 1e4;
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
