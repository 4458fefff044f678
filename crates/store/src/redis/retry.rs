//! [`Retrier`] sends calls with a timeout and retries them.
//!
//! A call that fails in a way that may pass is sent again after a delay of 5 to 10 ms. A retry has
//! the same id, so it is counted once even if the first attempt ran. All attempts end at the
//! deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use std::time::Duration;

use sluicegate_core::store::Error;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Id, Span, Timestamp};
use tokio::time::{sleep, timeout};

use super::call::Call;
use super::connection::RedisConnection;
use super::failure::CallFailure;
use super::operation_stats::{OperationCounters, RedisOperation};
use super::reply::Reply;
use crate::clock::MonotonicClock;

/// Timeout and retries of a call to Redis.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// Maximum number of retries.
    pub retries: u32,
    /// Time limit for all attempts together.
    pub deadline: Duration,
}

impl Default for RetryPolicy {
    /// One retry after 20 ms, and 45 ms in total.
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self { timeout: ms(20), retries: 1, deadline: ms(45) }
    }
}

impl RetryPolicy {
    /// Timeouts of one attempt and of all attempts, for calls of paced work. The work waits anyway,
    /// and a turn that is given up because of a slow answer is lost.
    const PATIENT: (Duration, Duration) =
        (Duration::from_millis(500), Duration::from_millis(1_500));

    /// Returns the same policy with at least the timeouts for paced work.
    pub(super) fn patient(self) -> Self {
        let (timeout, deadline) = Self::PATIENT;
        Self { timeout: self.timeout.max(timeout), deadline: self.deadline.max(deadline), ..self }
    }
}

/// Sends calls with timeouts and retries.
#[derive(Debug)]
pub(super) struct Retrier {
    policy: RetryPolicy,
    budget: RetryBudget,
    retries: AtomicU64,
    counters: OperationCounters,
    time: MonotonicClock,
}

impl Retrier {
    pub(super) fn new(policy: RetryPolicy, time: MonotonicClock) -> Self {
        let (budget, retries) = (RetryBudget::new(), AtomicU64::new(0));
        Self { policy, budget, retries, counters: OperationCounters::default(), time }
    }

    /// Returns the counters of all operations.
    pub(super) const fn counters(&self) -> &OperationCounters {
        &self.counters
    }

    /// Returns the deadline of a call that starts now.
    pub(super) fn deadline(&self, patient: bool) -> Timestamp {
        self.time.now() + Span::from(self.policy_of(patient).deadline)
    }

    fn policy_of(&self, patient: bool) -> RetryPolicy {
        if patient { self.policy.patient() } else { self.policy }
    }

    /// Returns true if the deadline has passed.
    pub(super) fn is_past(&self, deadline: Timestamp) -> bool {
        self.time.now() >= deadline
    }

    /// Returns the number of retries so far.
    pub(super) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Runs an operation and retries it if that may help. `call` builds the call; its argument is
    /// true for a retry.
    pub(super) async fn run(
        &self,
        connection: &RedisConnection,
        labels: (RedisOperation, Id),
        call: impl FnMut(bool) -> Call,
    ) -> Result<Reply, Error> {
        self.run_tracked(connection, labels, None, call).await
    }

    /// Does the same, and records in `tracker` whether an unanswered call may have run.
    pub(super) async fn run_tracked(
        &self,
        connection: &RedisConnection,
        (operation, id): (RedisOperation, Id),
        tracker: Option<&ExecutionTracker>,
        mut call: impl FnMut(bool) -> Call,
    ) -> Result<Reply, Error> {
        self.budget.earn();
        let started_at = self.time.now();
        let first = call(false);
        let RetryPolicy { timeout: each, retries, deadline } = self.policy_of(first.patient);
        let call_deadline = started_at + Span::from(deadline);
        let attempts = async {
            let mut number = 0;
            let mut next = Some(first);
            loop {
                let call = next.take().unwrap_or_else(|| call(true));
                let call = Call { sent: tracker.map(ExecutionTracker::sent_flag), ..call };
                let reply = timeout(each, connection.execute(call, call_deadline)).await;
                let reply = reply.unwrap_or(Err(CallFailure::Timeout));
                if let Err(failure) = &reply {
                    self.counters.failed(operation, failure);
                    if let Some(tracker) = tracker {
                        tracker.failed(failure);
                    }
                }
                match reply {
                    Ok(reply) => {
                        if let Some(tracker) = tracker {
                            tracker.answered();
                        }
                        return Ok(reply);
                    }
                    Err(failure) if !failure.retryable() || number == retries => {
                        return Err(failure);
                    }
                    Err(failure) if !self.budget.spend() => return Err(failure),
                    Err(_) => number += 1,
                }
                self.retries.fetch_add(1, Ordering::Relaxed);
                sleep(retry_delay(id, number)).await;
            }
        };
        let result = timeout(deadline, attempts).await.unwrap_or(Err(CallFailure::Timeout));
        self.counters.took(operation, self.time.now().since(started_at));
        result.map_err(|failure| Error::Unavailable(failure.to_string().into()))
    }
}

/// Records whether a call may have run although its caller got no reply.
#[derive(Debug, Default)]
pub(super) struct ExecutionTracker {
    /// Set if the last call was sent.
    sent: Arc<AtomicBool>,
    /// Set if an earlier call was sent and not answered.
    earlier: AtomicBool,
}

impl ExecutionTracker {
    fn sent_flag(&self) -> Arc<AtomicBool> {
        self.sent.clone()
    }

    /// Records that the last call was answered.
    fn answered(&self) {
        self.sent.store(false, Ordering::Relaxed);
    }

    /// Records that the last call failed.
    fn failed(&self, failure: &CallFailure) {
        fence(Ordering::SeqCst);
        if self.sent.swap(false, Ordering::Relaxed) && failure.may_have_executed() {
            self.earlier.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if an unanswered call may have run. Call it when no call is in flight any more.
    pub(super) fn may_have_executed(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sent.load(Ordering::Relaxed) || self.earlier.load(Ordering::Relaxed)
    }
}

/// Returns a delay of 5 to 10 ms that depends on the id, so that calls that failed together are not
/// retried together.
fn retry_delay(id: Id, number: u32) -> Duration {
    let bits = id.to_bits() as u64 ^ u64::from(number);
    let spread = bits.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    Duration::from_micros(5_000 + spread % 5_000)
}

/// A retry budget: at most a tenth of all calls, and at most a hundred in a burst. A server that is
/// slow because it is overloaded must not get twice the load.
#[derive(Debug)]
struct RetryBudget(AtomicI64);

impl RetryBudget {
    const PRICE: i64 = 10;
    const MAX: i64 = 100 * Self::PRICE;

    const fn new() -> Self {
        Self(AtomicI64::new(Self::MAX))
    }

    fn earn(&self) {
        if self.0.load(Ordering::Relaxed) < Self::MAX {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn spend(&self) -> bool {
        let left = self.0.fetch_sub(Self::PRICE, Ordering::Relaxed);
        if left < Self::PRICE {
            self.0.fetch_add(Self::PRICE, Ordering::Relaxed);
        }
        left >= Self::PRICE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_between_5_and_10_ms_and_differ() {
        let pauses: Vec<_> =
            (0..100).map(|id| retry_delay(Id::from_bits(id), 1).as_micros()).collect();
        assert!(pauses.iter().all(|pause| (5_000..10_000).contains(pause)));
        let distinct: std::collections::BTreeSet<_> = pauses.iter().collect();
        assert!(distinct.len() > 90, "{}", distinct.len());
    }

    #[test]
    fn retries_are_a_tenth_of_the_calls_once_the_reserve_is_used_up() {
        let budget = RetryBudget::new();
        assert_eq!((0..500).filter(|_| budget.spend()).count(), 100);
        let mut spent = 0;
        for _ in 0..1_000 {
            budget.earn();
            spent += u32::from(budget.spend());
        }
        assert_eq!(spent, 100);
    }
}
