//! [`MetricReading`]: values of metrics at one time, as the dashboard shows them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluicegate_service::metrics::proto::{Metric, MetricFamily, MetricType};

/// Metrics whose values become time series.
const SERIES: [&str; 29] = [
    "rate_limiter_fallback_total",
    "rate_limiter_redis_calls_total",
    "rate_limiter_redis_errors_total",
    "rate_limiter_redis_latency_seconds",
    "sluicegate_connections",
    "sluicegate_decision_log_dropped_total",
    "sluicegate_dispatch_allowed_total",
    "sluicegate_dispatch_delayed_total",
    "sluicegate_gateway_queue_depth",
    "sluicegate_gateway_queue_oldest_seconds",
    "sluicegate_gateway_requests_total",
    "sluicegate_gateway_upstream_answers_total",
    "sluicegate_gateway_upstream_errors_total",
    "sluicegate_provider_rpm",
    "sluicegate_queue_depth",
    "sluicegate_queue_oldest_seconds",
    "sluicegate_redis_cpu_seconds_total",
    "sluicegate_redis_memory_bytes",
    "sluicegate_redis_memory_losses_total",
    "sluicegate_redis_operations_per_second",
    "sluicegate_redis_up",
    "sluicegate_replays_total",
    "sluicegate_store_keys",
    "sluicegate_store_records",
    "sluicegate_worker_blocked_total",
    "sluicegate_worker_busy",
    "sluicegate_worker_dead_total",
    "sluicegate_worker_done_total",
    "sluicegate_worker_failed_total",
];

/// Returns true if the values of a metric become time series.
pub(super) fn is_series(name: &str) -> bool {
    SERIES.contains(&name)
}

/// Values of metrics at one time.
#[derive(Clone, Debug, Default)]
pub struct MetricReading(Vec<MetricValue>);

/// The value of one series.
#[derive(Clone, Debug)]
struct MetricValue {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
    is_counter: bool,
    /// Number of values, if the value is the sum of a histogram.
    count: Option<u64>,
}

impl MetricReading {
    /// Reads families.
    pub(super) fn of(families: &[MetricFamily]) -> Self {
        let values = families.iter().flat_map(|family| {
            family.get_metric().iter().map(|metric| MetricValue::of(family, metric))
        });
        Self(values.collect())
    }

    /// Returns the sum of all series of a metric whose labels contain all of `labels`; `None` if
    /// there is no such series.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |value: &MetricValue| {
            labels.iter().all(|&(name, text)| value.label(name) == Some(text))
        };
        let mut values = self.0.iter().filter(|value| value.name == name && has(value)).peekable();
        values.peek()?;
        Some(values.map(|value| value.value).sum())
    }

    /// Returns the labels and values of a metric.
    pub fn each<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (Vec<(&'a str, &'a str)>, f64)> + 'a {
        self.0.iter().filter(move |value| value.name == name).map(|value| {
            let labels = value.labels.iter().map(|(name, text)| (name.as_str(), text.as_str()));
            (labels.collect(), value.value)
        })
    }

    /// Returns all values as a JSON list.
    pub fn to_json(&self) -> Value {
        let values = self.0.iter().map(|value| {
            let labels: serde_json::Map<_, _> =
                value.labels.iter().map(|(name, text)| (name.clone(), text.as_str().into())).collect();
            json!({ "name": value.name, "labels": labels, "value": value.value, "count": value.count })
        });
        values.collect::<Vec<_>>().into()
    }

    /// Returns all counters by series, for the rates of the next reading.
    pub(super) fn counters(&self) -> BTreeMap<String, f64> {
        let mut counters = BTreeMap::new();
        for value in self.0.iter().filter(|value| value.is_counter) {
            counters.insert(value.id(), value.value);
            if let Some(count) = value.count {
                counters.insert(value.id() + "#", count as f64);
            }
        }
        counters
    }

    /// Returns the value of each series. A gauge has its value, a counter its rate per second since
    /// the last reading, and a histogram the mean since then.
    pub(super) fn values<'a>(
        &'a self,
        before: &'a BTreeMap<String, f64>,
        elapsed: f64,
    ) -> impl Iterator<Item = (String, f64)> + 'a {
        self.0.iter().filter_map(move |value| {
            let id = value.id();
            if !value.is_counter {
                return Some((id, value.value));
            }
            let since =
                |id: &str, now: f64| (now - before.get(id).copied().unwrap_or(0.0)).max(0.0);
            let added = since(&id, value.value);
            match value.count {
                None => Some((id, added / elapsed)),
                Some(count) => {
                    let values = since(&(id.clone() + "#"), count as f64);
                    (values > 0.0).then(|| (id, added / values))
                }
            }
        })
    }
}

impl MetricValue {
    fn of(family: &MetricFamily, metric: &Metric) -> Self {
        let (value, count) = match family.get_field_type() {
            MetricType::COUNTER => (metric.get_counter().get_value(), None),
            MetricType::HISTOGRAM => {
                let histogram = metric.get_histogram();
                (histogram.get_sample_sum(), Some(histogram.get_sample_count()))
            }
            _ => (metric.get_gauge().get_value(), None),
        };
        let labels = metric.get_label().iter();
        Self {
            name: family.name().to_owned(),
            labels: labels.map(|pair| (pair.name().to_owned(), pair.value().to_owned())).collect(),
            value,
            is_counter: family.get_field_type() != MetricType::GAUGE,
            count,
        }
    }

    fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the name of the series: a JSON list of the metric and its label values.
    fn id(&self) -> String {
        let values = self.labels.iter().map(|(_, value)| value.as_str());
        json!(std::iter::once(self.name.as_str()).chain(values).collect::<Vec<_>>()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_service::metrics::Registry;

    #[test]
    fn counters_become_rates_gauges_stay_and_histograms_become_means() {
        let registry = Registry::default();
        let jobs = registry.counters("jobs_total", "Jobs.", &["queue"]);
        let busy = registry.gauge("busy", "Running jobs.");
        let took = registry.histograms("took_seconds", "Duration.", &[], &[1.0]);
        let read = || MetricReading::of(&registry.gather_only(|_| true));
        jobs.with_label_values(&["a\"b"]).inc_by(4);
        took.with_label_values::<&str>(&[]).observe(9.0);
        let before = read().counters();
        jobs.with_label_values(&["a\"b"]).inc_by(6);
        busy.set(3);
        took.with_label_values::<&str>(&[]).observe(1.0);
        took.with_label_values::<&str>(&[]).observe(2.0);
        let mut values: Vec<_> = read().values(&before, 2.0).collect();
        values.sort_by(|one, other| one.0.cmp(&other.0));
        let named = |name: &str, value: f64| (name.to_owned(), value);
        assert_eq!(
            values,
            [
                named(r#"["busy"]"#, 3.0),
                named(r#"["jobs_total","a\"b"]"#, 3.0),
                named(r#"["took_seconds"]"#, 1.5),
            ]
        );
        assert_eq!(read().sum("jobs_total", &[("queue", "a\"b")]), Some(10.0));
        assert_eq!(read().sum("jobs_total", &[("queue", "c")]), None);
    }
}
