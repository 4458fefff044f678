//! Metrics of the Redis store, read from the store at each scrape.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus::proto::{Bucket, Histogram, MetricFamily, MetricType};

use super::family::{Family, FamilyBuilder, SeriesValue};

pub(super) static FAMILIES: [Family; 11] = [
    Family {
        name: "rate_limiter_redis_calls_total",
        help: "Calls to Redis, without retries.",
        kind: MetricType::COUNTER,
        labels: &["operation"],
    },
    Family {
        name: "rate_limiter_redis_errors_total",
        help: "Failed attempts to call Redis, by error type.",
        kind: MetricType::COUNTER,
        labels: &["type", "operation"],
    },
    Family {
        name: "rate_limiter_redis_latency_seconds",
        help: "Time until Redis answered, including retries.",
        kind: MetricType::HISTOGRAM,
        labels: &["operation"],
    },
    Family {
        name: "sluicegate_redis_up",
        help: "1 if Redis is reachable.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_evicts",
        help: "1 if Redis may evict counters when its memory is full.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_refuses_writes",
        help: "1 if Redis answers but refuses writes, by reason; every decision is refused then.",
        kind: MetricType::GAUGE,
        labels: &["reason"],
    },
    Family {
        name: "sluicegate_redis_memory_losses_total",
        help: "Times that a Redis server lost its data, so that limits started again at zero.",
        kind: MetricType::COUNTER,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_nodes",
        help: "Limiter nodes seen recently, including this one.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_taking_back",
        help: "Timed-out attempts that are being rolled back.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_not_taken_back_total",
        help: "Timed-out attempts that stay charged because too many were being rolled back.",
        kind: MetricType::COUNTER,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_deny_cache_hits_total",
        help: "Denials from the cache, without a call to Redis.",
        kind: MetricType::COUNTER,
        labels: &[],
    },
];

/// Counters of the Redis store.
#[derive(Clone, Debug, Default)]
pub struct RedisStats {
    /// True if Redis is reachable.
    pub up: bool,
    /// True if Redis may evict counters when its memory is full.
    pub evicts: bool,
    /// The reason why Redis refuses writes, if it does.
    pub refusal: Option<&'static str>,
    /// Number of times that a server lost its data.
    pub losses: u64,
    /// Number of limiter nodes seen recently.
    pub nodes: u32,
    /// Number of timed-out attempts that are being rolled back.
    pub taking_back: u64,
    /// Number of timed-out attempts that stay charged because too many were being rolled back.
    pub not_taken_back: u64,
    /// Number of denials from the cache, without a call to Redis.
    pub denied_without_asking: u64,
    /// Counters of each operation.
    pub calls: Vec<RedisCalls>,
}

/// Counters of one operation.
#[derive(Clone, Debug, Default)]
pub struct RedisCalls {
    /// Name of the operation.
    pub operation: &'static str,
    /// Failed attempts by error type.
    pub errors: Vec<(&'static str, u64)>,
    /// Upper bounds of the buckets in microseconds, each with the number of calls between it and
    /// the bound before; the last bound is infinite.
    pub took: Vec<(u64, u64)>,
    /// Sum of the latencies in microseconds.
    pub micros: u64,
}

impl RedisCalls {
    fn histogram(&self) -> Histogram {
        let mut count = 0;
        let mut buckets = Vec::new();
        for &(bound, took) in &self.took {
            count += took;
            if bound < u64::MAX {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(bound as f64 / 1e6);
                bucket.set_cumulative_count(count);
                buckets.push(bucket);
            }
        }
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(count);
        histogram.set_sample_sum(self.micros as f64 / 1e6);
        histogram
    }
}

/// The source of the Redis metrics.
#[derive(Default)]
pub(super) struct RedisMetrics(Mutex<Option<Read>>);

type Read = Box<dyn Fn() -> RedisStats + Send + Sync>;

impl RedisMetrics {
    pub(super) fn watch(&self, read: Read) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
    }

    pub(super) fn collect(&self) -> Vec<MetricFamily> {
        let mut families = FAMILIES.each_ref().map(Family::gather);
        let [
            calls,
            errors,
            latencies,
            up,
            evicts,
            refuses,
            losses,
            nodes,
            taking_back,
            not_taken_back,
            denied,
        ] = &mut families;
        if let Some(read) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let stats = read();
            up.add(&[], SeriesValue::Level(f64::from(stats.up)));
            evicts.add(&[], SeriesValue::Level(f64::from(stats.evicts)));
            let reason = stats.refusal.unwrap_or("none");
            refuses.add(&[reason], SeriesValue::Level(f64::from(stats.refusal.is_some())));
            losses.add(&[], SeriesValue::Count(stats.losses));
            nodes.add(&[], SeriesValue::Level(f64::from(stats.nodes)));
            taking_back.add(&[], SeriesValue::Level(stats.taking_back as f64));
            not_taken_back.add(&[], SeriesValue::Count(stats.not_taken_back));
            denied.add(&[], SeriesValue::Count(stats.denied_without_asking));
            for counted in &stats.calls {
                let histogram = counted.histogram();
                if histogram.get_sample_count() == 0 {
                    continue;
                }
                calls.add(&[counted.operation], SeriesValue::Count(histogram.get_sample_count()));
                for &(word, count) in &counted.errors {
                    errors.add(&[word, counted.operation], SeriesValue::Count(count));
                }
                latencies.add(&[counted.operation], SeriesValue::Distribution(histogram));
            }
        }
        families.map(FamilyBuilder::end).into()
    }
}

impl fmt::Debug for RedisMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisMetrics").finish_non_exhaustive()
    }
}
