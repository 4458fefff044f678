//! [`ProviderLimits`]: the limits of one provider, and how its jobs are paced by them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::plan::Handle;
use sluicegate_core::price::{Quote, TokenCounts, TokenKinds};
use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Decision, Id};
use sluicegate_pace::{PacedWork, Pacer};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionMode, Service};
use tracing::warn;

use crate::handler::CallUsage;
use crate::metrics::Metrics;
use crate::tier::Tier;

/// Time for which an admission is remembered for a message that is delivered again.
const KEEP: Span = Span::from_secs(600);

/// Maximum time from the end of a call to its settlement.
const SETTLE_LATE: Span = Span::from_secs(60);

/// The answer to a question for a turn.
pub(crate) type Turn = sluicegate_pace::Turn<TierWork>;

/// The state of a provider's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderState {
    /// The limits admit a job now.
    Open,
    /// The limits admit a job after this time.
    Limited(Span),
    /// The provider asked for a pause, which ends after this time.
    Paused(Span),
    /// The store does not answer, or the limits can never admit a job.
    Unknown,
}

/// The limits of one provider.
pub(crate) struct ProviderLimits {
    pacer: Arc<Pacer>,
    dispatch: TierWork,
    worker: TierWork,
    booked: TierWork,
}

/// Jobs for a provider, under the limits of a tier.
pub(crate) struct TierWork {
    provider: String,
    tier: Tier,
    /// Estimated cost of a job.
    estimate: Cost,
    /// Time for which an estimate is held. If it is not settled by then, it stays charged.
    hold: Span,
    /// Remaining share of the tightest limit in the last answer: a number from 0 to 1, as bits.
    left: AtomicU64,
}

impl PacedWork for TierWork {
    /// Handle that gives the admission back.
    type Admission = Option<Handle>;
    /// Name of the rule.
    type Refusal = String;

    fn query(&self, id: RequestId) -> Query<'_> {
        self.tier.query(&self.provider, self.estimate, self.hold, id)
    }

    fn admitted(&self, _: &Answer<'_, '_>, handle: Option<Handle>) -> Option<Handle> {
        handle
    }

    fn refused(&self, answer: &Answer<'_, '_>) -> String {
        answer.hit().map(|hit| hit.name().to_owned()).unwrap_or_default()
    }

    /// A dispatcher only forwards: the worker starts the job.
    fn is_paced(&self) -> bool {
        self.tier != Tier::Dispatch
    }

    /// The booking of a message may be claimed by any worker.
    fn starts_here(&self) -> bool {
        self.tier == Tier::Worker
    }

    fn observe(&self, answer: &Answer<'_, '_>) {
        let left = answer.binding().map(|s| s.remaining() as f64 / s.amount().max(1) as f64);
        self.left.store(left.fold(1.0, f64::min).to_bits(), Ordering::Relaxed);
    }
}

impl ProviderLimits {
    /// Creates the limits. Work that takes longer than `timeout` is not settled with its actual cost.
    pub(crate) fn new(
        service: Arc<Service>,
        provider: String,
        estimate: Cost,
        timeout: Span,
    ) -> Self {
        let hold = timeout + SETTLE_LATE;
        let work = |tier| TierWork {
            provider: provider.clone(),
            tier,
            estimate,
            hold,
            left: AtomicU64::new(1.0_f64.to_bits()),
        };
        let (dispatch, worker) = (work(Tier::Dispatch), work(Tier::Worker));
        let booked = work(Tier::Booked);
        Self { pacer: Arc::new(Pacer::new(service, provider)), dispatch, worker, booked }
    }

    pub(crate) fn provider(&self) -> &str {
        &self.booked.provider
    }

    fn of(&self, tier: Tier) -> &TierWork {
        match tier {
            Tier::Dispatch => &self.dispatch,
            Tier::Worker => &self.worker,
            Tier::Booked => &self.booked,
        }
    }

    /// Shows the lead and the slack of these limits in the metrics of a tier: those of booked jobs at
    /// a dispatcher, and those of its own limits at a worker.
    pub(crate) fn show_pacing(&self, metrics: &Metrics, tier: Tier) {
        let pacer = Arc::downgrade(&self.pacer);
        let work = TierWork {
            provider: self.provider().to_owned(),
            tier: if tier == Tier::Dispatch { Tier::Booked } else { tier },
            estimate: self.booked.estimate,
            hold: self.booked.hold,
            left: AtomicU64::new(0),
        };
        metrics.show_pacing(self.provider(), tier, move || {
            Some(pacer.upgrade()?.planned_pacing(&work))
        });
    }

    /// Returns the time by the clock of the limiter, which windows refer to.
    pub(crate) fn now(&self) -> Timestamp {
        self.pacer.service().now()
    }

    /// Asks for a turn now. With an `id`, repeated calls are counted once. Without one, each call
    /// is counted, because the work may have run.
    pub(crate) async fn acquire(&self, tier: Tier, id: Option<Id>) -> Turn {
        let id = match id {
            Some(id) => RequestId::of_caller(id, KEEP),
            None => self.pacer.service().request_id(),
        };
        self.pacer.acquire(self.of(tier), id).await
    }

    /// Books the first start that suits both tiers. If booking is not possible, asks for a turn now
    /// under the limits of `unbooked`.
    pub(crate) async fn book(&self, id: Id, unbooked: Tier) -> Turn {
        let id = RequestId::of_caller(id, KEEP);
        self.pacer.book(&self.booked, self.of(unbooked), id).await
    }

    /// Claims a booking shortly before the work starts.
    pub(crate) async fn claim(&self, booking: Id) -> Turn {
        self.pacer.claim(&self.booked, RequestId::of_caller(booking, KEEP)).await
    }

    /// Returns the time before its start at which a booking should be claimed.
    pub(crate) fn lead(&self) -> Span {
        self.pacer.round_trips().pacing().lead
    }

    /// Records how late work started after it was allowed to.
    pub(crate) fn started_after(&self, late: Span) {
        self.pacer.round_trips().started_after(late);
    }

    /// Gives back a turn that was not used.
    pub(crate) async fn cancel(&self, handle: Option<Handle>) {
        if let Some(handle) = handle {
            self.pacer.cancel(&handle).await;
        }
    }

    /// Replaces the estimate of a turn with the actual usage of the call.
    pub(crate) async fn settle(&self, handle: Option<Handle>, usage: &CallUsage) {
        let has_estimate = self.worker.estimate != Cost::default();
        let Some(handle) = handle.filter(|_| has_estimate) else { return };
        let service = self.pacer.service();
        let mut cost = usage.cost;
        if let (None, Some(input), Some(output), Some(model)) =
            (cost.money, cost.input_tokens, cost.output_tokens, &usage.model)
            && let Quote::Priced(prices) = service.limiter().rules().prices().of(model)
        {
            let kinds = TokenKinds::default();
            cost.money = Some(prices.cost(&TokenCounts { input, output, kinds }));
        }
        if let Err(error) = service.settle(&handle, &cost).await {
            let provider = self.provider();
            warn!(provider, %error, "actual cost not stored: the estimate stays charged");
        }
    }

    /// Returns the time until a start could be booked, or `None` if that will never be possible.
    /// Writes nothing.
    pub(crate) async fn soonest(&self) -> Option<Span> {
        self.pacer.soonest(&self.booked).await
    }

    /// Asks the store for the state of the limits. Writes nothing.
    pub(crate) async fn state(&self) -> ProviderState {
        let service = self.pacer.service();
        let query = [self.booked.query(service.request_id())];
        let asked = service.decide(&query, DecisionMode::Peek, |answer| {
            let is_pause = answer.hit().is_some_and(|hit| hit.charge.is_gate());
            match answer.decision() {
                _ if answer.outage().is_some() => ProviderState::Unknown,
                Decision::Allow(_) => ProviderState::Open,
                Decision::Deny(deny) if is_pause => {
                    ProviderState::Paused(deny.start.since(deny.at))
                }
                Decision::Deny(deny) => ProviderState::Limited(deny.start.since(deny.at)),
                Decision::Never(_) | Decision::Closed(_) => ProviderState::Unknown,
            }
        });
        asked.await.unwrap_or(ProviderState::Unknown)
    }

    /// Returns the remaining share of the tightest limit in the last answer, from 0 to 1.
    pub(crate) fn left(&self) -> f64 {
        let of = |work: &TierWork| f64::from_bits(work.left.load(Ordering::Relaxed));
        of(&self.dispatch).min(of(&self.booked))
    }

    /// Stops all jobs for the provider for a time, on every node.
    pub(crate) async fn close(&self, span: Span) {
        if let Err(error) = self.pacer.close(&self.booked, span).await {
            let provider = self.provider();
            warn!(provider, %error, "pause not stored: other nodes keep sending");
        }
    }
}
