//! What went through a queue, counted for whoever collects metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sluicegate_core::{Span, Timestamp};

use crate::{Delivery, Message};

/// The most kinds of work that are told apart; further ones are counted together, so that
/// producers can't fill the memory of whoever collects.
const KINDS_MAX: usize = 100;
/// What further ones are called.
const OTHER: &str = "other";

#[derive(Debug, Default)]
pub(crate) struct Stats {
    sent: AtomicU64,
    received: AtomicU64,
    acked: AtomicU64,
    deferred: AtomicU64,
    retried: AtomicU64,
    dead_lettered: AtomicU64,
    age_us: AtomicU64,
    processing: Mutex<BTreeMap<String, Processing>>,
}

/// What was counted, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Messages that were sent and confirmed.
    pub sent: u64,
    /// Messages that were handed out.
    pub received: u64,
    /// Messages whose work was done.
    pub acked: u64,
    /// Messages that had to wait for a limit.
    pub deferred: u64,
    /// Messages whose work failed and is tried once more.
    pub retried: u64,
    /// Messages that became dead letters.
    pub dead_lettered: u64,
    /// How old the message was that was handed out last. Queues are in order, so that is about
    /// the age of the oldest, where the broker does not tell it.
    pub age: Span,
    /// How long work took, by its kind.
    pub processing: BTreeMap<String, Processing>,
}

/// How long one kind of work took, as a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processing {
    /// How many took at most as long as the bound of the same place, each counted once.
    pub buckets: [u64; Self::BOUNDS.len()],
    /// How many there were.
    pub count: u64,
    /// All of them together.
    pub sum: Span,
}

impl Processing {
    /// What the buckets go up to.
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

impl Stats {
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
            None => all.entry(kind.to_owned()).or_insert(Processing::EMPTY).add(took),
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

    pub(crate) fn snapshot(&self) -> Snapshot {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let processing = self.processing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Snapshot {
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
        let stats = Stats::default();
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
