//! Admission of plans that span several slots of a cluster: all parts are reserved in parallel, and
//! rolled back unless every part succeeds.
//!
//! The protocol is modelled in `testkit/src/sim/cross_slot`; `lua/reserve.lua` is its part in a
//! slot. An attempt that does not end in an admission is [rolled back](super::rollback) in every
//! slot. That includes slots that denied it, because a retried call may arrive twice, and attempts
//! whose caller has gone.

use futures_util::future::join_all;
use sluicegate_core::store::{self, Error};
use sluicegate_core::{Decision, Plan};

use super::Redis;
use super::call::{Call, PlanOperation, ReserveAttempt};
use super::operation_stats::RedisOperation;
use super::plan_parts::{PlanPart, merge_decisions};
use super::rollback::RollbackGuard;

impl Redis {
    /// Admits a plan in several slots if each part of it can start now.
    pub(super) async fn reserve(
        &self,
        plan: &Plan<'_>,
        parts: &[PlanPart<'_>],
    ) -> Result<Decision, Error> {
        // Nothing is charged that would certainly have to be rolled back.
        if parts.iter().any(|part| self.connection.is_down(part.slot)) {
            return Err(Error::Unavailable("a server of the Redis Cluster is down".into()));
        }
        let attempt =
            ReserveAttempt { number: self.rollbacks.number(), fingerprint: plan.fingerprint() };
        let guard = RollbackGuard::always(self, plan, store::Attempt::Acquire(attempt.number));
        let deadline = self.retrier.deadline(plan.patient);
        let mut answer =
            merge_decisions(plan, parts, self.reserve_parts(plan, parts, attempt).await);
        let admitted = answer.as_ref().is_ok_and(Decision::is_allowed);
        if admitted && self.retrier.is_past(deadline) {
            // This process was suspended: the caller has been answered long ago.
            answer = Err(Error::Unavailable("the replies came too late".into()));
        }
        match answer {
            Ok(decision) => {
                guard.finish(&decision);
                Ok(decision)
            }
            // Without a reply, an outage policy may still admit the plan.
            Err(error) => Err(guard.hand_over(error)),
        }
    }

    async fn reserve_parts(
        &self,
        plan: &Plan<'_>,
        parts: &[PlanPart<'_>],
        attempt: ReserveAttempt,
    ) -> Vec<Result<Decision, Error>> {
        let operation = PlanOperation::Reserve(attempt);
        let run = async |part: &PlanPart<'_>| {
            let call = |_| Call::on_plan(operation, &part.plan, Some(part.slot), &self.names);
            let reply = self
                .retrier
                .run(&self.connection, (RedisOperation::Acquire, plan.id.id), call)
                .await?;
            reply.decision(&part.plan)
        };
        join_all(parts.iter().map(run)).await
    }
}
