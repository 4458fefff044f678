//! Converts the counters of this crate into metric families of the Prometheus registry.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Name, help text, type and labels of a metric.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricType,
    pub(super) labels: &'static [&'static str],
}

impl Family {
    /// Starts a family without series; if none are added, it is not rendered.
    pub(super) const fn gather(&'static self) -> FamilyBuilder {
        FamilyBuilder { family: self, series: Vec::new() }
    }

    fn desc(&self) -> Desc {
        let labels = self.labels.iter().map(|&label| label.to_owned()).collect();
        Desc::new(self.name.to_owned(), self.help.to_owned(), labels, HashMap::new())
            .expect("the names in this crate are valid")
    }
}

/// A family that is being collected.
pub(super) struct FamilyBuilder {
    family: &'static Family,
    series: Vec<Metric>,
}

impl FamilyBuilder {
    /// Adds one series, with values for the labels in their order.
    pub(super) fn add(&mut self, labels: &[&str], value: SeriesValue) {
        debug_assert_eq!(self.family.labels.len(), labels.len(), "{}", self.family.name);
        let pairs = self.family.labels.iter().zip(labels).map(|(&name, &value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        });
        let mut metric = Metric::from_label(pairs.collect());
        match value {
            SeriesValue::Count(count) => {
                let mut counter = Counter::default();
                // Exact up to 2^53: three hundred years at a million per second.
                counter.set_value(count as f64);
                metric.set_counter(counter);
            }
            SeriesValue::Level(level) => {
                let mut gauge = Gauge::default();
                gauge.set_value(level);
                metric.set_gauge(gauge);
            }
            SeriesValue::Distribution(histogram) => metric.set_histogram(histogram),
        }
        self.series.push(metric);
    }

    pub(super) fn end(self) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(self.family.name.to_owned());
        family.set_help(self.family.help.to_owned());
        family.set_field_type(self.family.kind);
        family.set_metric(self.series);
        family
    }
}

/// The value of a series.
pub(super) enum SeriesValue {
    Count(u64),
    Level(f64),
    Distribution(Histogram),
}

/// Creates a collector that lets the registry gather `families` from `source`.
pub(super) fn collector<T: Send + Sync + 'static>(
    source: &Arc<T>,
    families: &'static [Family],
    collect: fn(&T) -> Vec<MetricFamily>,
) -> Box<dyn Collector> {
    let descs = families.iter().map(Family::desc).collect();
    Box::new(FamilyCollector { source: source.clone(), descs, collect })
}

struct FamilyCollector<T> {
    source: Arc<T>,
    descs: Vec<Desc>,
    collect: fn(&T) -> Vec<MetricFamily>,
}

impl<T: Send + Sync> Collector for FamilyCollector<T> {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.collect)(&self.source)
    }
}
