//! Plans in several slots of a cluster: reserve in parallel, take back unless all parts could.
//!
//! The protocol is that of `testkit/src/sim/cross_slot`, where it was explored; what a slot does is
//! in `lua/reserve.lua`. An attempt that does not end in an admission is [taken
//! back](super::take_back) in every slot: also where it was denied, because what was sent twice may
//! arrive twice; and also if whoever asked has gone.

use futures_util::future::join_all;
use sluicegate_core::store::{self, Error};
use sluicegate_core::{Decision, Plan};

use super::Redis;
use super::call::{Attempt, Call, Planned};
use super::parts::{Part, decide};
use super::take_back::GivenUp;
use super::tally::Asked;

impl Redis {
    /// Admits a plan in several slots if each part of it can start now.
    pub(super) async fn reserve(
        &self,
        plan: &Plan<'_>,
        parts: &[Part<'_>],
    ) -> Result<Decision, Error> {
        // Nothing is charged where it would have to be taken back for certain.
        if parts.iter().any(|part| self.way.is_down(part.slot)) {
            return Err(Error::Unavailable("a server of the Redis Cluster is down".into()));
        }
        let attempt = Attempt { number: self.take_backs.number(), fingerprint: plan.fingerprint() };
        let given_up = GivenUp::unless_told(self, plan, store::Attempt::Acquire(attempt.number));
        let deadline = self.attempts.deadline();
        let mut answer = decide(plan, parts, self.reserve_parts(plan, parts, attempt).await);
        let admitted = answer.as_ref().is_ok_and(Decision::is_allowed);
        if admitted && self.attempts.is_over(deadline) {
            // It was stopped: whoever asked has long been told something else.
            answer = Err(Error::Unavailable("the answers came too late".into()));
        }
        match answer {
            Ok(decision) => {
                given_up.decided(&decision);
                Ok(decision)
            }
            // If it was not answered, an outage policy may still admit it.
            Err(error) => Err(given_up.handed_on(error)),
        }
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
