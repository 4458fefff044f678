//! Latency of every operation, and the results of decisions.
//!
//! All cores count here, so the counters are striped: each thread uses one stripe, and a scrape
//! adds them up.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use prometheus::proto::{Bucket, Histogram, MetricFamily, MetricType};
use sluicegate_core::Span;

use super::Outcome;
use super::family::{Family, SeriesValue};
use crate::service::Operation;

pub(super) static FAMILIES: [Family; 2] = [
    Family {
        name: "rate_limiter_latency_seconds",
        help: "Duration of decisions and of later operations such as settle and release.",
        kind: MetricType::HISTOGRAM,
        labels: &["operation"],
    },
    Family {
        name: "sluicegate_decisions_total",
        help: "Decisions, each counted once, independent of the number of rules.",
        kind: MetricType::COUNTER,
        labels: &["operation", "result"],
    },
];

/// Upper bounds of the buckets. Alerts and documented guarantees refer to 20, 50 and 100 ms.
const BOUNDS_US: [u64; 14] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000,
];

const STRIPES: usize = 16;

/// The counters of all operations.
#[derive(Debug, Default)]
pub(super) struct OperationMetrics([Stripe; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe([OperationCounters; Operation::ALL.len()]);

#[derive(Debug, Default)]
pub(super) struct OperationCounters {
    /// One more than the bounds, for operations above the last bound.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    micros: AtomicU64,
    outcomes: [AtomicU64; Outcome::ALL.len()],
}

impl OperationMetrics {
    pub(super) fn decided(&self, operation: Operation, outcome: Outcome, latency: Span) {
        let counters = self.record(operation, latency);
        counters.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn record(&self, operation: Operation, latency: Span) -> &OperationCounters {
        let counters = &self.0[stripe()].0[operation as usize];
        let micros = latency.as_micros();
        let bucket = BOUNDS_US.iter().take_while(|&&bound| micros > bound).count();
        counters.buckets[bucket].fetch_add(1, Relaxed);
        counters.micros.fetch_add(micros, Relaxed);
        counters
    }

    pub(super) fn collect(&self) -> Vec<MetricFamily> {
        let [mut latencies, mut decisions] = FAMILIES.each_ref().map(Family::gather);
        for operation in Operation::ALL {
            let name = operation.name();
            let histogram = self.histogram(operation);
            if histogram.get_sample_count() > 0 {
                latencies.add(&[name], SeriesValue::Distribution(histogram));
            }
            for outcome in Outcome::ALL {
                let count = self.sum(operation, |counters| &counters.outcomes[outcome as usize]);
                if count > 0 {
                    decisions.add(&[name, outcome.name()], SeriesValue::Count(count));
                }
            }
        }
        vec![latencies.end(), decisions.end()]
    }

    fn histogram(&self, operation: Operation) -> Histogram {
        let mut so_far = 0;
        let mut up_to = |bucket: usize| {
            so_far += self.sum(operation, |counters| &counters.buckets[bucket]);
            so_far
        };
        let buckets = BOUNDS_US.iter().enumerate().map(|(number, &bound)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(seconds(bound));
            bucket.set_cumulative_count(up_to(number));
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(up_to(BOUNDS_US.len()));
        histogram.set_sample_sum(seconds(self.sum(operation, |counters| &counters.micros)));
        histogram
    }

    fn sum(&self, operation: Operation, counter: impl Fn(&OperationCounters) -> &AtomicU64) -> u64 {
        let counters = self.0.iter().map(|stripe| &stripe.0[operation as usize]);
        counters.map(|counters| counter(counters).load(Relaxed)).sum()
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// Returns the stripe of this thread; threads get them in turn.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed) % STRIPES);
    }
    MINE.get()
}
