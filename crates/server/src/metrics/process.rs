//! Metrics of connections, the store and the decision log, read from their owners at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus::proto::{MetricFamily, MetricType};

use super::family::{Family, FamilyBuilder, SeriesValue};

pub(super) static FAMILIES: [Family; 5] = [
    Family {
        name: "sluicegate_connections",
        help: "Open connections.",
        kind: MetricType::GAUGE,
        labels: &["listener"],
    },
    Family {
        name: "sluicegate_store_keys",
        help: "Counters in the store.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_store_overflow_keys",
        help: "Counters shared by keys that had no room for one each.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_store_records",
        help: "Open reservations and remembered ids in the store.",
        kind: MetricType::GAUGE,
        labels: &[],
    },
    Family {
        name: "sluicegate_decision_log_dropped_total",
        help: "Lines that the decision log could not write in time.",
        kind: MetricType::COUNTER,
        labels: &[],
    },
];

/// Number of entries in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSize {
    /// Number of counters.
    pub keys: usize,
    /// Number of counters shared by keys that had no room for one each.
    pub overflow: usize,
    /// Number of open reservations and remembered ids.
    pub records: usize,
}

type Read<T> = Box<dyn Fn() -> T + Send + Sync>;

/// The sources of these metrics.
#[derive(Default)]
pub(super) struct ProcessMetrics(Mutex<Sources>);

#[derive(Default)]
struct Sources {
    connections: BTreeMap<String, Read<u64>>,
    store: Option<Read<StoreSize>>,
    dropped: Option<Read<u64>>,
}

impl ProcessMetrics {
    pub(super) fn connections(&self, listener: &str, read: Read<u64>) {
        self.sources().connections.insert(listener.to_owned(), read);
    }

    pub(super) fn store(&self, read: Read<StoreSize>) {
        self.sources().store = Some(read);
    }

    pub(super) fn dropped(&self, read: Read<u64>) {
        self.sources().dropped = Some(read);
    }

    pub(super) fn collect(&self) -> Vec<MetricFamily> {
        let mut families = FAMILIES.each_ref().map(Family::gather);
        let [connections, keys, overflow, records, dropped] = &mut families;
        let sources = self.sources();
        for (listener, read) in &sources.connections {
            connections.add(&[listener], SeriesValue::Level(read() as f64));
        }
        if let Some(read) = &sources.store {
            let size = read();
            keys.add(&[], SeriesValue::Level(size.keys as f64));
            overflow.add(&[], SeriesValue::Level(size.overflow as f64));
            records.add(&[], SeriesValue::Level(size.records as f64));
        }
        if let Some(read) = &sources.dropped {
            dropped.add(&[], SeriesValue::Count(read()));
        }
        families.map(FamilyBuilder::end).into()
    }

    /// Locks the sources. A source that panicked does not affect the others.
    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ProcessMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessMetrics").finish_non_exhaustive()
    }
}
