//! What a provider's limits say: the questions that the dispatcher and its workers ask of the
//! limiter, and the answers as far as they matter to a queue.
//!
//! All spans are from now: the clock of the store is not that of the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::store::{Claim, Error};
use sluicegate_core::time::Span;
use sluicegate_core::{Decision, Id};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionMode, Service, ServiceError};
use tracing::warn;

use crate::tier::Tier;

/// How long an admission is remembered for a message that is delivered again.
const KEEP: Span = Span::from_secs(600);
/// How soon a store is asked again that did not answer, where nobody may go without it.
const UNANSWERED: Span = Span::from_millis(500);
/// The shortest wait: a store that says "now" twice must not be asked in a loop.
const AGAIN: Span = Span::from_millis(5);
/// The longest pause before an unanswered question is asked once more.
const AGAIN_MAX: Span = Span::from_millis(80);

/// The limits of one provider.
pub(crate) struct Pace {
    service: Arc<Service>,
    provider: String,
    /// What a piece of work is taken for.
    estimate: Cost,
    /// What was left of the tightest limit when it was last asked, as the bits of a number from 0
    /// to 1.
    left: AtomicU64,
    /// Whether the store has not answered for so long that nobody insists any more.
    away: AtomicBool,
}

/// When work may go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Turn {
    /// Now.
    Now,
    /// Not before so much later.
    Later(Span),
    /// The store does not answer, and then nobody may go; ask again after so long.
    Closed(Span),
    /// Never, by these limits; the name of the rule.
    Never(String),
}

/// What became of a booking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// Go.
    Go,
    /// It stands, and starts so much later.
    Later(Span),
    /// There is none any more: book anew, not before so much later.
    Gone(Span),
}

impl Pace {
    pub(crate) const fn new(service: Arc<Service>, provider: String, estimate: Cost) -> Self {
        let left = AtomicU64::new(1.0_f64.to_bits());
        Self { service, provider, estimate, left, away: AtomicBool::new(false) }
    }

    fn query(&self, tier: Tier, id: RequestId) -> Query<'_> {
        tier.query(&self.provider, self.estimate, id)
    }

    pub(crate) fn provider(&self) -> &str {
        &self.provider
    }

    /// Asks for a turn now. Under an `id` it is counted once, however often it is asked for;
    /// without one each time, as befits work that may have gone.
    pub(crate) async fn acquire(&self, tier: Tier, id: Option<Id>) -> Turn {
        let ours = || self.service.request_id();
        let mut id = id.map_or_else(ours, |id| RequestId::of_caller(id, KEEP));
        loop {
            let query = [self.query(tier, id)];
            match self
                .service
                .decide(&query, DecisionMode::Acquire, |answer| self.heard(answer))
                .await
            {
                Ok(turn) => return turn,
                // It can't be recognised: at worst it is counted twice, never too little.
                Err(ServiceError::Store(
                    Error::Full | Error::Conflict | Error::Gone | Error::Lost,
                )) if id.keep.is_some() => {
                    id = ours();
                }
                Err(error) => return self.failed(&error),
            }
        }
    }

    /// Books the first moment that suits both tiers; the name of the booking, and how long it takes
    /// until then. Where nothing can be booked, it asks for a turn now, of the tier that is `alone`
    /// then.
    pub(crate) async fn book(&self, id: Id, alone: Tier) -> Result<(Id, Span), Turn> {
        match self.book_as(id).await {
            // The work may have gone under this name.
            Err(ServiceError::Store(Error::Conflict | Error::Gone)) => {
                let id = self.service.request_id().id;
                self.booked(id, self.book_as(id).await, alone).await
            }
            booked => self.booked(id, booked, alone).await,
        }
    }

    async fn book_as(&self, id: Id) -> Result<Result<Span, Turn>, ServiceError> {
        let query = [self.query(Tier::Booked, RequestId::of_caller(id, KEEP))];
        let mut pause = AGAIN;
        loop {
            let booked =
                self.service.decide(&query, DecisionMode::Book, |answer| match answer.decision() {
                    Decision::Allow(allow) => Ok(allow.start.since(allow.at)),
                    _ => Err(turn(answer)),
                });
            let booked = booked.await;
            if !self.asks_again(booked.as_ref().err(), &mut pause).await {
                return booked;
            }
        }
    }

    async fn booked(
        &self,
        id: Id,
        booked: Result<Result<Span, Turn>, ServiceError>,
        alone: Tier,
    ) -> Result<(Id, Span), Turn> {
        match booked {
            Ok(booked) => booked.map(|wait| (id, wait)),
            // The policy of the rules says what holds without the store.
            Err(ServiceError::Store(Error::Unavailable(_) | Error::Full | Error::CrossSlot)) => {
                Err(self.acquire(alone, Some(id)).await)
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// How soon something could be booked. Writes nothing.
    pub(crate) async fn soonest(&self) -> Turn {
        let query = [self.query(Tier::Booked, self.service.request_id())];
        match self.service.decide(&query, DecisionMode::Peek, |answer| self.heard(answer)).await {
            Ok(turn) => turn,
            Err(error) => self.failed(&error),
        }
    }

    /// Claims a booking immediately before the work goes. A claimant whose answer was lost asks
    /// again as the same: another would get a new moment.
    pub(crate) async fn claim(&self, booking: Id) -> Claimed {
        let query = self.query(Tier::Booked, RequestId::of_caller(booking, KEEP));
        let claimant = self.service.request_id().id;
        let mut pause = AGAIN;
        loop {
            let claimed = self.service.claim(&query, claimant, |_, _, claim| match claim {
                Claim::Go { .. } => Claimed::Go,
                Claim::Early { at, start } | Claim::Rebooked { at, start } => {
                    Claimed::Later(start.since(at))
                }
                Claim::Deny(deny) => Claimed::Gone(deny.start.since(deny.at)),
                Claim::Spent | Claim::Never(_) => Claimed::Gone(Span::ZERO),
            });
            let claimed = claimed.await;
            if self.asks_again(claimed.as_ref().err(), &mut pause).await {
                continue;
            }
            match claimed {
                Ok(claimed) => return claimed,
                Err(ServiceError::Store(Error::Unavailable(_))) => {
                    return Claimed::Later(UNANSWERED);
                }
                // Rules have changed since, it lapsed, or somebody cancelled it.
                Err(_) => return Claimed::Gone(Span::ZERO),
            }
        }
    }

    /// What was left of the tightest limit when it was last asked, from 0 to 1.
    pub(crate) fn left(&self) -> f64 {
        f64::from_bits(self.left.load(Ordering::Relaxed))
    }

    /// Keeps the provider closed for everybody, for so long.
    pub(crate) async fn close(&self, span: Span) {
        let query = self.query(Tier::Booked, self.service.request_id());
        if let Err(error) = self.service.close(&query, span).await {
            warn!(provider = self.provider, %error, "a pause could not be shared");
        }
    }

    /// Whether to ask again, after a pause, for what is the same however often it is asked. Who
    /// was not answered in the end leaves it to the outage policy, and those after it ask once, until
    /// there is an answer.
    async fn asks_again(&self, failure: Option<&ServiceError>, pause: &mut Span) -> bool {
        let unanswered = matches!(failure, Some(ServiceError::Store(Error::Unavailable(_))));
        if !unanswered || *pause > AGAIN_MAX || self.away.load(Ordering::Relaxed) {
            self.away.store(unanswered, Ordering::Relaxed);
            return false;
        }
        tokio::time::sleep((*pause).into()).await;
        *pause = *pause + *pause;
        true
    }

    fn heard(&self, answer: &Answer<'_, '_>) -> Turn {
        let left = answer.binding().map(|s| s.remaining() as f64 / s.amount().max(1) as f64);
        self.left.store(left.fold(1.0, f64::min).to_bits(), Ordering::Relaxed);
        turn(answer)
    }

    fn failed(&self, error: &ServiceError) -> Turn {
        if !matches!(error, ServiceError::Store(Error::Unavailable(_))) {
            warn!(provider = self.provider, %error, "a turn could not be asked for");
        }
        Turn::Closed(UNANSWERED)
    }
}

fn turn(answer: &Answer<'_, '_>) -> Turn {
    match answer.decision() {
        Decision::Allow(_) => Turn::Now,
        Decision::Deny(deny) => Turn::Later(deny.start.since(deny.at).max(AGAIN)),
        Decision::Never(_) => {
            let rule = answer.hit().map(|hit| hit.name().to_owned());
            Turn::Never(rule.unwrap_or_default())
        }
        Decision::Closed(_) => Turn::Closed(UNANSWERED),
    }
}
