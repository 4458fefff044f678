//! [`OwnStarts`]: the real starts of the work of one pacer, counted under its token buckets.
//!
//! The store leaves no slack between the bookings of one pacer, so two starts would be too close
//! together if the first is late. The pacer prevents this itself, because it knows when its work
//! really starts. Decision 022 has the proof.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sluicegate_core::algorithm::bucket::{Bucket, BucketQuota};
use sluicegate_core::algorithm::{EarliestStart, Meter, Slack};
use sluicegate_core::key::Key;
use sluicegate_core::plan::{Charge, Plan};
use sluicegate_core::time::{Span, Timestamp};

use crate::clock::TIMER_LATE;

/// Number of counters above which empty ones are removed.
const COUNTERS: usize = 64;

/// The real starts of the work of one pacer: a bucket for each counter.
#[derive(Debug, Default)]
pub(crate) struct OwnStarts(Mutex<HashMap<Key, Bucket>>);

/// One piece of work whose start the pacer spaces.
#[derive(Clone, Debug)]
pub(crate) struct OwnStart {
    starts: Arc<OwnStarts>,
    charges: Vec<BucketCharge>,
    /// The changed buckets, after the work has started.
    started: Arc<Mutex<Vec<ChangedBucket>>>,
}

/// A bucket before and after the start of a piece of work.
#[derive(Clone, Debug)]
struct ChangedBucket {
    key: Key,
    before: Bucket,
    after: Bucket,
}

#[derive(Clone, Debug)]
struct BucketCharge {
    key: Key,
    quota: BucketQuota,
    need: u64,
    take: u64,
}

impl OwnStart {
    /// Returns the start of a plan's work, or `None` if the pacer does not have to space it.
    pub(crate) fn of_plan(starts: &Arc<OwnStarts>, plan: &Plan<'_>) -> Option<Self> {
        plan.owner?;
        let is_limit = |charge: &&Charge<'_>| {
            !charge.is_gate() && !charge.shadow() && !charge.rule().spreads && charge.take > 0
        };
        let charges = plan.charges().iter().filter(is_limit).filter_map(|charge| {
            let Meter::Bucket(quota) = charge.meter else { return None };
            let (need, take) = (charge.need, charge.take);
            Some(BucketCharge { key: charge.key.clone(), quota, need, take })
        });
        let charges: Vec<_> = charges.collect();
        (!charges.is_empty()).then(|| Self {
            starts: starts.clone(),
            charges,
            started: Arc::default(),
        })
    }

    /// Starts the work at `now` if it fits, otherwise returns the time at which it fits. `from` is
    /// the earliest time.
    pub(crate) fn start(&self, now: Timestamp, from: Timestamp) -> Result<(), Timestamp> {
        let OwnStarts(starts) = &*self.starts;
        let mut starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ready = from.max(now);
        for charge in &self.charges {
            let earliest = starts
                .get(&charge.key)
                .map(|bucket| bucket.earliest(charge.quota, ready, charge.need, None));
            if let Some(EarliestStart::At { start, .. }) = earliest {
                ready = start;
            }
        }
        if ready > now {
            return Err(ready);
        }
        if starts.len() > COUNTERS {
            starts.retain(|_, bucket| bucket.empty_at() > now);
        }
        let charged = self.charges.iter().map(|charge| {
            let bucket = starts.entry(charge.key.clone()).or_default();
            let before = bucket.clone();
            bucket.take(charge.quota, now, Slack::NONE, charge.take);
            ChangedBucket { key: charge.key.clone(), before, after: bucket.clone() }
        });
        let charged = charged.collect();
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = charged;
        Ok(())
    }

    /// Takes the start back, because the work has not started after all. A bucket that other work
    /// has been charged on since keeps the charge, so that real starts are never too close together.
    pub(crate) fn take_back(&self) {
        let charged =
            std::mem::take(&mut *self.started.lock().unwrap_or_else(PoisonError::into_inner));
        let OwnStarts(starts) = &*self.starts;
        let mut starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
        for ChangedBucket { key, before, after } in charged {
            if let Some(bucket) = starts.get_mut(&key).filter(|bucket| **bucket == after) {
                *bucket = before;
            }
        }
    }

    /// Returns true if a late start delays all later ones, because a bucket has no room to catch
    /// up.
    pub(crate) fn is_tight(&self) -> bool {
        self.charges.iter().any(BucketCharge::is_tight)
    }

    /// Returns the time between two starts under the buckets that have no room to catch up, or zero
    /// if there are none.
    pub(crate) fn tight_interval(&self) -> Span {
        let tight = self.charges.iter().filter(|charge| charge.is_tight());
        tight.map(BucketCharge::interval).max().unwrap_or_default()
    }
}

impl BucketCharge {
    fn is_tight(&self) -> bool {
        self.quota.room(self.take) < TIMER_LATE.into()
    }

    /// Returns the time in which the work drains.
    fn interval(&self) -> Span {
        let grains = u128::from(self.take / self.quota.grain());
        let nanos = grains * u128::from(self.quota.drain_ns());
        Span::from_micros(u64::try_from(nanos / 1_000).unwrap_or(u64::MAX))
    }
}

/// Returns the time by which a start may be late under a bucket without delaying the next one: the
/// time in which the whole capacity except for one request drains.
pub(crate) fn room(window: Span, amount: u64, capacity: u64) -> Span {
    let interval = window.as_micros() / amount.max(1);
    Span::from_micros(interval.saturating_mul(capacity.saturating_sub(1)))
}
