//! Rollback of attempts whose caller got no admission: a background task repeats each rollback
//! until Redis confirms it.
//!
//! The protocol is modelled in `testkit/src/sim/timed_out`; `lua/reserve.lua` is its part on the
//! server, and `lua/fence.lua` rejects calls that arrive after their rollback. An attempt is rolled
//! back if its reply did not come in time and no outage policy admitted it, or if its caller has
//! gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_core::store::{Attempt, Error, StoreFailure, TOMBSTONE};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Plan, Timestamp};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Redis;
use super::call::{Call, RecordOperation};
use super::connection::RedisConnection;
use super::keys::KeyNames;
use super::plan_parts::PlanSplit;
use super::retry::ExecutionTracker;
use crate::clock::MonotonicClock;

/// Maximum number of attempts that are rolled back at a time. Further ones stay charged until they
/// expire, so usage is never undercounted.
const RUNNING_MAX: usize = 10_000;
/// Timeout of one rollback call.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// First delay after a failure; it doubles up to the maximum. So Redis gets the rollback within a
/// second after it is back.
const DELAY_MIN: Duration = Duration::from_millis(10);
const DELAY_MAX: Duration = Duration::from_millis(250);

/// The running rollbacks.
#[derive(Debug)]
pub(super) struct Rollbacks {
    /// Random number that makes the attempt numbers of this process unique.
    origin: u64,
    next: AtomicU64,
    permits: Arc<Semaphore>,
    overflowed: AtomicU64,
    runtime: runtime::Handle,
    time: MonotonicClock,
}

impl Rollbacks {
    pub(super) fn new(time: MonotonicClock) -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        Self {
            origin: RandomState::new().hash_one((time.now().as_micros(), std::process::id())),
            next: AtomicU64::new(0),
            permits: Arc::new(Semaphore::new(RUNNING_MAX)),
            overflowed: AtomicU64::new(0),
            runtime: runtime::Handle::current(),
            time,
        }
    }

    /// Returns the number of attempts that are being rolled back.
    pub(super) fn running(&self) -> usize {
        RUNNING_MAX - self.permits.available_permits()
    }

    /// Returns the number of attempts that were not rolled back because too many were running.
    pub(super) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Returns a unique number for an attempt.
    pub(super) fn number(&self) -> Id {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Id::from_bits(u128::from(self.origin) << 64 | u128::from(number))
    }
}

impl Redis {
    /// Starts to roll an attempt back.
    pub(super) fn roll_back(&self, plan: &Plan<'_>, attempt: Attempt) {
        let rollbacks = &self.rollbacks;
        let Ok(permit) = rollbacks.permits.clone().try_acquire_owned() else {
            if rollbacks.overflowed.fetch_add(1, Ordering::Relaxed) == 0 {
                warn!(
                    "rollback limit reached: timed-out requests stay charged until their charges expire"
                );
            }
            return;
        };
        // For as long as the charge counts and a late call may arrive.
        let until = rollbacks.time.now() + plan.window() + TOMBSTONE;
        let permit = Arc::new(permit);
        for call in calls(plan, attempt, &self.names) {
            let (connection, time, permit) =
                (self.connection.clone(), rollbacks.time, permit.clone());
            rollbacks.runtime.spawn(roll_back(connection, time, call, until, permit));
        }
    }
}

/// Returns the calls that roll an attempt back: one for each slot that it may be charged in.
fn calls(plan: &Plan<'_>, attempt: Attempt, names: &KeyNames) -> Vec<Call> {
    let recorded = |number, slot| {
        Call::on_record(RecordOperation::RollBack(number), &plan.handle(), slot, names)
    };
    match (PlanSplit::of(plan, names), attempt) {
        (PlanSplit::Whole(slot), Attempt::Acquire(_)) if !plan.needs_record() => {
            vec![Call::roll_back_unrecorded(plan, slot, names)]
        }
        (PlanSplit::Whole(slot), Attempt::Acquire(number) | Attempt::Book(number)) => {
            vec![recorded(number, slot)]
        }
        (PlanSplit::Parts(parts), Attempt::Acquire(number) | Attempt::Book(number)) => {
            parts.iter().map(|part| recorded(number, Some(part.slot))).collect()
        }
    }
}

/// Repeats the rollback until it is confirmed, or nothing can be left of the attempt.
async fn roll_back(
    connection: RedisConnection,
    time: MonotonicClock,
    call: Call,
    until: Timestamp,
    _permit: Arc<OwnedSemaphorePermit>,
) {
    let mut delay = DELAY_MIN;
    while time.now() < until {
        let reply = timeout(
            CALL_TIMEOUT,
            connection.execute(call.clone(), time.now() + CALL_TIMEOUT.into()),
        )
        .await;
        if matches!(reply, Ok(Ok(reply)) if reply.is_rolled_back()) {
            return;
        }
        sleep(delay).await;
        delay = (delay * 2).min(DELAY_MAX);
    }
}

/// Rolls an attempt back when it is dropped before its caller got an admission.
pub(super) struct RollbackGuard<'r, 'p> {
    redis: &'r Redis,
    plan: &'r Plan<'p>,
    attempt: Attempt,
    /// Records whether the attempt may have been charged; `None` means that it may.
    tracker: Option<ExecutionTracker>,
    armed: bool,
}

impl<'r, 'p> RollbackGuard<'r, 'p> {
    /// Returns a guard that rolls back unless the caller gets an admission, whatever the reply was.
    pub(super) const fn always(redis: &'r Redis, plan: &'r Plan<'p>, attempt: Attempt) -> Self {
        Self { redis, plan, attempt, tracker: None, armed: true }
    }

    /// Returns a guard that rolls back only if a call was sent and not answered. That includes
    /// denied attempts: an earlier call may still arrive, and then fit.
    pub(super) fn if_unconfirmed(redis: &'r Redis, plan: &'r Plan<'p>, attempt: Attempt) -> Self {
        Self { redis, plan, attempt, tracker: Some(ExecutionTracker::default()), armed: true }
    }

    pub(super) const fn tracker(&self) -> Option<&ExecutionTracker> {
        self.tracker.as_ref()
    }

    /// Ends the guard with a decision for the caller: an admission stays charged.
    pub(super) fn finish(mut self, decision: &Decision) {
        self.armed = !decision.is_allowed();
    }

    /// Ends the guard without a reply: the caller gets the attempt, and decides whether to [give it
    /// up](sluicegate_core::Store::give_up).
    pub(super) fn hand_over(mut self, error: Error) -> Error {
        let Error::Unavailable(why) = error else { return error };
        self.armed = false;
        let attempt = self.may_be_charged().then_some(self.attempt);
        Error::Unavailable(StoreFailure { attempt, ..why })
    }

    fn may_be_charged(&self) -> bool {
        self.tracker.as_ref().is_none_or(ExecutionTracker::may_have_executed)
    }
}

impl Drop for RollbackGuard<'_, '_> {
    fn drop(&mut self) {
        if self.armed && self.may_be_charged() {
            self.redis.roll_back(self.plan, self.attempt);
        }
    }
}
