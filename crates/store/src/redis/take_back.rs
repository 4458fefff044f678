//! Attempts that nobody was told of: taken back in the background, until the store has said so.
//!
//! The protocol is that of `testkit/src/sim/given_up`; what a server does is in `lua/reserve.lua`, and
//! how late arrivals are refused in `lua/fence.lua`. An attempt is given up when its answer did not
//! come in time and no outage policy admitted it, or when whoever asked has gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_core::store::{Attempt, Error, TOMBSTONE, Unanswered};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Plan, Timestamp};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Redis;
use super::attempts::Doubt;
use super::call::{Call, Later};
use super::keys::Names;
use super::parts::Spread;
use super::way::Way;
use crate::clock::MonotonicClock;

/// The most attempts that are being taken back. What is beyond ages out: it is never too little
/// that is counted.
const TAKING_BACK_MAX: usize = 10_000;
/// How long to wait for an answer, and after a failure, at first and at most: a store that answers
/// again is told within a second.
const ANSWER: Duration = Duration::from_millis(500);
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What is being taken back.
#[derive(Debug)]
pub(super) struct TakeBacks {
    /// No other process numbers its attempts alike.
    origin: u64,
    next: AtomicU64,
    room: Arc<Semaphore>,
    overflowed: AtomicU64,
    runtime: runtime::Handle,
    time: MonotonicClock,
}

impl TakeBacks {
    pub(super) fn new(time: MonotonicClock) -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        Self {
            origin: RandomState::new().hash_one((time.now().as_micros(), std::process::id())),
            next: AtomicU64::new(0),
            room: Arc::new(Semaphore::new(TAKING_BACK_MAX)),
            overflowed: AtomicU64::new(0),
            runtime: runtime::Handle::current(),
            time,
        }
    }

    /// How many attempts are being taken back.
    pub(super) fn running(&self) -> usize {
        TAKING_BACK_MAX - self.room.available_permits()
    }

    /// How many attempts there was no room for.
    pub(super) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// A number for an attempt, which no other has.
    pub(super) fn number(&self) -> Id {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Id::from_bits(u128::from(self.origin) << 64 | u128::from(number))
    }
}

impl Redis {
    /// Starts to take an attempt back.
    pub(super) fn take_back(&self, plan: &Plan<'_>, attempt: Attempt) {
        let take_backs = &self.take_backs;
        let Ok(room) = take_backs.room.clone().try_acquire_owned() else {
            if take_backs.overflowed.fetch_add(1, Ordering::Relaxed) == 0 {
                warn!("too many attempts are being taken back: those beyond stay charged");
            }
            return;
        };
        // As long as the charge counts, and as long as a message may be on its way.
        let until = take_backs.time.now() + plan.window() + TOMBSTONE;
        let room = Arc::new(room);
        for call in calls(plan, attempt, &self.names) {
            let (way, time, room) = (self.way.clone(), take_backs.time, room.clone());
            take_backs.runtime.spawn(take_back(way, time, call, until, room));
        }
    }
}

/// The calls that take an attempt back: one for each slot that it may be charged in.
fn calls(plan: &Plan<'_>, attempt: Attempt, names: &Names) -> Vec<Call> {
    let recorded = |number, slot| Call::later(Later::TakeBack(number), &plan.handle(), slot, names);
    match (Spread::of(plan, names), attempt) {
        (Spread::Whole(slot), Attempt::Acquire(_)) if !plan.recorded() => {
            vec![Call::take_back_once(plan, slot, names)]
        }
        (Spread::Whole(slot), Attempt::Acquire(number) | Attempt::Book(number)) => {
            vec![recorded(number, slot)]
        }
        (Spread::Parts(parts), Attempt::Acquire(number) | Attempt::Book(number)) => {
            parts.iter().map(|part| recorded(number, Some(part.slot))).collect()
        }
    }
}

/// Asks until it is answered, or nothing can be left of the attempt.
async fn take_back(
    way: Way,
    time: MonotonicClock,
    call: Call,
    until: Timestamp,
    _room: Arc<OwnedSemaphorePermit>,
) {
    let mut pause = PAUSE_MIN;
    while time.now() < until {
        let asked = timeout(ANSWER, way.ask(call.clone(), time.now() + ANSWER.into())).await;
        if matches!(asked, Ok(Ok(reply)) if reply.is_taken_back()) {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Takes an attempt back when it is dropped before anybody was told of it.
pub(super) struct GivenUp<'r, 'p> {
    redis: &'r Redis,
    plan: &'r Plan<'p>,
    attempt: Attempt,
    /// Whether it may have been charged; if it is not known, it may.
    doubt: Option<Doubt>,
    armed: bool,
}

impl<'r, 'p> GivenUp<'r, 'p> {
    /// Whatever was answered, unless somebody is told.
    pub(super) const fn unless_told(
        redis: &'r Redis,
        plan: &'r Plan<'p>,
        attempt: Attempt,
    ) -> Self {
        Self { redis, plan, attempt, doubt: None, armed: true }
    }

    /// Unless somebody is told, and only if something was sent that was not answered: also what was
    /// denied may have been sent before, and fit when it arrives.
    pub(super) fn if_in_doubt(redis: &'r Redis, plan: &'r Plan<'p>, attempt: Attempt) -> Self {
        Self { redis, plan, attempt, doubt: Some(Doubt::default()), armed: true }
    }

    pub(super) const fn doubt(&self) -> Option<&Doubt> {
        self.doubt.as_ref()
    }

    /// Somebody is told: what may go stays charged.
    pub(super) fn decided(mut self, decision: &Decision) {
        self.armed = !decision.is_allowed();
    }

    /// There was no answer: whoever is told so decides whether to [give it
    /// up](sluicegate_core::Store::give_up).
    pub(super) fn handed_on(mut self, error: Error) -> Error {
        let Error::Unavailable(why) = error else { return error };
        self.armed = false;
        let attempt = self.may_be_charged().then_some(self.attempt);
        Error::Unavailable(Unanswered { attempt, ..why })
    }

    fn may_be_charged(&self) -> bool {
        self.doubt.as_ref().is_none_or(Doubt::is_left)
    }
}

impl Drop for GivenUp<'_, '_> {
    fn drop(&mut self) {
        if self.armed && self.may_be_charged() {
            self.redis.take_back(self.plan, self.attempt);
        }
    }
}
