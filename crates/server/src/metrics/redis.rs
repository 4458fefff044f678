//! What the store on Redis has counted, read whenever somebody looks.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus::proto::{Bucket, Histogram, MetricFamily, MetricType};

use super::family::{Family, Gathering, Value};

pub(super) static FAMILIES: [Family; 11] = [
    Family {
        name: "rate_limiter_redis_calls_total",
        help: "Questions to Redis, retries not counted.",
        kind: MetricType::COUNTER,
        labels: &["operation"],
    },
    Family {
        name: "rate_limiter_redis_errors_total",
        help: "Attempts that Redis did not answer, by what went wrong.",
        kind: MetricType::COUNTER,
        labels: &["type", "operation"],
    },
    Family {
        name: "rate_limiter_redis_latency_seconds",
        help: "How long Redis took to answer, retries included.",
        kind: MetricType::HISTOGRAM,
        labels: &["operation"],
    },
    Family {
        name: "sluicegate_redis_up",
        help: "Whether Redis can be asked.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_evicts",
        help: "Whether Redis may throw counters away when its memory is full.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_refuses_writes",
        help: "Whether Redis answers but writes nothing, by why; every decision is refused then.",
        kind: MetricType::GAUGE,
        labels: &["reason"],
    },
    Family {
        name: "sluicegate_redis_memory_losses_total",
        help: "How often a Redis server has lost its memory, so that limits began anew.",
        kind: MetricType::COUNTER,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_nodes",
        help: "Limiter nodes that were seen lately, this one included.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_taking_back",
        help: "Attempts that were given up and are being taken back.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_not_taken_back_total",
        help: "Attempts that stay charged because too many were being taken back.",
        kind: MetricType::COUNTER,
        labels: &[],
    },
    Family {
        name: "sluicegate_redis_deny_cache_hits_total",
        help: "Denials that were repeated without asking Redis.",
        kind: MetricType::COUNTER,
        labels: &[],
    },
];

/// What the store on Redis has counted.
#[derive(Clone, Debug, Default)]
pub struct RedisStats {
    /// It can be asked.
    pub up: bool,
    /// It may throw counters away when its memory is full.
    pub evicts: bool,
    /// Why it answers but writes nothing, if it does.
    pub refusal: Option<&'static str>,
    /// How often a server has lost its memory.
    pub losses: u64,
    /// So many nodes were seen lately.
    pub nodes: u32,
    /// So many attempts are being taken back.
    pub taking_back: u64,
    /// So many stay charged because too many were being taken back.
    pub not_taken_back: u64,
    /// So many denials were repeated without asking.
    pub denied_without_asking: u64,
    /// Of each operation.
    pub calls: Vec<RedisCalls>,
}

/// What was counted of one operation.
#[derive(Clone, Debug, Default)]
pub struct RedisCalls {
    /// Its name.
    pub operation: &'static str,
    /// Attempts that failed, by a word for why.
    pub errors: Vec<(&'static str, u64)>,
    /// How many took no longer than so many microseconds and longer than the bound before; the
    /// last bound is none.
    pub took: Vec<(u64, u64)>,
    /// How long all of them took together.
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

/// Who is asked when somebody looks.
#[derive(Default)]
pub(super) struct Redis(Mutex<Option<Read>>);

type Read = Box<dyn Fn() -> RedisStats + Send + Sync>;

impl Redis {
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
            up.add(&[], Value::Level(f64::from(stats.up)));
            evicts.add(&[], Value::Level(f64::from(stats.evicts)));
            let reason = stats.refusal.unwrap_or("none");
            refuses.add(&[reason], Value::Level(f64::from(stats.refusal.is_some())));
            losses.add(&[], Value::Count(stats.losses));
            nodes.add(&[], Value::Level(f64::from(stats.nodes)));
            taking_back.add(&[], Value::Level(stats.taking_back as f64));
            not_taken_back.add(&[], Value::Count(stats.not_taken_back));
            denied.add(&[], Value::Count(stats.denied_without_asking));
            for counted in &stats.calls {
                let histogram = counted.histogram();
                if histogram.get_sample_count() == 0 {
                    continue;
                }
                calls.add(&[counted.operation], Value::Count(histogram.get_sample_count()));
                for &(word, count) in &counted.errors {
                    errors.add(&[word, counted.operation], Value::Count(count));
                }
                latencies.add(&[counted.operation], Value::Distribution(histogram));
            }
        }
        families.map(Gathering::end).into()
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}
