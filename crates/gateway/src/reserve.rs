//! The second step, reserve: asks the limiter if a request may go now, or has to wait for the
//! upstream's limit.
//!
//! If requests do not wait on a route, one call checks all limits: those of the route and those of
//! the caller. Otherwise only the caller's limits are checked here, and the route's turn comes from
//! the pacer. A request that exceeds the caller's limits is rejected at once and never queued.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::HeaderMap;
use sluicegate_config::{CALLER, HeaderDimension, ROUTE};
use sluicegate_core::Decision;
use sluicegate_core::algorithm::Meter;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Query, RequestId, RuleScope};
use sluicegate_core::time::Span;
use sluicegate_http::tokens::Caller;
use sluicegate_pace::{LeaseTimes, PacedWork, WaitError};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionMode, Service, ServiceError};
use tracing::error;

use crate::identify::value;
use crate::pass::Pass;
use crate::refusal::{HitRule, Refusal};

/// Time beyond the longest wait and the upstream's timeout during which a reservation can be refunded.
const REFUND_MARGIN: Span = Span::from_secs(60);

/// Assumed time for which a request holds a lease, until the first one of the route has ended.
const LEASE_ASSUMED: Span = Span::from_secs(1);

/// The requests of one route, which wait for the upstream's limits.
pub(crate) struct RouteWork {
    pub(crate) service: Arc<Service>,
    /// Value of the [`ROUTE`] dimension.
    pub(crate) key: String,
    /// Times for which requests held the leases of the route.
    pub(crate) lease_times: Arc<LeaseTimes>,
}

impl PacedWork for RouteWork {
    type Admission = Pass;
    type Refusal = Refusal;

    fn query(&self, id: RequestId) -> Query<'_> {
        let mut query = Query::new(id);
        query.insert_own(ROUTE, self.key.as_str());
        query.rule_scope = RuleScope::Own;
        query
    }

    fn admitted(&self, answer: &Answer<'_, '_>, handle: Option<Handle>) -> Pass {
        let mut pass = admitted(&self.service, answer, None);
        pass.set_turn(handle, &self.lease_times);
        pass
    }

    fn lease_times(&self) -> Option<&LeaseTimes> {
        Some(&self.lease_times)
    }

    fn refused(&self, answer: &Answer<'_, '_>) -> Refusal {
        refused(answer, &self.lease_times)
    }
}

impl Refusal {
    /// Returns the refusal of a request that waited for a turn of the route with this key.
    pub(crate) fn of_wait(error: WaitError<Self>, key: &str) -> Self {
        match error {
            WaitError::Limited(wait) => {
                let rule = Some(HitRule::of_route(key));
                Self::Limited { retry_after: Some(wait), rule }
            }
            WaitError::StoreUnavailable => Self::StoreUnavailable,
            WaitError::Refused(refusal) => refusal,
        }
    }
}

/// A request to be decided by the limiter.
pub(crate) struct LimitCheck<'a> {
    /// Value of the [`ROUTE`] dimension.
    pub(crate) key: &'a str,
    /// True if the route has limits of its own.
    pub(crate) limited: bool,
    /// Longest time that a request waits for its turn and its answer, after which it may be refunded.
    pub(crate) served_within: Span,
    /// Times for which requests held the leases that this check gave them.
    pub(crate) lease_times: &'a Arc<LeaseTimes>,
    /// Caller that the token belongs to.
    pub(crate) caller: &'a Caller,
    /// Dimensions and the header fields that they are read from.
    pub(crate) dimensions: &'a BTreeMap<String, HeaderDimension>,
    /// Header fields of the request.
    pub(crate) headers: &'a HeaderMap,
}

impl LimitCheck<'_> {
    /// Returns the value of a dimension.
    pub(crate) fn dimension(&self, name: &str) -> Option<&str> {
        if name == CALLER {
            return Some(self.caller.name());
        }
        value(self.dimensions.get(name)?, self.headers)
    }

    fn query(&self, id: RequestId, rule_scope: RuleScope) -> Query<'_> {
        let mut query = Query::new(id);
        query.insert_own(ROUTE, self.key);
        query.insert_any(CALLER, self.caller.name());
        for (name, dimension) in self.dimensions {
            if let Some(value) = value(dimension, self.headers) {
                query.insert_any(name.as_str(), value);
            }
        }
        query.rule_scope = rule_scope;
        query
    }

    /// Checks all limits in one call. `recorded` is true if an admission may have to be refunded.
    pub(crate) async fn check_all(
        &self,
        service: &Arc<Service>,
        recorded: bool,
    ) -> Result<Pass, Refusal> {
        let query = self.query(self.request_id(service, recorded), RuleScope::View);
        if !self.limited && is_free(service, &query) {
            return Ok(Pass::new(service));
        }
        self.check(service, &query).await
    }

    /// Checks all limits except the route's own; `None` if there are none.
    pub(crate) async fn check_common(
        &self,
        service: &Arc<Service>,
    ) -> Result<Option<Pass>, Refusal> {
        let mut query = self.query(self.request_id(service, true), RuleScope::Common);
        // The request may wait for its turn, so it can wait for a distant store as well.
        query.patient = true;
        if is_free(service, &query) {
            return Ok(None);
        }
        Box::pin(self.check(service, &query)).await.map(Some)
    }

    fn request_id(&self, service: &Service, recorded: bool) -> RequestId {
        let id = service.request_id();
        match recorded {
            true => RequestId::of_caller(id.id, self.served_within + REFUND_MARGIN),
            false => id,
        }
    }

    async fn check(&self, service: &Arc<Service>, query: &Query<'_>) -> Result<Pass, Refusal> {
        let query = std::slice::from_ref(query);
        let decided =
            service.decide(query, DecisionMode::Acquire, |answer| match answer.decision() {
                Decision::Allow(_) => {
                    let mut pass = admitted(service, answer, handle(answer));
                    pass.time_leases(self.lease_times);
                    Ok(pass)
                }
                _ => Err(refused(answer, self.lease_times)),
            });
        decided.await.map_err(failed)?
    }
}

/// Returns true if no limit applies, so that no call to the store is needed.
fn is_free(service: &Service, query: &Query<'_>) -> bool {
    let rules = service.limiter().rules();
    rules.plan(query, service.now()).is_ok_and(|plan| plan.charges().is_empty())
}

/// Returns the pass of an admitted request.
fn admitted(service: &Arc<Service>, answer: &Answer<'_, '_>, handle: Option<Handle>) -> Pass {
    let mut pass = Pass::new(service).with(handle);
    pass.remaining = answer.tightest().map(|scope| scope.remaining());
    pass.outage = answer.outage();
    if let Decision::Allow(allow) = answer.decision() {
        pass.lease = allow.until.map(|until| until.since(allow.at));
    }
    pass
}

/// Returns the handle of an admission, if the store recorded it.
fn handle(answer: &Answer<'_, '_>) -> Option<Handle> {
    answer.plan().needs_record().then(|| answer.plan().handle())
}

fn refused(answer: &Answer<'_, '_>, lease_times: &LeaseTimes) -> Refusal {
    let leases = answer.hit().and_then(|hit| match hit.charge.meter {
        Meter::Leases(quota) => Some(quota.limit),
        _ => None,
    });
    let retry_after = match leases {
        // The store only knows when a lease expires if nobody renews it. The first of several leases
        // ends after a part of the time for which each is held.
        Some(leases) => {
            let held = lease_times.mean().unwrap_or(LEASE_ASSUMED);
            Some(Span::from_micros(held.as_micros() / leases.max(1)))
        }
        None => answer.retry_after(),
    };
    let rule = answer.hit().map(|hit| HitRule::of(hit.charge.rule()));
    match answer.decision() {
        Decision::Closed(_) => Refusal::StoreUnavailable,
        _ if answer.is_banned() => Refusal::Banned { retry_after, rule },
        _ => Refusal::Limited { retry_after, rule },
    }
}

fn failed(failure: ServiceError) -> Refusal {
    match failure {
        ServiceError::Store(sluicegate_core::store::Error::Unavailable(_)) => {
            Refusal::StoreUnavailable
        }
        failure => {
            error!(%failure, "rate limit decision failed");
            Refusal::Internal
        }
    }
}
