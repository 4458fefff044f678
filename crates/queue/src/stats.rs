//! [`StatsCounters`]: counters of the messages that passed through a queue, for metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sluicegate_core::{Span, Timestamp};

use crate::{Delivery, Message};

/// Maximum number of job types that are counted separately; further ones are counted together, so
/// that producers can't fill the memory of the metrics server.
const KINDS_MAX: usize = 100;
/// Name under which further types are counted.
const OTHER: &str = "other";

#[derive(Debug, Default)]
pub(crate) struct StatsCounters {
    sent: AtomicU64,
    received: AtomicU64,
    acked: AtomicU64,
    deferred: AtomicU64,
    retried: AtomicU64,
    dead_lettered: AtomicU64,
    age_us: AtomicU64,
    processing: Mutex<BTreeMap<String, ProcessingHistogram>>,
}

/// The statistics of a queue at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Messages that were sent and confirmed.
    pub sent: u64,
    /// Messages that were handed out.
    pub received: u64,
    /// Messages that were acknowledged.
    pub acked: u64,
    /// Messages that waited for a limit.
    pub deferred: u64,
    /// Messages that failed and are tried again.
    pub retried: u64,
    /// Messages that became dead letters.
    pub dead_lettered: u64,
    /// Age of the last message that was handed out. Queues are ordered, so this approximates the
    /// age of the oldest message on brokers that do not report it.
    pub age: Span,
    /// Processing times by job type.
    pub processing: BTreeMap<String, ProcessingHistogram>,
}

/// A histogram of processing times of one job type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessingHistogram {
    /// Number of jobs per bucket. Each job is counted once, in the first bucket whose bound it does
    /// not exceed.
    pub buckets: [u64; Self::BOUNDS.len()],
    /// Number of jobs.
    pub count: u64,
    /// Total processing time.
    pub sum: Span,
}

impl ProcessingHistogram {
    /// Upper bounds of the buckets.
    pub const BOUNDS: [Span; 10] = [
        Span::from_millis(5),
        Span::from_millis(25),
        Span::from_millis(100),
        Span::from_millis(500),
        Span::from_secs(1),
        Span::from_secs(5),
        Span::from_secs(15),
        Span::from_secs(60),
        Span::from_secs(300),
        Span::from_secs(1_800),
    ];

    const EMPTY: Self = Self { buckets: [0; Self::BOUNDS.len()], count: 0, sum: Span::ZERO };

    fn add(&mut self, took: Span) {
        if let Some(bucket) = Self::BOUNDS.iter().position(|bound| took <= *bound) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.sum = self.sum + took;
    }
}

impl StatsCounters {
    pub(crate) fn sent(&self, messages: usize) {
        self.sent.fetch_add(messages as u64, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, deliveries: &[Delivery], now: Timestamp) {
        self.received.fetch_add(deliveries.len() as u64, Ordering::Relaxed);
        if let Some(sent_at) = deliveries.last().and_then(|last| last.message().meta.sent_at) {
            self.age_us.store(now.since(sent_at).as_micros(), Ordering::Relaxed);
        }
    }

    pub(crate) fn acked(&self, message: &Message, took: Span) {
        self.acked.fetch_add(1, Ordering::Relaxed);
        let kind = message.kind.as_deref().unwrap_or_default();
        let mut all = self.processing.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = if all.contains_key(kind) || all.len() < KINDS_MAX { kind } else { OTHER };
        match all.get_mut(kind) {
            Some(processing) => processing.add(took),
            None => all.entry(kind.to_owned()).or_insert(ProcessingHistogram::EMPTY).add(took),
        }
    }

    pub(crate) fn deferred(&self) {
        self.deferred.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retried.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dead_lettered(&self) {
        self.dead_lettered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> QueueStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let processing = self.processing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        QueueStats {
            sent: read(&self.sent),
            received: read(&self.received),
            acked: read(&self.acked),
            deferred: read(&self.deferred),
            retried: read(&self.retried),
            dead_lettered: read(&self.dead_lettered),
            age: Span::from_micros(read(&self.age_us)),
            processing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_work_are_bounded_whatever_producers_send() {
        let stats = StatsCounters::default();
        for kind in 0..1_000 {
            let message = Message::new("").of_kind(format!("k{kind}"));
            stats.acked(&message, Span::from_millis(30));
        }
        let processing = stats.snapshot().processing;
        assert_eq!(processing.len(), KINDS_MAX + 1);
        assert_eq!(processing[OTHER].count, 900);
        assert_eq!(processing["k0"].buckets, [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
