//! Latency of every operation, and the results of decisions.
//!
//! All cores count here, so the counters are striped: each thread uses one stripe, and a scrape
//! adds them up. The dashboard reads the same counters once a second.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use sluicegate_core::Span;
use sluicegate_service::metrics::{Family, FamilyBuilder, Registry};
use sluicegate_service::series::LatencySketch;

use super::Outcome;
use crate::service::Operation;

static FAMILIES: [Family; 2] = [
    Family::histogram(
        "rate_limiter_latency_seconds",
        "Duration of decisions and of later operations such as settle and release.",
        &["operation"],
    ),
    Family::counter(
        "sluicegate_decisions_total",
        "Decisions, each counted once, independent of the number of rules.",
        &["operation", "result"],
    ),
];

/// Upper bounds of the exported buckets, each a bound of [`LatencySketch`]. Alerts and documented
/// guarantees refer to 20, 50 and 100 ms.
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
    /// The buckets of a [`LatencySketch`].
    buckets: LatencyBuckets,
    micros: AtomicU64,
    outcomes: [AtomicU64; Outcome::ALL.len()],
}

#[derive(Debug)]
struct LatencyBuckets([AtomicU64; LatencySketch::BUCKETS]);

impl Default for LatencyBuckets {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl OperationMetrics {
    pub(super) fn new(registry: &Registry) -> Arc<Self> {
        let metrics = Arc::new(Self::default());
        let collected = metrics.clone();
        registry.on_scrape(&FAMILIES, move |families| collected.collect(families));
        metrics
    }

    pub(super) fn decided(&self, operation: Operation, outcome: Outcome, latency: Span) {
        let counters = self.record(operation, latency);
        counters.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn record(&self, operation: Operation, latency: Span) -> &OperationCounters {
        let counters = &self.0[stripe()].0[operation as usize];
        let micros = latency.as_micros();
        counters.buckets.0[LatencySketch::bucket(micros)].fetch_add(1, Relaxed);
        counters.micros.fetch_add(micros, Relaxed);
        counters
    }

    fn collect(&self, [latencies, decisions]: &mut [FamilyBuilder; FAMILIES.len()]) {
        for operation in Operation::ALL {
            let name = operation.name();
            let latencies_of = self.latencies(operation);
            let count = latencies_of.count();
            if count > 0 {
                let within = BOUNDS_US.into_iter().scan(0, |below, bound| {
                    let up_to = latencies_of.count_up_to(bound);
                    let within = up_to - std::mem::replace(below, up_to);
                    Some((seconds(bound), within))
                });
                let sum = seconds(self.sum(operation, |counters| &counters.micros));
                latencies.add_histogram(&[name], within, count, sum);
            }
            for outcome in Outcome::ALL {
                let count = self.sum(operation, |counters| &counters.outcomes[outcome as usize]);
                if count > 0 {
                    decisions.add(&[name, outcome.name()], count as f64);
                }
            }
        }
    }

    /// Returns the latencies of an operation.
    pub(super) fn latencies(&self, operation: Operation) -> LatencySketch {
        let bucket = |number: usize| self.sum(operation, |counters| &counters.buckets.0[number]);
        LatencySketch::from_counts(std::array::from_fn(bucket))
    }

    /// Returns the number of results of an operation, in the order of [`Outcome::ALL`].
    pub(super) fn outcomes(&self, operation: Operation) -> [u64; Outcome::ALL.len()] {
        Outcome::ALL.map(|one| self.sum(operation, |counters| &counters.outcomes[one as usize]))
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
