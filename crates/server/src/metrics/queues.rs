//! Metrics of the queues, read from their owners at each scrape.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus::proto::{Bucket, Histogram, MetricFamily, MetricType};
use sluicegate_core::Span;

use super::family::{Family, FamilyBuilder, SeriesValue};

pub(super) static FAMILIES: [Family; 4] = [
    Family {
        name: "sluicegate_queue_depth",
        help: "Messages in a queue: ready, delayed, in flight, or dead letters of it.",
        kind: MetricType::GAUGE,
        labels: &["queue", "state"],
    },
    Family {
        name: "sluicegate_queue_oldest_seconds",
        help: "Age of the oldest message that is ready.",
        kind: MetricType::GAUGE,
        labels: &["queue"],
    },
    Family {
        name: "sluicegate_queue_messages_total",
        help: "Messages that this process handled, by event.",
        kind: MetricType::COUNTER,
        labels: &["queue", "event"],
    },
    Family {
        name: "sluicegate_queue_processing_seconds",
        help: "Time until a message was acknowledged, by message type.",
        kind: MetricType::HISTOGRAM,
        labels: &["queue", "type"],
    },
];

/// Counters of one queue at one moment. Values that its broker does not report are absent.
#[derive(Clone, Debug, Default)]
pub struct QueueStats {
    /// Name of the queue.
    pub queue: String,
    /// Number of messages by state.
    pub depth: Vec<(&'static str, u64)>,
    /// Age of the oldest message.
    pub oldest: Option<Span>,
    /// Number of handled messages by event.
    pub messages: Vec<(&'static str, u64)>,
    /// Processing time by message type. The source limits the number of types.
    pub processing: Vec<QueueProcessing>,
}

/// Processing time of one message type.
#[derive(Clone, Debug, Default)]
pub struct QueueProcessing {
    /// The message type; empty if the producer set none.
    pub kind: String,
    /// Upper bounds of the buckets, each with the number of messages between it and the bound
    /// before.
    pub took: Vec<(Span, u64)>,
    /// Number of messages, including those above the last bound.
    pub count: u64,
    /// Sum of all processing times.
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

/// The source of the queue metrics.
#[derive(Default)]
pub(super) struct QueueMetrics(Mutex<Option<Read>>);

type Read = Box<dyn Fn() -> Vec<QueueStats> + Send + Sync>;

impl QueueMetrics {
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
                depth.add(&[queue, state], SeriesValue::Level(count as f64));
            }
            if let Some(age) = stats.oldest {
                oldest.add(&[queue], SeriesValue::Level(seconds(age)));
            }
            for &(event, count) in &stats.messages {
                messages.add(&[queue, event], SeriesValue::Count(count));
            }
            for took in &stats.processing {
                processing.add(&[queue, &took.kind], SeriesValue::Distribution(took.histogram()));
            }
        }
        families.map(FamilyBuilder::end).into()
    }
}

impl fmt::Debug for QueueMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueMetrics").finish_non_exhaustive()
    }
}
