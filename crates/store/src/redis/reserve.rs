//! Plans in several slots of a cluster: reserve in parallel, take back unless all parts could.
//!
//! The protocol is that of `testkit/src/sim/cross_slot`, where it was explored; what a slot does is
//! in `lua/reserve.lua`. An attempt that does not end in an admission, for whatever reason, is
//! taken back in every slot, in the background and until it is answered: also where it was denied,
//! because what was sent twice may arrive twice; and also if whoever asked has gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::plan::Handle;
use sluicegate_core::store::{Error, TOMBSTONE};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Plan, Span};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Redis;
use super::call::{Attempt, Call, Later, Planned};
use super::keys::Names;
use super::parts::{Part, decide, slots_of};
use super::slot::Slot;
use super::tally::Asked;
use super::way::Way;
use crate::clock::MonotonicClock;

/// The most attempts that are being taken back. What is beyond ages out: it is never too little
/// that is counted.
const TAKING_BACK_MAX: usize = 10_000;
/// How long to wait for an answer, and after a failure, at first and at most.
const ANSWER: Duration = Duration::from_millis(500);
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What attempts need that outlive their question.
#[derive(Debug)]
pub(super) struct Reserver {
    /// No other process numbers its attempts alike.
    origin: u64,
    next: AtomicU64,
    room: Arc<Semaphore>,
    runtime: runtime::Handle,
    time: MonotonicClock,
}

impl Reserver {
    pub(super) fn new(time: MonotonicClock) -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        Self {
            origin: RandomState::new().hash_one((time.now().as_micros(), std::process::id())),
            next: AtomicU64::new(0),
            room: Arc::new(Semaphore::new(TAKING_BACK_MAX)),
            runtime: runtime::Handle::current(),
            time,
        }
    }

    /// How many attempts are being taken back.
    pub(super) fn taking_back(&self) -> usize {
        TAKING_BACK_MAX - self.room.available_permits()
    }

    fn attempt(&self, plan: &Plan<'_>) -> Attempt {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let number = Id::from_bits(u128::from(self.origin) << 64 | u128::from(number));
        Attempt { number, fingerprint: plan.fingerprint() }
    }
}

impl Redis {
    /// Admits a plan in several slots if each part of it can start now.
    pub(super) async fn reserve(
        &self,
        plan: &Plan<'_>,
        parts: &[Part<'_>],
    ) -> Result<Decision, Error> {
        // Nothing is charged where it would have to be taken back for certain.
        if parts.iter().any(|part| self.way.is_down(part.slot)) {
            return Err(Error::Unavailable("a server of the Redis Cluster is down".to_owned()));
        }
        let attempt = self.reserver.attempt(plan);
        let deadline = self.attempts.deadline();
        let taken_back = TakenBack::unless_admitted(self, plan, attempt);
        let decision = decide(plan, parts, self.reserve_parts(plan, parts, attempt).await)?;
        if !decision.is_allowed() {
            return Ok(decision);
        }
        if self.attempts.is_over(deadline) {
            // It was stopped: whoever asked has long been told something else.
            return Err(Error::Unavailable("the answers came too late".to_owned()));
        }
        taken_back.not();
        Ok(decision)
    }

    async fn reserve_parts(
        &self,
        plan: &Plan<'_>,
        parts: &[Part<'_>],
        attempt: Attempt,
    ) -> Vec<Result<Decision, Error>> {
        let operation = Planned::Reserve(attempt);
        let ask = async |part: &Part<'_>| {
            let call = |_| Call::planned(operation, &part.plan, Some(part.slot), &self.names);
            let reply = self.attempts.make(&self.way, (Asked::Acquire, plan.id.id), call).await?;
            reply.decision(&part.plan)
        };
        join_all(parts.iter().map(ask)).await
    }
}

/// Takes an attempt back when it is dropped.
struct TakenBack<'r> {
    redis: &'r Redis,
    /// What is taken back, and for how long that makes sense.
    work: Option<(Handle, Attempt, Span)>,
}

impl<'r> TakenBack<'r> {
    fn unless_admitted(redis: &'r Redis, plan: &Plan<'_>, attempt: Attempt) -> Self {
        // As long as the charge counts, and as long as a message may be on its way.
        let lasts = plan.window() + TOMBSTONE;
        Self { redis, work: Some((plan.handle(), attempt, lasts)) }
    }

    fn not(mut self) {
        self.work = None;
    }
}

impl Drop for TakenBack<'_> {
    fn drop(&mut self) {
        let Some((handle, attempt, lasts)) = self.work.take() else { return };
        let Redis { way, names, reserver, .. } = self.redis;
        let Ok(room) = reserver.room.clone().try_acquire_owned() else {
            warn!("too many attempts are being taken back: this one stays charged");
            return;
        };
        let (way, names, time) = (way.clone(), names.clone(), reserver.time);
        reserver.runtime.spawn(take_back(way, names, time, handle, attempt, lasts, room));
    }
}

async fn take_back(
    way: Way,
    names: Arc<Names>,
    time: MonotonicClock,
    handle: Handle,
    attempt: Attempt,
    lasts: Span,
    _room: OwnedSemaphorePermit,
) {
    let give_up = time.now() + lasts;
    let take_back = async |slot: Option<Slot>| {
        let mut pause = PAUSE_MIN;
        while time.now() < give_up {
            let call = Call::later(Later::TakeBack(attempt), &handle, slot, &names);
            let asked = timeout(ANSWER, way.ask(call, time.now() + ANSWER.into())).await;
            if matches!(asked, Ok(Ok(reply)) if reply.is_taken_back()) {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    };
    join_all(slots_of(&handle, &names).into_iter().map(take_back)).await;
}
