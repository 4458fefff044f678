//! [`Pacer`]: gets turns from the store, and measures the round trip and the clock of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_core::algorithm::Meter;
use sluicegate_core::decision::Deny;
use sluicegate_core::id::Id;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Pacing, Query, RequestId};
use sluicegate_core::store::{Claim, Error, GateClosure};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Charge, Decision, Plan, Store as _};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionMode, Service, ServiceError};
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::lease_times::LeaseTimes;
use crate::own_starts::{OwnStart, OwnStarts};
use crate::round_trip::RoundTrips;
use crate::window::{GateClosures, StartWindow};

/// Minimum wait before the store is asked again, so that the answer "now" does not cause a busy
/// loop.
const AGAIN: Span = Span::from_millis(5);
/// Wait before a store that does not answer is asked again: half of the time for which it has been
/// silent, between these two.
const UNANSWERED_MIN: Span = Span::from_millis(50);
const UNANSWERED_MAX: Span = Span::from_millis(500);
/// Backoff between retries of a failed call. It doubles each time; there is no retry after the
/// longest.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(80);
/// Time after which a failed call is not repeated any more. By then the store's own timeouts and
/// retries have been used up, and the outage policy decides.
const QUICK_FAILURES: Span = Span::from_millis(400);
/// Additional lead of a claim. The call that booked may have taken longer than the claim does;
/// without this margin the claim would arrive too early, and would have to be repeated a round trip
/// later.
const EARLY: Span = Span::from_millis(5);
/// Number of answers in a row that may come too late to be used.
const LATE_MAX: u32 = 3;

/// A kind of work, with the limits that it is paced by.
pub trait PacedWork: Send + Sync {
    /// Result of an admission, made by [`PacedWork::admitted`].
    type Admission: Send;
    /// Result of a refusal for good.
    type Refusal: Send;

    /// Returns the query for one piece of work.
    fn query(&self, id: RequestId) -> Query<'_>;

    /// Converts an admission. `handle` is used to give it back.
    fn admitted(&self, answer: &Answer<'_, '_>, handle: Option<Handle>) -> Self::Admission;

    /// Converts a refusal.
    fn refused(&self, answer: &Answer<'_, '_>) -> Self::Refusal;

    /// Returns true if the start time of the work matters. Otherwise the work is admitted now or
    /// denied.
    fn is_paced(&self) -> bool {
        true
    }

    /// Returns true if the pacer that asks for a turn also starts the work. If not, another process
    /// may claim the booking, and the pacer does not know all real starts.
    fn starts_here(&self) -> bool {
        true
    }

    /// Returns true if the store is in this process and uses the clock of the pacer, so that turns
    /// need no lead.
    fn has_local_store(&self) -> bool {
        false
    }

    /// Returns the lease statistics of the work, if it waits for free leases.
    fn lease_times(&self) -> Option<&LeaseTimes> {
        None
    }

    /// Sees every answer about the work.
    fn observe(&self, _answer: &Answer<'_, '_>) {}
}

/// The answer of the store to a request for a turn.
pub enum Turn<W: PacedWork + ?Sized> {
    /// The work may start in this window.
    Go(W::Admission, StartWindow),
    /// A start is booked. Claim it one lead before the start.
    Booked(Booking),
    /// Nothing is booked, or the booking can't be used yet. Ask again after this time.
    Later(Span),
    /// All leases are taken; no rate limit is exceeded. A lease ends within this time, unless it is
    /// renewed.
    Busy(Span),
    /// The booking does not exist any more. Book again.
    Gone,
    /// The store does not answer, and the outage policy admits nothing. Ask again after this time.
    Unanswered(Span),
    /// The limits can never admit the work.
    Never(W::Refusal),
}

/// A start that is booked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// Id of the booking.
    pub id: RequestId,
    /// Start by the clock of this node, as far as it is known.
    pub start: Timestamp,
    /// Handle that cancels the booking.
    pub handle: Handle,
}

/// Gets turns from the store. One pacer serves all work with the same limits.
pub struct Pacer {
    service: Arc<Service>,
    /// Name for log messages.
    name: String,
    /// Id of this pacer in the bookings of work that it starts itself.
    owner: Id,
    own_starts: Arc<OwnStarts>,
    closures: GateClosures,
    round_trips: RoundTrips,
    /// Slack of the last booking, in microseconds. A configured slack may be longer than the pacer
    /// needs.
    slack: AtomicU64,
    /// Time since which the store has been silent, in microseconds; 0 if it answered the last call.
    unanswered_since: AtomicU64,
    /// True after the retries of a call have failed. Until the store answers again, calls are not
    /// repeated.
    is_away: AtomicBool,
}

impl std::fmt::Debug for Pacer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let round_trips = &self.round_trips;
        f.debug_struct("Pacer").field("name", &self.name).field("round_trips", round_trips).finish()
    }
}

/// A turn, or the handle of an admission that arrived too late to be used.
enum Received<W: PacedWork + ?Sized> {
    Turn(Turn<W>),
    TooLate(Handle),
}

/// The ways to ask for a turn that starts now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AcquireMode {
    /// The turn may start within the lead, and has to be used in its window.
    Paced,
    /// The turn starts now.
    Unpaced,
    /// The same after the store has failed to answer. The outage policy decides if the store does
    /// not answer within the time for a decision.
    Outage,
}

impl Pacer {
    /// Creates a pacer with a name for log messages.
    pub fn new(service: Arc<Service>, name: String) -> Self {
        let (round_trips, unanswered_since) = (RoundTrips::default(), AtomicU64::new(0));
        let is_away = AtomicBool::new(false);
        let (owner, own_starts) = (service.request_id().id, Arc::default());
        let slack = AtomicU64::new(0);
        let closures = GateClosures::default();
        Self {
            service,
            name,
            owner,
            own_starts,
            closures,
            round_trips,
            slack,
            unanswered_since,
            is_away,
        }
    }

    /// Returns the service that the pacer asks.
    pub const fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Returns the measured round trips.
    pub const fn round_trips(&self) -> &RoundTrips {
        &self.round_trips
    }

    fn pacing<W: PacedWork + ?Sized>(&self, work: &W) -> Pacing {
        let owner = work.starts_here().then_some(self.owner);
        let pacing = self.round_trips.pacing();
        let lead = if work.has_local_store() { Span::ZERO } else { pacing.lead };
        Pacing { owner, lead, ..pacing }
    }

    /// Returns the time before its start at which a booking of this work is claimed.
    pub fn lead<W: PacedWork + ?Sized>(&self, work: &W) -> Span {
        self.pacing(work).lead
    }

    /// Returns the window of work that starts in `[start, end]` by the clock of the store, or
    /// `None` if it is too late to start. Requires that [`Self::answered`] has recorded the answer
    /// with these times.
    fn window(&self, plan: &Plan<'_>, start: Timestamp, end: Timestamp) -> Option<StartWindow> {
        let own = OwnStart::of_plan(&self.own_starts, plan);
        self.round_trips
            .set_late_max(own.as_ref().map(OwnStart::tight_interval).unwrap_or_default());
        let (opens, closes) = self.round_trips.interval(start, end)?;
        Some(StartWindow::between(opens, closes).spaced(own).until_closed(&self.closures))
    }

    /// Returns the first time by this node's clock at which booked work may start. `at` is the time
    /// of the booking, and `start` its start, both by the clock of the store.
    fn node_time(&self, asked: Timestamp, at: Timestamp, start: Timestamp) -> Timestamp {
        self.round_trips.earliest(start).unwrap_or_else(|| asked + start.since(at))
    }

    /// Returns the lead and the slack of the next booking.
    pub(crate) fn expected_pacing(&self) -> Pacing {
        let pacing = self.round_trips.pacing();
        let slack = Span::from_micros(self.slack.load(Ordering::Relaxed)).max(pacing.slack);
        Pacing { slack, ..pacing }
    }

    /// Returns the lead and the slack with which work is booked: derived from the round trips, or
    /// set by the rules. Returns `None` if no limit applies.
    pub fn planned_pacing<W: PacedWork + ?Sized>(&self, work: &W) -> Option<Pacing> {
        let mut query = work.query(self.service.request_id());
        query.pacing = Some(self.round_trips.pacing());
        let rules = self.service.limiter().rules();
        let plan = rules.plan(&query, self.service.now()).ok()?;
        let (lead, slack) = (plan.lead?, plan.slack);
        (!plan.charges().is_empty()).then_some(Pacing { lead, slack, owner: None })
    }

    /// Asks for a turn that starts now, or within the lead. With an id that a caller chose,
    /// repeated calls are counted once.
    pub async fn acquire<W: PacedWork + ?Sized>(&self, work: &W, id: RequestId) -> Turn<W> {
        let mut id = id;
        for _ in 0..LATE_MAX {
            let mode = if work.is_paced() { AcquireMode::Paced } else { AcquireMode::Unpaced };
            match self.acquire_once(work, id, mode).await {
                Ok(Received::Turn(turn)) => return turn,
                Ok(Received::TooLate(handle)) => {
                    self.cancel(&handle).await;
                    id = self.service.request_id();
                }
                // The store can't use this id for the work. With a new id, the work may be counted
                // twice, but never too little.
                Err(ServiceError::Store(
                    Error::Full | Error::Conflict | Error::Gone | Error::Lost,
                )) if id.keep.is_some() => id = self.service.request_id(),
                Err(ServiceError::Store(Error::Full | Error::CrossSlot)) => {
                    return self.acquire_unpaced(work, AcquireMode::Unpaced).await;
                }
                Err(error) => return self.failed(&error),
            }
        }
        Turn::Later(AGAIN)
    }

    /// Asks for a turn without a start time, because the store can't keep a record of it: the store
    /// is full, the plan spans several slots, or the store does not answer and the outage policy
    /// decides.
    async fn acquire_unpaced<W: PacedWork + ?Sized>(&self, work: &W, mode: AcquireMode) -> Turn<W> {
        match self.acquire_once(work, self.service.request_id(), mode).await {
            Ok(Received::Turn(Turn::Later(wait))) => Turn::Later(wait.max(AGAIN)),
            Ok(Received::Turn(turn)) => turn,
            Ok(Received::TooLate(_)) => Turn::Later(AGAIN),
            Err(error) => self.failed(&error),
        }
    }

    async fn acquire_once<W: PacedWork + ?Sized>(
        &self,
        work: &W,
        id: RequestId,
        mode: AcquireMode,
    ) -> Result<Received<W>, ServiceError> {
        let paced = mode == AcquireMode::Paced;
        let mut query = work.query(id);
        query.pacing = paced.then(|| self.pacing(work));
        query.patient = mode != AcquireMode::Outage;
        let asked = self.service.now();
        let received =
            self.service.decide(std::slice::from_ref(&query), DecisionMode::Acquire, |answer| {
                let received = self.service.now();
                work.observe(answer);
                if answer.outage().is_none() && !matches!(answer.decision(), Decision::Closed(_)) {
                    self.answered(asked, decided_at(answer), received);
                }
                let allow = match answer.decision() {
                    Decision::Allow(allow) => allow,
                    _ => return Received::Turn(self.refused(work, answer)),
                };
                let plan = answer.plan();
                let handle = plan.needs_record().then(|| plan.handle());
                let window = if !paced || answer.outage().is_some() || plan.charges().is_empty() {
                    Some(StartWindow::from(received + allow.start.since(allow.at)))
                } else {
                    self.window(plan, allow.start, allow.start + plan.slack)
                };
                match window {
                    Some(window) => Received::Turn(Turn::Go(work.admitted(answer, handle), window)),
                    // Paced work always has a record, so there is something to give back.
                    None => Received::TooLate(plan.handle()),
                }
            });
        received.await
    }

    /// Books the first start that fits. If booking is not possible, asks for a turn now under the
    /// limits of `unbooked`.
    pub async fn book<W: PacedWork + ?Sized>(
        &self,
        work: &W,
        unbooked: &W,
        id: RequestId,
    ) -> Turn<W> {
        let mut id = id;
        let mut pause = PAUSE_MIN;
        let since = self.service.now();
        loop {
            match self.book_once(work, id).await {
                Ok(turn) => return turn,
                // The work may have gone under this id.
                Err(ServiceError::Store(Error::Conflict | Error::Gone)) if id.keep.is_some() => {
                    id = self.service.request_id();
                }
                Err(ServiceError::Store(Error::Unavailable(_)))
                    if self.asks_again(&mut pause, since).await => {}
                Err(ServiceError::Store(Error::Unavailable(_))) => {
                    return self.acquire_unpaced(unbooked, AcquireMode::Outage).await;
                }
                Err(ServiceError::Store(Error::Full | Error::CrossSlot)) => {
                    return self.acquire_unpaced(unbooked, AcquireMode::Unpaced).await;
                }
                Err(error) => return self.failed(&error),
            }
        }
    }

    async fn book_once<W: PacedWork + ?Sized>(
        &self,
        work: &W,
        id: RequestId,
    ) -> Result<Turn<W>, ServiceError> {
        let mut query = work.query(id);
        query.pacing = Some(self.pacing(work));
        let asked = self.service.now();
        let booked =
            self.service.decide(std::slice::from_ref(&query), DecisionMode::Book, |answer| {
                self.answered(asked, decided_at(answer), self.service.now());
                self.slack.store(answer.plan().slack.as_micros(), Ordering::Relaxed);
                match answer.decision() {
                    Decision::Allow(allow) => Turn::Booked(Booking {
                        id,
                        start: self.node_time(asked, allow.at, allow.start),
                        handle: answer.plan().handle(),
                    }),
                    _ => self.refused(work, answer),
                }
            });
        booked.await
    }

    /// Claims a booking, one lead before its start or later. Retries keep the same claimant id,
    /// because another claimant would get a new start.
    pub async fn claim<W: PacedWork + ?Sized>(&self, work: &W, id: RequestId) -> Turn<W> {
        let claimant = self.service.request_id().id;
        let mut pause = PAUSE_MIN;
        let since = self.service.now();
        loop {
            let mut query = work.query(id);
            let pacing = self.pacing(work);
            let early = if work.has_local_store() { Span::ZERO } else { EARLY };
            query.pacing = Some(Pacing { lead: pacing.lead + early, ..pacing });
            let asked = self.service.now();
            let claimed = self.service.claim(&query, claimant, |rules, plan, claim| {
                let at = match &claim {
                    Claim::Go { allow, .. } => Some(allow.at),
                    Claim::Early { at, .. } | Claim::Rebooked { at, .. } => Some(*at),
                    Claim::Deny(_) | Claim::Spent | Claim::Never(_) => None,
                };
                self.answered(asked, at, self.service.now());
                match claim {
                    Claim::Go { allow, good_until } => {
                        // Of the current plan: a reload may have moved the booking.
                        let handle = plan.handle().claimed_by(claimant);
                        let Some(window) = self.window(plan, allow.start, good_until) else {
                            return Received::TooLate(handle);
                        };
                        let decision = Decision::Allow(allow);
                        let answer = Answer::new(rules, plan, &decision);
                        Received::Turn(Turn::Go(work.admitted(&answer, Some(handle)), window))
                    }
                    Claim::Early { at, start } | Claim::Rebooked { at, start } => {
                        let start = self.node_time(asked, at, start);
                        let handle = plan.handle();
                        Received::Turn(Turn::Booked(Booking { id, start, handle }))
                    }
                    // A lease is missing, or the next start is beyond the horizon.
                    Claim::Deny(deny) => Received::Turn(denied(work, plan, &deny)),
                    // Booking again tells why.
                    Claim::Spent | Claim::Never(_) => Received::Turn(Turn::Gone),
                }
            });
            match claimed.await {
                Ok(Received::Turn(turn)) => return turn,
                Ok(Received::TooLate(handle)) => {
                    debug!(name = self.name, "claim answered too late: turn given back");
                    self.cancel(&handle).await;
                    return Turn::Gone;
                }
                Err(ServiceError::Store(Error::Unavailable(_))) => {
                    if !self.asks_again(&mut pause, since).await {
                        self.is_out_for(Span::ZERO);
                        return Turn::Unanswered(self.unanswered_wait());
                    }
                }
                // The rules have changed, the booking lapsed, or it was cancelled.
                Err(_) => return Turn::Gone,
            }
        }
    }

    /// Returns the time until work could be booked, or `None` if it never can. Writes nothing.
    pub async fn soonest<W: PacedWork + ?Sized>(&self, work: &W) -> Option<Span> {
        let query = [self.patient_query(work)];
        let asked = self.service.decide(&query, DecisionMode::Peek, |answer| {
            work.observe(answer);
            match answer.decision() {
                Decision::Allow(allow) => Some(allow.start.since(allow.at)),
                _ => match self.refused(work, answer) {
                    Turn::Later(span) | Turn::Busy(span) | Turn::Unanswered(span) => Some(span),
                    _ => None,
                },
            }
        });
        asked.await.unwrap_or_else(|_| Some(self.unanswered_wait()))
    }

    /// Gives back a turn that was not used.
    pub async fn cancel(&self, handle: &Handle) {
        if let Err(error) = self.service.cancel(handle).await {
            debug!(name = self.name, %error, "turn not cancelled: it expires by itself");
        }
    }

    /// Stops all work with these limits for a time, on every node. Turns that this pacer has claimed
    /// before are not used, even if the pause can't be stored; those of other nodes are.
    pub async fn close<W: PacedWork + ?Sized>(
        &self,
        work: &W,
        span: Span,
    ) -> Result<GateClosure, ServiceError> {
        self.closures.count();
        let closed = self.service.close(&self.patient_query(work), span).await;
        // The turns that were claimed during the call.
        if closed.is_ok() {
            self.closures.count();
        }
        closed
    }

    /// Returns the time until which the gate of these limits is closed, if it is. Writes nothing.
    pub async fn closed_until<W: PacedWork + ?Sized>(
        &self,
        work: &W,
    ) -> Result<Option<Timestamp>, ServiceError> {
        let query = self.patient_query(work);
        let read = self.service.with_plan(&query, async |store, _, plan| {
            let usage = store.usage(plan).await?;
            let gates =
                plan.scopes().zip(&usage.readings).filter(|((charge, _), _)| charge.is_gate());
            let closed = gates.map(|(_, reading)| reading.reset).filter(|reset| *reset > usage.at);
            Ok(closed.max())
        });
        read.await
    }

    /// Returns a query for a call that the work can wait for longer than for a decision.
    fn patient_query<'w, W: PacedWork + ?Sized>(&self, work: &'w W) -> Query<'w> {
        let mut query = work.query(self.service.request_id());
        query.patient = true;
        query
    }

    /// Waits before a failed call is repeated; `since` is the time of the first attempt. Returns
    /// false if the call must not be repeated.
    async fn asks_again(&self, pause: &mut Duration, since: Timestamp) -> bool {
        let is_slow = self.service.now().since(since) > QUICK_FAILURES;
        if is_slow || *pause > PAUSE_MAX || self.is_away.load(Ordering::Relaxed) {
            self.is_away.store(true, Ordering::Relaxed);
            return false;
        }
        sleep(*pause).await;
        *pause *= 2;
        true
    }

    /// Records that the store has answered.
    pub fn has_answered(&self) {
        if self.is_unanswered() {
            self.unanswered_since.store(0, Ordering::Relaxed);
        }
    }

    fn answered(&self, asked: Timestamp, at: Option<Timestamp>, received: Timestamp) {
        self.has_answered();
        self.is_away.store(false, Ordering::Relaxed);
        self.round_trips.answered(asked, at, received);
    }

    /// Returns true if the store did not answer the last question.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered_since.load(Ordering::Relaxed) != 0
    }

    /// Records that the store has not answered. Returns true if it has been silent for at least
    /// `span`.
    pub fn is_out_for(&self, span: Span) -> bool {
        let now = self.service.now().as_micros();
        let first =
            self.unanswered_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        now.saturating_sub(first.err().unwrap_or(now)) >= span.as_micros()
    }

    fn failed<W: PacedWork + ?Sized>(&self, error: &ServiceError) -> Turn<W> {
        if matches!(error, ServiceError::Store(Error::Unavailable(_))) {
            self.is_out_for(Span::ZERO);
        } else {
            warn!(name = self.name, %error, "limit check failed");
        }
        Turn::Unanswered(self.unanswered_wait())
    }

    /// Returns the time after which a store that does not answer is asked again.
    fn unanswered_wait(&self) -> Span {
        let since = self.unanswered_since.load(Ordering::Relaxed);
        let silent = match since {
            0 => Span::ZERO,
            since => self.service.now().since(Timestamp::from_micros(since)),
        };
        Span::from_micros(silent.as_micros() / 2).clamp(UNANSWERED_MIN, UNANSWERED_MAX)
    }

    /// Converts an answer that is not an admission.
    fn refused<W: PacedWork + ?Sized>(&self, work: &W, answer: &Answer<'_, '_>) -> Turn<W> {
        match answer.decision() {
            _ if answer.is_banned() => Turn::Never(work.refused(answer)),
            Decision::Deny(deny) => denied(work, answer.plan(), deny),
            Decision::Never(_) => Turn::Never(work.refused(answer)),
            Decision::Closed(_) | Decision::Allow(_) => Turn::Unanswered(self.unanswered_wait()),
        }
    }
}

/// Returns the time of an admission by the clock of the store, or `None` for other decisions, which
/// this node may have made by its own clock.
fn decided_at(answer: &Answer<'_, '_>) -> Option<Timestamp> {
    match answer.decision() {
        Decision::Allow(allow) if !answer.plan().charges().is_empty() => Some(allow.at),
        _ => None,
    }
}

/// Converts a denial for now.
fn denied<W: PacedWork + ?Sized>(work: &W, plan: &Plan<'_>, deny: &Deny) -> Turn<W> {
    let wait = deny.start.since(deny.at).max(AGAIN);
    let is_lease = |charge: &Charge<'_>| matches!(charge.meter, Meter::Leases(_));
    match plan.charges().get(deny.hit.charge) {
        Some(charge) if is_lease(charge) && work.lease_times().is_some() => Turn::Busy(wait),
        _ => Turn::Later(wait),
    }
}
