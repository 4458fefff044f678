//! One turn: booked in the store, waited for, and claimed when it opens.
//!
//! | the store says | the slot |
//! |---|---|
//! | booked | sleeps until the start, then claims |
//! | go | is a turn |
//! | early, made anew | sleeps until the new start |
//! | the booking is unknown or spent | books again |
//! | it does not answer | asks the outage policy, which may let a share through; if not, tries again for a while |
//! | it has no room for bookings | asks for turns one at a time |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_core::Decision;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Query, RequestId, Subject};
use sluicegate_core::store::{Claim, Error};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionMode, Service, ServiceError};
use tokio::sync::{Mutex, oneshot};
use tokio::time::sleep;
use tracing::warn;

use crate::options::ROUTE;
use crate::pass::Pass;
use crate::refusal::Refusal;
use crate::reserve::{admitted, refused};

/// How soon the store is asked again after an answer that should not have come.
const AGAIN: Span = Span::from_millis(10);
/// How soon, at the latest, after one that is far away: it may come nearer.
const FAR: Span = Span::from_secs(1);
/// How soon a store is asked again that did not answer.
const UNANSWERED: Span = Span::from_millis(50);
/// How long those who wait bear a store that does not answer, where nobody may go without it. A
/// Redis that restarts, or is slow for a moment, is none of their business.
const OUTAGE: Span = Span::from_secs(2);

/// What a slot came to.
pub(super) enum Outcome {
    /// A turn: somebody may go.
    Turn(Pass),
    /// Nobody needed it any more.
    Quit,
    /// Nobody may go: the store does not answer, or the route is banned.
    Closed(Refusal),
}

/// What all slots of a lane share.
pub(super) struct Booker {
    pub(super) service: Arc<Service>,
    /// The value of the route's dimension.
    pub(super) key: String,
    /// Bookings are made one after the other.
    pub(super) stream: Mutex<()>,
    /// Since when the store has not answered, in microseconds; 0 if it has.
    pub(super) unanswered: AtomicU64,
}

enum Booked {
    At(Handle, Timestamp),
    Turn(Pass),
    Later(Span),
    Closed(Refusal),
}

enum Claimed {
    Turn(Pass),
    At(Timestamp),
    Lost,
}

impl Booker {
    /// Books a turn, waits for it, claims it. `told` is told when it opens; `quit` ends it.
    pub(super) async fn slot(
        &self,
        mut quit: oneshot::Receiver<()>,
        told: impl Fn(Timestamp),
    ) -> Outcome {
        loop {
            let id = self.service.request_id();
            let (handle, mut due) = match self.book(id).await {
                Booked::At(handle, due) => (handle, due),
                Booked::Turn(pass) => return Outcome::Turn(pass),
                Booked::Closed(refusal) => return Outcome::Closed(refusal),
                Booked::Later(span) => {
                    told(self.service.now() + span);
                    if quits(span.min(FAR), &mut quit).await {
                        return Outcome::Quit;
                    }
                    continue;
                }
            };
            loop {
                told(due);
                if quits(due.since(self.service.now()), &mut quit).await {
                    // Whatever comes of it: a booking that nobody claims ages out.
                    let _ = self.service.cancel(&handle).await;
                    return Outcome::Quit;
                }
                match self.claim(id).await {
                    Claimed::Turn(pass) => return Outcome::Turn(pass),
                    Claimed::At(start) => due = start,
                    Claimed::Lost => break,
                }
            }
        }
    }

    /// The question that all slots ask: a turn of the route, for whomever.
    pub(super) fn query(&self, id: RequestId) -> Query<'_> {
        let mut query = Query::new(id);
        query.insert_own(ROUTE, self.key.as_str());
        query.subject = Subject::Own;
        query
    }

    async fn book(&self, id: RequestId) -> Booked {
        let query = [self.query(id)];
        let one_at_a_time = self.stream.lock().await;
        let asked = self.service.now();
        let booked = self.service.decide(&query, DecisionMode::Book, |answer| {
            match answer.decision() {
                // Counted from when it was asked: that is when the question is at the store next.
                Decision::Allow(allow) => {
                    Booked::At(answer.plan().handle(), asked + allow.start.since(allow.at))
                }
                _ if answer.is_banned() => Booked::Closed(refused(answer)),
                Decision::Deny(deny) => Booked::Later(deny.start.since(deny.at)),
                Decision::Never(_) | Decision::Closed(_) => {
                    Booked::Closed(Refusal::StoreUnavailable)
                }
            }
        });
        match booked.await {
            Ok(booked) => {
                self.answered();
                booked
            }
            Err(ServiceError::Store(Error::Unavailable(_) | Error::Full | Error::CrossSlot)) => {
                drop(one_at_a_time);
                self.alone().await
            }
            Err(error) => {
                warn!(route = self.key, %error, "a turn could not be booked");
                Booked::Later(AGAIN)
            }
        }
    }

    /// A turn without a booking: the limiter decides, by its outage policy if it has to.
    async fn alone(&self) -> Booked {
        let query = [self.query(self.service.request_id())];
        let decided =
            self.service.decide(&query, DecisionMode::Acquire, |answer| match answer.decision() {
                Decision::Allow(_) => Booked::Turn(admitted(&self.service, answer, None)),
                _ if answer.is_banned() => Booked::Closed(refused(answer)),
                Decision::Deny(deny) => Booked::Later(deny.start.since(deny.at).max(AGAIN)),
                Decision::Never(_) | Decision::Closed(_) => {
                    Booked::Closed(Refusal::StoreUnavailable)
                }
            });
        match decided.await.unwrap_or(Booked::Closed(Refusal::StoreUnavailable)) {
            Booked::Closed(Refusal::StoreUnavailable) if !self.is_out() => {
                Booked::Later(UNANSWERED)
            }
            booked => booked,
        }
    }

    /// The store has answered.
    pub(super) fn answered(&self) {
        if self.is_unanswered() {
            self.unanswered.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the last that is known of the store is that it did not answer.
    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) != 0
    }

    /// The store has not answered; says whether it has not for too long.
    pub(super) fn is_out(&self) -> bool {
        let now = self.service.now().as_micros();
        let first = self.unanswered.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let since = first.err().unwrap_or(now);
        now.saturating_sub(since) >= OUTAGE.as_micros()
    }

    async fn claim(&self, id: RequestId) -> Claimed {
        let query = self.query(id);
        let claimant = self.service.request_id().id;
        let asked = self.service.now();
        let claimed = self.service.claim(&query, claimant, |rules, plan, claim| {
            match claim {
                Claim::Go { allow, good_until } => {
                    // Counted from when it was asked, which is before it was answered.
                    let good_until = asked + good_until.since(allow.at);
                    let decision = Decision::Allow(allow);
                    let answer = Answer::new(rules, plan, &decision);
                    // Of the plan of now: a reload may have moved the booking to other counters.
                    let handle = plan.handle().claimed_by(claimant);
                    let pass = admitted(&self.service, &answer, None);
                    Claimed::Turn(pass.booked(handle, good_until))
                }
                Claim::Early { at, start } | Claim::Rebooked { at, start } => {
                    Claimed::At(asked + start.since(at))
                }
                // A lease is missing, or the next start is far.
                Claim::Deny(deny) => {
                    let wait = deny.start.since(deny.at).max(AGAIN).min(FAR);
                    Claimed::At(self.service.now() + wait)
                }
                // Booking again says why.
                Claim::Spent | Claim::Never(_) => Claimed::Lost,
            }
        });
        claimed.await.unwrap_or(Claimed::Lost)
    }
}

/// Sleeps; says whether it was told to quit meanwhile.
async fn quits(span: Span, quit: &mut oneshot::Receiver<()>) -> bool {
    tokio::select! {
        biased;
        _ = quit => true,
        () = sleep(Duration::from(span)) => false,
    }
}
