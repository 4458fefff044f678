//! [`Registry`]: the metrics of a process. All crates declare their metrics here, in one of two
//! ways:
//!
//! | the value | declare it with |
//! |---|---|
//! | changes with an event | [`Registry::counters`], [`Registry::gauges`], [`Registry::histograms`] |
//! | is known to its owner, such as the depth of a queue | [`Registry::on_scrape`], which reads it at each scrape |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{HistogramOpts, Opts, TextEncoder};

pub use prometheus::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, proto,
};

const FIXED: &str = "names of metrics are constants: they are valid, and each is declared once";

/// The metrics of a process. Clones share the same metrics.
#[derive(Clone, Default)]
pub struct Registry {
    all: prometheus::Registry,
    /// The same collectors one by one, for [`Registry::gather_only`].
    collectors: Arc<Mutex<Vec<Arc<dyn Collector>>>>,
}

impl Registry {
    /// Declares a counter.
    ///
    /// # Panics
    ///
    /// This and the other declarations panic if the name is invalid or declared already.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help))
    }

    /// Declares counters, one for each combination of label values.
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Declares a gauge.
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help))
    }

    /// Declares gauges, one for each combination of label values.
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// Declares histograms, one for each combination of label values. Each bucket has an upper
    /// bound.
    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        bounds: &[f64],
    ) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        self.add(HistogramVec::new(options, labels))
    }

    /// Declares families whose series `collect` adds at each scrape.
    pub fn on_scrape<const N: usize>(
        &self,
        families: &'static [Family; N],
        collect: impl Fn(&mut [FamilyBuilder; N]) + Send + Sync + 'static,
    ) {
        let descs = families.iter().map(Family::desc).collect();
        let collector = ScrapeCollector { families, descs, collect };
        self.register(Arc::new(collector));
    }

    /// Returns all families with at least one series.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.all.gather()
    }

    /// Returns the families whose names `selects` accepts. The others are not collected, so this is
    /// cheap enough for every second.
    pub fn gather_only(&self, selects: impl Fn(&str) -> bool) -> Vec<MetricFamily> {
        let wanted = |collector: &&Arc<dyn Collector>| {
            collector.desc().iter().any(|desc| selects(&desc.fq_name))
        };
        let collectors: Vec<_> = self.collectors().iter().filter(wanted).cloned().collect();
        let families = collectors.iter().flat_map(|collector| collector.collect());
        families.filter(|family| selects(family.name())).collect()
    }

    /// Returns all metrics in the text format of Prometheus.
    pub fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.gather())
            .expect("families without series are pruned, and a string takes every write")
    }

    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let made = made.expect(FIXED);
        self.register(Arc::new(made.clone()));
        made
    }

    fn register(&self, collector: Arc<dyn Collector>) {
        self.all.register(Box::new(SharedCollector(collector.clone()))).expect(FIXED);
        self.collectors().push(collector);
    }

    fn collectors(&self) -> MutexGuard<'_, Vec<Arc<dyn Collector>>> {
        self.collectors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

/// A collector that the registry of Prometheus shares with ours.
struct SharedCollector(Arc<dyn Collector>);

impl Collector for SharedCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.collect()
    }
}

type Text = &'static str;

/// Name, help text, type and labels of a metric that is read at each scrape.
#[derive(Debug)]
pub struct Family {
    name: Text,
    help: Text,
    kind: MetricType,
    labels: &'static [Text],
}

impl Family {
    /// Describes a counter.
    pub const fn counter(name: Text, help: Text, labels: &'static [Text]) -> Self {
        Self { name, help, kind: MetricType::COUNTER, labels }
    }

    /// Describes a gauge.
    pub const fn gauge(name: Text, help: Text, labels: &'static [Text]) -> Self {
        Self { name, help, kind: MetricType::GAUGE, labels }
    }

    /// Describes a histogram.
    pub const fn histogram(name: Text, help: Text, labels: &'static [Text]) -> Self {
        Self { name, help, kind: MetricType::HISTOGRAM, labels }
    }

    fn desc(&self) -> Desc {
        let labels = self.labels.iter().map(|&label| label.to_owned()).collect();
        Desc::new(self.name.to_owned(), self.help.to_owned(), labels, HashMap::new()).expect(FIXED)
    }
}

/// A family that is being collected. Without series it is not rendered.
#[derive(Debug)]
pub struct FamilyBuilder {
    family: &'static Family,
    series: Vec<Metric>,
}

impl FamilyBuilder {
    /// Adds a series of a counter or gauge, with values for the labels in their order. Numbers are
    /// exact up to 2^53: three hundred years at a million per second.
    pub fn add(&mut self, labels: &[&str], value: f64) {
        let mut series = self.labelled(labels);
        if self.family.kind == MetricType::COUNTER {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            series.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            series.set_gauge(gauge);
        }
        self.series.push(series);
    }

    /// Adds a series of a histogram. A bucket is its upper bound in seconds and the number of
    /// values above the bound before; `count` includes values above the last bound.
    pub fn add_histogram(
        &mut self,
        labels: &[&str],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        let mut below = 0;
        let buckets = buckets.into_iter().map(|(bound, values)| {
            below += values;
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(below);
            bucket
        });
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(count);
        histogram.set_sample_sum(sum);
        let mut series = self.labelled(labels);
        series.set_histogram(histogram);
        self.series.push(series);
    }

    fn labelled(&self, labels: &[&str]) -> Metric {
        debug_assert_eq!(self.family.labels.len(), labels.len(), "{}", self.family.name);
        let pairs = self.family.labels.iter().zip(labels).map(|(&name, &value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        });
        Metric::from_label(pairs.collect())
    }

    fn end(self) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(self.family.name.to_owned());
        family.set_help(self.family.help.to_owned());
        family.set_field_type(self.family.kind);
        family.set_metric(self.series);
        family
    }
}

/// Lets the registry of Prometheus collect families.
struct ScrapeCollector<const N: usize, F> {
    families: &'static [Family; N],
    descs: Vec<Desc>,
    collect: F,
}

impl<const N: usize, F> Collector for ScrapeCollector<N, F>
where
    F: Fn(&mut [FamilyBuilder; N]) + Send + Sync,
{
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families =
            self.families.each_ref().map(|family| FamilyBuilder { family, series: Vec::new() });
        (self.collect)(&mut families);
        families.map(FamilyBuilder::end).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static FAMILIES: [Family; 3] = [
        Family::counter("jobs_total", "Jobs.", &["queue"]),
        Family::histogram("job_seconds", "Duration.", &[]),
        Family::gauge("unknown", "A family without series.", &[]),
    ];

    #[test]
    fn values_read_at_a_scrape_are_rendered_like_counted_ones() {
        let registry = Registry::default();
        registry.gauge("busy", "Running jobs.").set(2);
        registry.on_scrape(&FAMILIES, |[jobs, seconds, _]| {
            jobs.add(&["a"], 4.0);
            // One job was slower than the last bound.
            seconds.add_histogram(&[], [(0.1, 2), (1.0, 1)], 4, 9.5);
        });
        let expected = r#"# HELP busy Running jobs.
# TYPE busy gauge
busy 2
# HELP job_seconds Duration.
# TYPE job_seconds histogram
job_seconds_bucket{le="0.1"} 2
job_seconds_bucket{le="1"} 3
job_seconds_bucket{le="+Inf"} 4
job_seconds_sum 9.5
job_seconds_count 4
# HELP jobs_total Jobs.
# TYPE jobs_total counter
jobs_total{queue="a"} 4
"#;
        assert_eq!(registry.render(), expected);
        let only = registry.gather_only(|name| name.starts_with("job"));
        let names: Vec<_> = only.iter().map(MetricFamily::name).collect();
        assert_eq!(names, ["jobs_total", "job_seconds"]);
    }
}
