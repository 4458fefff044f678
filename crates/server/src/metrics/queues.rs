//! What went through queues, and what lies in them, read whenever somebody looks.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus::proto::{Bucket, Histogram, MetricFamily, MetricType};
use sluicegate_core::Span;

use super::family::{Family, Gathering, Value};

pub(super) static FAMILIES: [Family; 4] = [
    Family {
        name: "sluicegate_queue_depth",
        help: "Messages in a queue: ready, delayed, in flight, or dead letters of it.",
        kind: MetricType::GAUGE,
        labels: &["queue", "state"],
    },
    Family {
        name: "sluicegate_queue_oldest_seconds",
        help: "How long the oldest message that is ready has been waiting.",
        kind: MetricType::GAUGE,
        labels: &["queue"],
    },
    Family {
        name: "sluicegate_queue_messages_total",
        help: "Messages of a queue, by what this process did with them.",
        kind: MetricType::COUNTER,
        labels: &["queue", "event"],
    },
    Family {
        name: "sluicegate_queue_processing_seconds",
        help: "How long work took until its message was acknowledged, by its type.",
        kind: MetricType::HISTOGRAM,
        labels: &["queue", "type"],
    },
];

/// One queue, at one moment. What its broker does not tell is none.
#[derive(Clone, Debug, Default)]
pub struct QueueStats {
    /// What it is called.
    pub queue: String,
    /// How many messages there are, by a word for their state.
    pub depth: Vec<(&'static str, u64)>,
    /// How long the oldest has been waiting.
    pub oldest: Option<Span>,
    /// How many messages, by a word for what was done with them.
    pub messages: Vec<(&'static str, u64)>,
    /// How long work took, by its type. There are few: whoever counts sees to it.
    pub processing: Vec<QueueProcessing>,
}

/// How long one type of work took.
#[derive(Clone, Debug, Default)]
pub struct QueueProcessing {
    /// The type; empty where the producer named none.
    pub kind: String,
    /// How many took no longer than this and longer than the bound before.
    pub took: Vec<(Span, u64)>,
    /// How many there were, longer ones included.
    pub count: u64,
    /// All of them together.
    pub sum: Span,
}

impl QueueProcessing {
    fn histogram(&self) -> Histogram {
        let mut within = 0;
        let buckets = self.took.iter().map(|&(bound, took)| {
            within += took;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(seconds(bound));
            bucket.set_cumulative_count(within);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(self.count);
        histogram.set_sample_sum(seconds(self.sum));
        histogram
    }
}

fn seconds(span: Span) -> f64 {
    span.as_micros() as f64 / 1e6
}

/// Who is asked when somebody looks.
#[derive(Default)]
pub(super) struct Queues(Mutex<Option<Read>>);

type Read = Box<dyn Fn() -> Vec<QueueStats> + Send + Sync>;

impl Queues {
    pub(super) fn watch(&self, read: Read) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
    }

    pub(super) fn collect(&self) -> Vec<MetricFamily> {
        let mut families = FAMILIES.each_ref().map(Family::gather);
        let [depth, oldest, messages, processing] = &mut families;
        let read = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for stats in read.iter().flat_map(|read| read()) {
            let queue = stats.queue.as_str();
            for &(state, count) in &stats.depth {
                depth.add(&[queue, state], Value::Level(count as f64));
            }
            if let Some(age) = stats.oldest {
                oldest.add(&[queue], Value::Level(seconds(age)));
            }
            for &(event, count) in &stats.messages {
                messages.add(&[queue, event], Value::Count(count));
            }
            for took in &stats.processing {
                processing.add(&[queue, &took.kind], Value::Distribution(took.histogram()));
            }
        }
        families.map(Gathering::end).into()
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").finish_non_exhaustive()
    }
}
