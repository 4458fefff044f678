//! [`Counter`]: one simulated counter: a log or a bucket of `sluicegate_core`, with refunds.

use std::fmt;

use sluicegate_core::algorithm::bucket::{self, Bucket};
use sluicegate_core::algorithm::log::{self, Log};
use sluicegate_core::algorithm::{EarliestStart, Slack};
use sluicegate_core::limit::Limit;
use sluicegate_core::{Id, Span, Timestamp};

/// The usage of one key.
#[derive(Debug)]
pub(crate) enum Counter {
    Log { log: Log, quotas: Vec<log::LogQuota> },
    Bucket { bucket: Bucket, quota: bucket::BucketQuota, latest: Timestamp },
}

/// A reference to one charged unit, needed to refund it.
///
/// | counter | mark |
/// |---|---|
/// | log | the score |
/// | bucket | the time at which it drains, and the amount refunded before it was charged |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeMark {
    Score(Timestamp),
    Poured(bucket::BucketWithdrawal),
}

/// The information that a bucket uses when it refunds a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefundMode {
    /// Both later charges and earlier refunds, which is correct.
    Safe,
    /// Not the charges for later times.
    ForgetsLater,
    /// Not the refunds since the unit was charged.
    ForgetsGivenBack,
}

impl Counter {
    pub(crate) fn log(quotas: Vec<log::LogQuota>) -> Self {
        Self::Log { log: Log::default(), quotas }
    }

    /// Creates a bucket of `capacity` from which one unit drains in `drain`.
    pub(crate) fn bucket(capacity: u64, drain: Span) -> Self {
        let limit = format!("1/{drain} burst {capacity}");
        let quota = match limit.parse() {
            Ok(Limit::Bucket { rate, capacity }) => bucket::BucketQuota::new(rate, capacity),
            _ => None,
        };
        let quota = quota.expect("a drain of milliseconds can be metered");
        Self::Bucket { bucket: Bucket::default(), quota, latest: Timestamp::ZERO }
    }

    /// Returns the first time from `from` on at which one more unit fits.
    pub(crate) fn earliest(&self, from: Timestamp) -> Timestamp {
        self.earliest_for(None, from)
    }

    /// Returns the first time from `from` on at which one more unit of an owner fits.
    pub(crate) fn earliest_for(&self, owner: Option<Id>, from: Timestamp) -> Timestamp {
        let earliest = match self {
            Self::Log { log, quotas } => log.earliest(quotas, from, 1),
            Self::Bucket { bucket, quota, .. } => bucket.earliest(*quota, from, 1, owner),
        };
        start(earliest)
    }

    /// Returns an unused counter with the same limits.
    pub(crate) fn unused(&self) -> Self {
        match self {
            Self::Log { quotas, .. } => Self::log(quotas.clone()),
            Self::Bucket { quota, .. } => {
                let (bucket, latest) = (Bucket::default(), Timestamp::ZERO);
                Self::Bucket { bucket, quota: *quota, latest }
            }
        }
    }

    /// Returns the same for a faulty store that ignores later bookings.
    pub(crate) fn earliest_without_bookings(&self, from: Timestamp) -> Timestamp {
        let Self::Log { log, quotas } = self else {
            return self.earliest(from);
        };
        let mut past = Log::default();
        for &score in log.scores().iter().filter(|&&score| score <= from) {
            past.take(score, 1);
        }
        start(past.earliest(quotas, from, 1))
    }

    /// Charges one unit at `at`.
    pub(crate) fn take(&mut self, at: Timestamp) -> ChargeMark {
        self.take_within(at, Slack::NONE)
    }

    /// Charges one unit that starts at `start` or up to a slack later.
    pub(crate) fn take_within(&mut self, start: Timestamp, slack: Slack) -> ChargeMark {
        let at = start + slack.span;
        match self {
            Self::Log { log, .. } => {
                log.take(at, 1);
                ChargeMark::Score(at)
            }
            Self::Bucket { bucket, quota, latest } => {
                *latest = at.max(*latest);
                ChargeMark::Poured(bucket.take(*quota, start, slack, 1))
            }
        }
    }

    /// Refunds one unit.
    ///
    /// A bucket is one number, so it can't be recomputed without the unit. Two bounds limit the
    /// refund. First, units that were charged afterwards for a later time did not wait for this one
    /// to drain, so nothing is refunded below the latest time. Second, this unit drains earlier by
    /// the amount that was refunded since it was charged. Without the first bound, a cancelled
    /// booking would make room twice if another booking is behind it; without the second, two
    /// refunds in a row would.
    pub(crate) fn give_back(&mut self, mark: ChargeMark, now: Timestamp, how: RefundMode) {
        match (self, mark) {
            (Self::Log { log, .. }, ChargeMark::Score(at)) => log.give_back(at, 1),
            (Self::Bucket { bucket, quota, latest }, ChargeMark::Poured(mut pour)) => {
                match how {
                    RefundMode::Safe => {}
                    RefundMode::ForgetsLater => {
                        pour.drained_at_ns += latest.since(now).as_micros() * 1_000;
                    }
                    RefundMode::ForgetsGivenBack => pour.given_back_ns = u64::MAX,
                }
                bucket.give_back(*quota, pour, 1, now);
            }
            _ => unreachable!("a mark comes from its own counter"),
        }
    }

    /// Removes the newest entry of a log, whatever its owner.
    pub(crate) fn give_back_newest(&mut self) {
        if let Self::Log { log, .. } = self
            && let Some(newest) = log.last()
        {
            log.give_back(newest, 1);
        }
    }

    /// Returns the usage at `now`, bookings included.
    pub(crate) fn used(&self, now: Timestamp) -> u64 {
        match self {
            Self::Log { log, quotas } => {
                quotas.iter().map(|&quota| log.reading(quota, now).used).max().unwrap_or_default()
            }
            Self::Bucket { bucket, quota, .. } => bucket.reading(*quota, now).used,
        }
    }

    /// Returns the time for which a charge counts.
    pub(crate) fn window(&self) -> Span {
        match self {
            Self::Log { quotas, .. } => quotas.iter().map(|q| q.window).max().unwrap_or_default(),
            Self::Bucket { quota, .. } => quota.drained_in(),
        }
    }

    /// Returns a description of an interval with more `uses` than the limit allows, if there is
    /// one.
    pub(crate) fn exceeded(&self, uses: &[Timestamp]) -> Option<String> {
        let mut uses = uses.to_vec();
        uses.sort_unstable();
        match self {
            Self::Log { quotas, .. } => quotas.iter().find_map(|quota| exceeded(*quota, &uses)),
            Self::Bucket { quota, .. } => poured(*quota, &uses),
        }
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log { quotas, .. } => {
                let quotas: Vec<_> =
                    quotas.iter().map(|q| format!("{}/{}", q.limit, q.window)).collect();
                write!(f, "log {}", quotas.join(" and "))
            }
            Self::Bucket { quota, .. } => {
                let drain = Span::from_micros(quota.drain_ns() / 1_000);
                write!(f, "bucket of {}, one drains in {drain}", quota.capacity())
            }
        }
    }
}

fn start(earliest: EarliestStart) -> Timestamp {
    match earliest {
        EarliestStart::At { start, .. } => start,
        other => unreachable!("one fits into every limit: {other:?}"),
    }
}

/// Returns a description of more than `limit` uses within one window.
pub(crate) fn exceeded(quota: log::LogQuota, sorted: &[Timestamp]) -> Option<String> {
    let more = usize::try_from(quota.limit).expect("a limit of a simulation is small") + 1;
    let crowd = sorted.windows(more).find(|crowd| crowd[more - 1] < crowd[0] + quota.window)?;
    let within = crowd[more - 1].since(crowd[0]);
    Some(format!("{more} uses within {within}, limit {}/{}", quota.limit, quota.window))
}

/// Returns a description of an interval with more uses than a full bucket plus its drain.
fn poured(quota: bucket::BucketQuota, sorted: &[Timestamp]) -> Option<String> {
    for (from, &first) in sorted.iter().enumerate() {
        for (&last, count) in sorted[from..].iter().zip(1_u64..) {
            let over = count.saturating_sub(quota.capacity());
            let within = last.since(first);
            if over * quota.drain_ns() > within.as_micros() * 1_000 {
                return Some(format!(
                    "{count} uses within {within}, bucket of {}",
                    quota.capacity()
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    /// Returns the number of units that fit at once.
    fn fit(counter: &mut Counter, now: Timestamp) -> usize {
        let fits = std::iter::from_fn(|| (counter.earliest(now) == now).then(|| counter.take(now)));
        fits.count()
    }

    #[test]
    fn a_cancelled_booking_does_not_make_room_beside_the_one_behind_it() {
        for (how, start) in [(RefundMode::Safe, 220), (RefundMode::ForgetsLater, 120)] {
            let mut counter = Counter::bucket(1, Span::from_millis(100));
            let slack = Span::from_millis(10);
            let first = counter.take(counter.earliest(at(0)) + slack);
            assert_eq!(counter.earliest(at(0)), at(110));
            counter.take(at(110) + slack);
            counter.give_back(first, at(5), how);
            // The second may start at 120, so the third not before 220.
            assert_eq!(counter.earliest(at(5)), at(start), "{how:?}");
        }
    }

    #[test]
    fn two_refunds_in_a_row_make_room_once() {
        for (how, more) in [(RefundMode::Safe, 1), (RefundMode::ForgetsGivenBack, 2)] {
            let mut counter = Counter::bucket(2, Span::from_millis(100));
            let (first, second) = (counter.take(at(0)), counter.take(at(0)));
            counter.give_back(first, at(0), how);
            counter.take(at(100));
            counter.give_back(second, at(100), how);
            assert_eq!(fit(&mut counter, at(100)), more, "beside the third: {how:?}");
        }
    }
}
