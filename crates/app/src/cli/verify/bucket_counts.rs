//! Compares the levels that the store reported for a token bucket with the charges in the log, to
//! detect missing log lines.
//!
//! A bucket is one instant: the time at which everything taken has drained. A reported level states
//! that time, up to one unit. From one report to the next only charges can make it later, so the
//! logged charges in between have to explain how much later it is. Amounts that are given back are
//! ignored: they make it earlier, as the next report shows.
//!
//! In memory, decisions of several threads may be counted in another order than that of their
//! times, and several may have the same time. A charge may be part of a report with an earlier time if
//! its call began before that, and may be missing from a report with a later time while its call runs.

use std::mem;

use sluicegate_core::algorithm::bucket::BucketQuota;
use sluicegate_core::{Limit, Timestamp};

use super::store_counts::{ReportedCount, StoreCharge, UnexplainedCount};

/// The level of one bucket as far as the log explains it.
pub(super) struct BucketLevel {
    quota: BucketQuota,
    /// Latest time at which the bucket can have drained, in nanoseconds; unknown until the first
    /// report.
    drained_ns: Option<u128>,
    /// Sum of the levels that only charges of unanswered calls explain, in nanoseconds.
    excused_ns: u128,
    /// Time of the last report.
    reported_at: Timestamp,
}

/// An event of a bucket, in the order in which those of the same instant are processed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BucketEvent {
    /// From here on, the store may have made a charge.
    Possible(usize),
    /// Time of the charge by the clock of the store.
    Charged(usize),
    /// The store reported the level.
    Reported(usize),
    /// From here on, every report contains the charge.
    Counted(usize),
}

impl BucketLevel {
    /// Returns the level of a limit, if it is a bucket.
    pub(super) fn new(limit: &Limit) -> Option<Self> {
        let Limit::Bucket { rate, capacity } = limit else { return None };
        let quota = BucketQuota::new(*rate, *capacity)?;
        Some(Self { quota, drained_ns: None, excused_ns: 0, reported_at: Timestamp::ZERO })
    }

    /// Returns true if this is the level of a bucket with the same rate and capacity.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.quota == other.quota
    }

    /// Forgets the level: it is unknown until the next report.
    pub(super) fn forget(&mut self) {
        self.drained_ns = None;
    }

    /// Compares the reports of the time after `from` until `until` with the charges. Calls without
    /// an answer can have charged `unconfirmed` until an instant.
    pub(super) fn compare(
        &mut self,
        (from, until): (Timestamp, Timestamp),
        charges: &[StoreCharge],
        reports: &[ReportedCount],
        unconfirmed: impl Fn(Timestamp) -> u64,
    ) -> Vec<UnexplainedCount> {
        let mut events = Vec::new();
        for (index, charge) in charges.iter().enumerate() {
            if from < charge.at && charge.earliest <= until {
                events.push((charge.earliest.min(charge.at), BucketEvent::Possible(index)));
                events.push((charge.at, BucketEvent::Charged(index)));
                events.push((charge.counted_by(), BucketEvent::Counted(index)));
            }
        }
        let reported =
            |(index, report): (usize, &ReportedCount)| (report.at, BucketEvent::Reported(index));
        events.extend(reports.iter().enumerate().map(reported));
        events.retain(|(at, _)| *at <= until);
        events.sort_unstable();
        let (mut pending, mut uncounted) = (PendingCharges::default(), PendingCharges::default());
        let mut found = Vec::new();
        for (at, event) in events {
            match event {
                BucketEvent::Possible(index) => pending.add(&charges[index], self.quota),
                BucketEvent::Charged(index) => {
                    pending.remove(&charges[index], self.quota);
                    uncounted.add(&charges[index], self.quota);
                    self.charge(&charges[index]);
                }
                BucketEvent::Counted(index) => uncounted.remove(&charges[index], self.quota),
                BucketEvent::Reported(index) => {
                    let open = (&pending, &uncounted);
                    found.extend(self.report(at, &reports[index], open, &unconfirmed));
                }
            }
        }
        found
    }

    fn charge(&mut self, charge: &StoreCharge) {
        // Another call may have been counted first, at a time up to the duration of this one later.
        let at = charge.from + charge.duration();
        if let Some(drained_ns) = &mut self.drained_ns {
            *drained_ns = (*drained_ns).max(nanos(at)) + cost_ns(self.quota, charge.amount);
        }
    }

    fn report(
        &mut self,
        at: Timestamp,
        report: &ReportedCount,
        (pending, uncounted): (&PendingCharges, &PendingCharges),
        unconfirmed: impl Fn(Timestamp) -> u64,
    ) -> Option<UnexplainedCount> {
        let (grain, drain_ns) = (self.quota.grain(), u128::from(self.quota.drain_ns()));
        // Dollars are parsed as floats, so the last digit may be off.
        let units = u128::from((report.count + grain / 2) / grain);
        // The level is rounded up: the bucket drains after the first of these times, at the latest
        // at the second, unless a charge that is already made is not yet counted.
        let after_ns = nanos(at) + units.saturating_sub(1) * drain_ns;
        let latest_ns = nanos(at) + units * drain_ns + uncounted.cost_ns;
        let since = mem::replace(&mut self.reported_at, at);
        let known_ns = self.drained_ns.replace(latest_ns)?;
        let explained_ns = known_ns.max(nanos(pending.from)) + pending.cost_ns;
        if units == 0 || after_ns < explained_ns {
            self.drained_ns = Some(known_ns.min(latest_ns));
            return None;
        }
        let missing_ns = after_ns - explained_ns + 1;
        let budget_ns = cost_ns(self.quota, unconfirmed(at));
        if self.excused_ns + missing_ns <= budget_ns {
            self.excused_ns += missing_ns;
            return None;
        }
        let explained = explained_ns.saturating_sub(nanos(at)).div_ceil(drain_ns);
        let explained = u64::try_from(explained).unwrap_or(u64::MAX).saturating_mul(grain);
        let (position, count) = (report.position, report.count);
        Some(UnexplainedCount { at, since, position, count, explained })
    }
}

/// Charges that the store may or may not have made at some instant.
#[derive(Default)]
struct PendingCharges {
    number: usize,
    cost_ns: u128,
    /// Latest time at which one of them is counted.
    from: Timestamp,
}

impl PendingCharges {
    fn add(&mut self, charge: &StoreCharge, quota: BucketQuota) {
        self.number += 1;
        self.cost_ns += cost_ns(quota, charge.amount);
        self.from = self.from.max(charge.from);
    }

    fn remove(&mut self, charge: &StoreCharge, quota: BucketQuota) {
        self.number -= 1;
        self.cost_ns -= cost_ns(quota, charge.amount);
        if self.number == 0 {
            self.from = Timestamp::ZERO;
        }
    }
}

/// Returns the time in which an amount drains, in nanoseconds.
fn cost_ns(quota: BucketQuota, amount: u64) -> u128 {
    u128::from(amount.div_ceil(quota.grain())) * u128::from(quota.drain_ns())
}

fn nanos(at: Timestamp) -> u128 {
    u128::from(at.as_micros()) * 1_000
}
