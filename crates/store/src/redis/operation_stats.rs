//! Latency and error counters of every operation, for metrics.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate_core::time::Span;

use super::failure::CallFailure;

/// An operation of the store, as metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisOperation {
    /// See [`sluicegate_core::Store::acquire`].
    Acquire,
    /// See [`sluicegate_core::Store::peek`].
    Peek,
    /// See [`sluicegate_core::Store::book`].
    Book,
    /// See [`sluicegate_core::Store::claim`].
    Claim,
    /// See [`sluicegate_core::Store::cancel`].
    Cancel,
    /// See [`sluicegate_core::Store::settle`].
    Settle,
    /// See [`sluicegate_core::Store::release`].
    Release,
    /// See [`sluicegate_core::Store::renew`].
    Renew,
    /// See [`sluicegate_core::Store::refund`].
    Refund,
    /// See [`sluicegate_core::Store::close`].
    Close,
    /// See [`sluicegate_core::Store::reset`].
    Reset,
    /// See [`sluicegate_core::Store::usage`].
    Usage,
    /// See [`sluicegate_core::override_store::OverrideStore`].
    Overrides,
    /// See [`sluicegate_core::Store::exchange_backlogs`].
    Backlogs,
    /// See [`sluicegate_core::reservation_store::ReservationStore`].
    Reservations,
}

impl RedisOperation {
    /// All operations with their names.
    pub const ALL: [(Self, &'static str); 15] = [
        (Self::Acquire, "acquire"),
        (Self::Peek, "peek"),
        (Self::Book, "book"),
        (Self::Claim, "claim"),
        (Self::Cancel, "cancel"),
        (Self::Settle, "settle"),
        (Self::Release, "release"),
        (Self::Renew, "renew"),
        (Self::Refund, "refund"),
        (Self::Close, "close"),
        (Self::Reset, "reset"),
        (Self::Usage, "usage"),
        (Self::Overrides, "shelf"),
        (Self::Backlogs, "backlogs"),
        (Self::Reservations, "reservations"),
    ];
}

/// Latencies and errors of one operation.
#[derive(Clone, Debug)]
pub struct OperationStats {
    /// Name of the operation.
    pub operation: &'static str,
    /// Failed attempts by reason.
    pub errors: Vec<(&'static str, u64)>,
    /// Pairs of a bound in microseconds and the number of operations that took at most that long
    /// and longer than the previous bound, including retries. The last bound is `u64::MAX`.
    pub took: Vec<(u64, u64)>,
    /// Sum of all latencies, in microseconds.
    pub micros: u64,
}

/// Upper bounds of the latency buckets. They include the default timeout of 20 ms and the deadline
/// of 45 ms.
const BOUNDS_US: [u64; 12] =
    [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 45_000, 100_000, 1_000_000, u64::MAX];

const ERROR_REASONS: [&str; 6] = ["down", "not_ready", "cut", "timeout", "refused", "moved"];

#[derive(Debug, Default)]
struct OperationCounter {
    took: [AtomicU64; BOUNDS_US.len()],
    micros: AtomicU64,
    errors: [AtomicU64; ERROR_REASONS.len()],
}

/// The counters of all operations.
#[derive(Debug, Default)]
pub(super) struct OperationCounters([OperationCounter; RedisOperation::ALL.len()]);

impl OperationCounters {
    /// Counts an operation that has ended.
    pub(super) fn took(&self, operation: RedisOperation, latency: Span) {
        let (counts, micros) = (&self.0[operation as usize], latency.as_micros());
        let bucket = BOUNDS_US.iter().take_while(|&&bound| micros > bound).count();
        counts.took[bucket].fetch_add(1, Relaxed);
        counts.micros.fetch_add(micros, Relaxed);
    }

    /// Counts an attempt that failed.
    pub(super) fn failed(&self, operation: RedisOperation, failure: &CallFailure) {
        let reason = match failure {
            CallFailure::Down => 0,
            CallFailure::NotReady(_) => 1,
            CallFailure::ConnectionLost => 2,
            CallFailure::Timeout => 3,
            CallFailure::Refused(_) => 4,
            CallFailure::Moved(_) | CallFailure::Ask(_) => 5,
        };
        self.0[operation as usize].errors[reason].fetch_add(1, Relaxed);
    }

    /// Returns the statistics of all operations.
    pub(super) fn read(&self) -> Vec<OperationStats> {
        let read =
            |((_, operation), counts): ((RedisOperation, &'static str), &OperationCounter)| {
                OperationStats {
                    operation,
                    errors: ERROR_REASONS
                        .into_iter()
                        .zip(counts.errors.iter().map(|n| n.load(Relaxed)))
                        .collect(),
                    took: BOUNDS_US
                        .into_iter()
                        .zip(counts.took.iter().map(|n| n.load(Relaxed)))
                        .collect(),
                    micros: counts.micros.load(Relaxed),
                }
            };
        RedisOperation::ALL.into_iter().zip(&self.0).map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_counted_under_its_own_name() {
        let counters = OperationCounters::default();
        for (number, (operation, _)) in RedisOperation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, number);
        }
        counters.took(RedisOperation::Claim, Span::from_millis(20));
        counters.took(RedisOperation::Claim, Span::from_secs(9));
        counters.failed(RedisOperation::Claim, &CallFailure::Timeout);
        let all = counters.read();
        let claim = all.iter().find(|stats| stats.operation == "claim").expect("claim");
        assert!(claim.took.contains(&(20_000, 1)) && claim.took.contains(&(u64::MAX, 1)));
        assert_eq!(claim.micros, 9_020_000);
        assert!(claim.errors.contains(&("timeout", 1)));
        let stats: u64 = all.iter().flat_map(|stats| &stats.took).map(|(_, n)| n).sum();
        assert_eq!(stats, 2);
    }
}
