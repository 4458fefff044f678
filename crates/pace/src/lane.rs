//! [`Lane`]: the waiting requests of one route on this replica, and the task that gets turns for
//! them.
//!
//! A turn belongs to no request until it is claimed: then the queue selects the next request. When
//! a request leaves, all others move up, and the last booking is given back.
//!
//! Replicas report to each other how many requests wait and how many turns are booked. So each one
//! can estimate the wait of a new request behind the requests of all replicas, and books only its
//! share of the next turns.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Fuse, FusedFuture as _};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use sluicegate_config::WaitOrder;
use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::limit::{Limit, Unit};
use sluicegate_core::query::Pacing;
use sluicegate_core::store::GateClosure;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_service::ServiceError;
use tokio::sync::{Mutex as MutexAsync, MutexGuard as MutexGuardAsync, Notify, oneshot};
use tokio::time::{sleep, timeout};

use crate::exchange::{self, Exchange};
use crate::other_queues::OtherQueues;
use crate::own_starts::room;
use crate::pacer::{Booking, PacedWork, Pacer, Turn};
use crate::wait_queue::{EnterResult, Place, WaitQueue};
use crate::window::StartWindow;

/// Time ahead for which all replicas together book turns. A replica that dies wastes at most the
/// turns that it has booked.
const AHEAD: Span = Span::from_secs(1);
/// The same for a queue in fair order. It is shorter because a request of a light flow on another
/// replica waits behind all booked turns.
const AHEAD_FAIR: Span = Span::from_millis(500);
/// Minimum and maximum number of turns that are booked ahead. At least two: one is used while the
/// next is booked.
const AHEAD_MIN: usize = 2;
const AHEAD_MAX: usize = 256;
/// Maximum time between two questions to the store: a start that is far away may move closer.
const FAR: Span = Span::from_millis(250);
/// Assumed duration of a lease until the first one has ended. It sets the retry time that a refused
/// request gets.
const LEASE_ASSUMED: Span = Span::from_secs(1);
/// Time for which requests wait for a store that is down, if the outage policy admits nothing. It
/// is long enough for a restart of Redis.
const OUTAGE: Span = Span::from_secs(2);

/// Settings of a lane.
#[derive(Clone, Debug)]
pub struct LaneOptions {
    /// Maximum time a request waits for its turn.
    pub max: Duration,
    /// Maximum number of waiting requests.
    pub depth: usize,
    /// Order in which waiting requests are served.
    pub order: WaitOrder,
    /// Average time between two starts, by the slowest limit.
    interval: Span,
    /// Time by which a start may be late without delaying the next one, by the tightest token
    /// bucket.
    room: Option<Span>,
    /// Number of leases of the smallest concurrency limit, if there is one.
    leases: Option<u64>,
}

impl LaneOptions {
    /// Creates the settings of a lane whose work has these limits.
    pub fn new(limits: &[Limit], max: Duration, depth: usize, order: WaitOrder) -> Self {
        let each = limits.iter().filter(|limit| limit.unit() == Unit::Requests).map(|limit| {
            let amount = match limit {
                Limit::Bucket { rate, .. } => rate.amount,
                _ => limit.amount(),
            };
            limit.window().as_micros() / amount.get().max(1)
        });
        let interval = Span::from_micros(each.max().unwrap_or(0));
        let rooms = limits.iter().filter_map(|limit| match limit {
            Limit::Bucket { rate, capacity } if limit.unit() == Unit::Requests => {
                Some(room(rate.window.span(), rate.amount.get(), capacity.get()))
            }
            _ => None,
        });
        let room = rooms.min();
        let concurrent = limits.iter().filter(|limit| limit.unit() == Unit::Slots);
        let leases = concurrent.map(|limit| limit.amount().get()).min();
        Self { max, depth, order, interval, room, leases }
    }

    /// Returns the number of turns that all replicas together book ahead.
    fn ahead(&self) -> usize {
        let ahead = if self.order == WaitOrder::Fifo { AHEAD } else { AHEAD_FAIR };
        let turns = ahead.as_micros() / self.interval.as_micros().max(1);
        let turns = usize::try_from(turns).unwrap_or(usize::MAX).clamp(AHEAD_MIN, AHEAD_MAX);
        let leases = self.leases.and_then(|leases| usize::try_from(leases).ok());
        leases.map_or(turns, |leases| turns.min(leases.max(1)))
    }

    /// Returns the number of pending turns at or below which the lane books its next run of turns,
    /// or `None` if it books turns one by one. Other replicas had booked `others` turns when they last
    /// reported.
    ///
    /// If a token bucket has less room than the slack, the slack is lost each time that turns
    /// change from one replica to another. So the lane books a whole run of turns at once, about
    /// two leads before all booked turns are used up. Its next run starts behind the turns of the others:
    /// the more they have booked, the later it books, and the longer its run is.
    fn book_again_at(&self, pacing: Pacing, others: u64) -> Option<usize> {
        self.room.filter(|room| *room < pacing.slack)?;
        let turns_in = |span: Span| span.as_micros().div_ceil(self.interval.as_micros().max(1));
        // Some of them have been used since.
        let others = others.saturating_sub(turns_in(exchange::EVERY + pacing.lead));
        let left = turns_in(pacing.lead + pacing.lead).max(1).saturating_sub(others);
        Some(usize::try_from(left).unwrap_or(usize::MAX))
    }
}

/// The waiting requests of one route on this replica.
pub struct Lane<W: PacedWork> {
    pacer: Pacer,
    work: W,
    state: Mutex<State<W>>,
    /// Wakes the task when a request comes or leaves.
    changed: Notify,
    /// Held by the one turn that asks the store for a free lease. The others wait behind it,
    /// because one question at a time is enough.
    lease_wait: MutexAsync<()>,
}

struct State<W: PacedWork> {
    options: LaneOptions,
    queue: WaitQueue<Waiter<W>>,
    turns: BTreeMap<u64, PendingTurn>,
    next_turn: u64,
    exchange: Exchange,
    /// True while the task runs.
    runs: bool,
}

struct Waiter<W: PacedWork> {
    since: Timestamp,
    /// Time until which the request waits.
    until: Timestamp,
    sender: oneshot::Sender<WaiterMessage<W>>,
}

/// A turn that is being booked, waited for or claimed.
struct PendingTurn {
    /// Start by the clock of this node; `None` until it is booked.
    due: Option<Timestamp>,
    /// Cancels the turn; `None` once it is cancelled.
    quit: Option<oneshot::Sender<()>>,
}

/// The message to a waiting request.
enum WaiterMessage<W: PacedWork> {
    Go(W::Admission, StartWindow),
    /// A request of a shorter flow took the place.
    Displaced,
    Closed(WaitError<W::Refusal>),
}

/// The result of a pending turn.
enum TurnResult<W: PacedWork> {
    Go(W::Admission, StartWindow),
    /// The turn was not needed any more.
    Quit,
    /// No request may go.
    Closed(WaitError<W::Refusal>),
}

/// A turn that a request has waited for.
#[derive(Debug)]
pub struct Waited<A> {
    /// The admission.
    pub admission: A,
    /// Interval in which the request may be sent.
    pub window: StartWindow,
    /// Time that the request has waited, also for turns that it missed.
    pub took: Span,
}

/// The reason why a request gets no turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitError<R> {
    /// The wait is too long, or the queue is full. Retry after this time.
    Limited(Span),
    /// The store does not answer, and the outage policy admits nothing.
    StoreUnavailable,
    /// The limits can never admit the request.
    Refused(R),
}

impl<W> Lane<W>
where
    W: PacedWork<Refusal: Clone> + 'static,
{
    /// Creates a lane without waiting requests.
    pub fn new(pacer: Pacer, work: W, options: LaneOptions) -> Arc<Self> {
        let exchange = Exchange::new(pacer.service().request_id().id);
        let state = State {
            exchange,
            queue: WaitQueue::new(options.depth, options.order.clone()),
            options,
            turns: BTreeMap::new(),
            next_turn: 0,
            runs: false,
        };
        let (state, changed, lease_wait) =
            (Mutex::new(state), Notify::new(), MutexAsync::default());
        Arc::new(Self { pacer, work, state, changed, lease_wait })
    }

    /// Changes the settings. Waiting requests keep their place.
    pub fn reconfigure(&self, options: LaneOptions) {
        let mut state = self.lock();
        state.queue.reconfigure(options.depth, options.order.clone());
        state.options = options;
    }

    /// Returns the number of waiting requests.
    pub fn depth(&self) -> usize {
        self.lock().queue.len()
    }

    /// Returns the waiting time of the oldest request.
    pub fn oldest(&self) -> Span {
        let now = self.pacer.service().now();
        self.lock().queue.oldest().map_or(Span::ZERO, |waiter| now.since(waiter.since))
    }

    /// Returns true if a new request has to wait behind others.
    pub fn is_busy(&self) -> bool {
        let state = self.lock();
        state.queue.len() > 0 || !state.turns.is_empty()
    }

    /// Returns the pacer.
    pub const fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    /// Returns the lead and the slack of turns, or `None` if no limit applies.
    pub fn pacing(&self) -> Option<Pacing> {
        self.pacer.planned_pacing(&self.work)
    }

    /// Records that the store has not answered. Returns true if it has been silent for too long to
    /// wait for it.
    pub fn is_out(&self) -> bool {
        self.pacer.is_out_for(OUTAGE)
    }

    /// Returns the dimension that separates flows.
    pub fn by(&self) -> Option<String> {
        self.lock().queue.by().map(str::to_owned)
    }

    /// Asks for a turn at once, without waiting in the queue.
    pub async fn acquire(&self) -> Turn<W> {
        self.pacer.acquire(&self.work, self.pacer.service().request_id()).await
    }

    /// Waits for a turn for at most `patience`. `hint` is the time after which the store would admit
    /// the request. Dropping the future removes the request from the queue.
    pub async fn wait(
        self: &Arc<Self>,
        flow: &str,
        hint: Span,
        patience: Duration,
    ) -> Result<Waited<W::Admission>, WaitError<W::Refusal>> {
        let (waiter, receiver) = self.waiter(patience);
        let since = waiter.since;
        let place = self.enter(flow, hint, patience, waiter)?;
        self.wait_in(place, flow, (since, receiver), patience).await
    }

    /// Waits for another turn after one was missed, for at most `patience`. Such a request goes
    /// before all others. It has waited since `since`.
    pub async fn wait_again(
        self: &Arc<Self>,
        since: Timestamp,
        patience: Duration,
    ) -> Result<Waited<W::Admission>, WaitError<W::Refusal>> {
        let (waiter, receiver) = self.waiter(patience);
        let waiter = Waiter { since, ..waiter };
        let place = self.come_back(waiter);
        self.wait_in(place, "", (since, receiver), patience).await
    }

    fn come_back(self: &Arc<Self>, waiter: Waiter<W>) -> Place {
        let mut state = self.lock();
        let place = state.queue.come_back(waiter);
        self.wake(state);
        place
    }

    fn waiter(&self, patience: Duration) -> (Waiter<W>, oneshot::Receiver<WaiterMessage<W>>) {
        let (sender, receiver) = oneshot::channel();
        let since = self.pacer.service().now();
        (Waiter { since, until: since + Span::from(patience), sender }, receiver)
    }

    async fn wait_in(
        &self,
        place: Place,
        flow: &str,
        (since, receiver): (Timestamp, oneshot::Receiver<WaiterMessage<W>>),
        patience: Duration,
    ) -> Result<Waited<W::Admission>, WaitError<W::Refusal>> {
        let _leaving = Leaving { lane: self, place };
        match timeout(patience, receiver).await {
            Ok(Ok(WaiterMessage::Go(admission, window))) => {
                let took = self.pacer.service().now().since(since);
                Ok(Waited { admission, window, took })
            }
            Ok(Ok(WaiterMessage::Closed(error))) => Err(error),
            // The request was displaced, it timed out, or the task ended with its runtime.
            Ok(Ok(WaiterMessage::Displaced) | Err(_)) | Err(_) => Err(self.error(flow, since)),
        }
    }

    /// Returns the error for a request that waited without a result.
    fn error(&self, flow: &str, now: Timestamp) -> WaitError<W::Refusal> {
        if self.pacer.is_unanswered() {
            return WaitError::StoreUnavailable;
        }
        let mut state = self.lock();
        // A request whose time is over still counts as waiting.
        let ends = state.queue.ahead_of_everywhere(flow).max(1);
        let leases = self.lease_wait_of(&state, ends, LEASE_ASSUMED);
        WaitError::Limited(state.wait_of(flow, now, Span::ZERO).max(leases))
    }

    /// Returns the estimated time until `ends` leases have ended, from the mean duration of a
    /// lease, or from `assumed` if none has ended yet. Returns zero if the route has no leases.
    fn lease_wait_of(&self, state: &State<W>, ends: u64, assumed: Span) -> Span {
        let (Some(times), Some(leases)) = (self.work.lease_times(), state.options.leases) else {
            return Span::ZERO;
        };
        let mean = times.mean().unwrap_or(assumed).as_micros();
        Span::from_micros(mean.saturating_mul(ends) / leases.max(1))
    }

    /// Adds a request to the queue, unless its expected wait is too long.
    fn enter(
        self: &Arc<Self>,
        flow: &str,
        hint: Span,
        patience: Duration,
        waiter: Waiter<W>,
    ) -> Result<Place, WaitError<W::Refusal>> {
        let mut state = self.lock();
        let ends = state.queue.ahead_of_everywhere(flow);
        let leases = self.lease_wait_of(&state, ends, Span::ZERO);
        let expected = state.wait_of(flow, waiter.since, hint).max(leases);
        let patience = patience.min(state.options.max);
        if Duration::from(expected) + state.uncertainty(patience) > patience {
            return Err(WaitError::Limited(expected));
        }
        let (place, displaced) = match state.queue.enter(flow, waiter) {
            EnterResult::Full(_) => return Err(WaitError::Limited(expected)),
            EnterResult::Waiting(place) => (place, None),
            EnterResult::InPlaceOf(place, other) => (place, Some(other)),
        };
        self.wake(state);
        if let Some(Waiter { sender, .. }) = displaced {
            let _ = sender.send(WaiterMessage::Displaced);
        }
        Ok(place)
    }

    /// Starts the task, or wakes it for a new request.
    fn wake(self: &Arc<Self>, mut state: MutexGuard<'_, State<W>>) {
        let starts = !std::mem::replace(&mut state.runs, true);
        drop(state);
        if starts {
            self.pacer.service().tasks().spawn(self.clone().run());
        } else {
            self.changed.notify_one();
        }
    }

    /// Gets turns for as long as requests wait.
    async fn run(self: Arc<Self>) {
        let mut turns = FuturesUnordered::new();
        let mut exchange = pin!(Fuse::terminated());
        loop {
            let known = self.pacer.round_trips().is_known();
            let pacing = self.pacer.expected_pacing();
            let now = self.pacer.service().now();
            let (more, pause) = {
                let mut state = self.lock();
                state.forget_outdated(now);
                (state.balance(known, pacing), state.exchange.pause(now, state.queue.len()))
            };
            let Some(more) = more else { return };
            for (number, quit) in more {
                let lane = &self;
                turns.push(async move {
                    let due = |at| lane.lock().set_due(number, at);
                    (number, lane.turn(quit, due).await)
                });
            }
            // After the bookings, so that all go to the store together.
            if pause == Span::ZERO && exchange.is_terminated() {
                let report = self.lock().report(now);
                exchange.set(self.pacer.exchange(&self.work, report).fuse());
            }
            tokio::select! {
                Some((number, result)) = turns.next() => self.finish(number, result),
                others = &mut exchange => self.hear(others),
                () = self.changed.notified() => {}
                () = sleep(pause.into()), if pause > Span::ZERO => {}
            }
        }
    }

    /// Books a turn, waits for it and claims it. Calls `due` with each start that becomes known;
    /// `quit` cancels the turn.
    async fn turn(
        &self,
        mut quit: oneshot::Receiver<()>,
        due: impl Fn(Timestamp),
    ) -> TurnResult<W> {
        let (pacer, service) = (&self.pacer, self.pacer.service());
        let mut booking: Option<Booking> = None;
        let mut asks = None;
        loop {
            let turn = match &booking {
                None => pacer.book(&self.work, &self.work, service.request_id()).await,
                Some(booking) => {
                    due(booking.start);
                    let ask_at = booking.start - pacer.round_trips().pacing().lead;
                    if quits(ask_at.since(service.now()), &mut quit).await {
                        pacer.cancel(&booking.handle).await;
                        return TurnResult::Quit;
                    }
                    pacer.claim(&self.work, booking.id).await
                }
            };
            if !matches!(turn, Turn::Busy(_)) {
                asks = None;
            }
            let is_over = match turn {
                Turn::Go(admission, window) => return TurnResult::Go(admission, window),
                Turn::Booked(next) => {
                    booking = Some(next);
                    continue;
                }
                Turn::Gone => {
                    booking = None;
                    continue;
                }
                Turn::Never(refusal) => return TurnResult::Closed(WaitError::Refused(refusal)),
                // The claim was repeated until its start was over. Booking again lets the outage
                // policy decide.
                Turn::Unanswered(_) if booking.is_some() => {
                    booking = None;
                    continue;
                }
                Turn::Unanswered(_) if self.is_out() => {
                    return TurnResult::Closed(WaitError::StoreUnavailable);
                }
                Turn::Unanswered(wait) => quits(wait, &mut quit).await,
                Turn::Busy(_) => tokio::select! {
                    biased;
                    _ = &mut quit => true,
                    () = self.lease_may_be_free(&mut asks) => false,
                },
                Turn::Later(wait) => {
                    due(service.now() + wait);
                    quits(wait.min(FAR), &mut quit).await
                }
            };
            if is_over {
                if let Some(booking) = booking {
                    pacer.cancel(&booking.handle).await;
                }
                return TurnResult::Quit;
            }
        }
    }

    /// Waits until a lease may be free: a lease of this replica has ended, or it is time to ask the
    /// store again, because a lease of another replica may have ended. The turn that asks holds the
    /// lock in `asks`.
    async fn lease_may_be_free<'l>(&'l self, asks: &mut Option<MutexGuardAsync<'l, ()>>) {
        if asks.is_none() {
            let Ok(first) = self.lease_wait.try_lock() else {
                *asks = Some(self.lease_wait.lock().await);
                return;
            };
            *asks = Some(first);
        }
        match self.work.lease_times() {
            Some(times) => drop(timeout(FAR.into(), times.wait_for_end()).await),
            None => sleep(FAR.into()).await,
        }
    }

    /// Hands a turn to the next request, or refuses all requests.
    fn finish(&self, number: u64, result: TurnResult<W>) {
        let mut state = self.lock();
        state.turns.remove(&number);
        match result {
            TurnResult::Quit => {}
            TurnResult::Go(admission, window) => {
                let mut message = WaiterMessage::Go(admission, window);
                // A request that is gone by now leaves the turn to the next one.
                while let Some(waiter) = state.queue.next() {
                    match waiter.sender.send(message) {
                        Ok(()) => return,
                        Err(unused) => message = unused,
                    }
                }
                // No request is left. The dropped admission is given back.
            }
            TurnResult::Closed(error) => {
                for waiter in state.queue.clear() {
                    let _ = waiter.sender.send(WaiterMessage::Closed(error.clone()));
                }
            }
        }
    }

    /// Applies the backlogs of other replicas, and refuses requests that now have to wait too long.
    fn hear(&self, backlogs: Option<Vec<Backlog>>) {
        let Some(backlogs) = backlogs else { return };
        let now = self.pacer.service().now();
        let too_long = self.lock().hear(&backlogs, now);
        for (waiter, wait) in too_long {
            let _ = waiter.sender.send(WaiterMessage::Closed(WaitError::Limited(wait)));
        }
    }

    /// Stops all requests of the route for a time, on every replica.
    pub async fn close(&self, span: Span) -> Result<GateClosure, ServiceError> {
        self.pacer.close(&self.work, span).await
    }

    /// Returns the time until which the route is closed, if it is, by the clock of the store.
    pub async fn closed_until(&self) -> Result<Option<Timestamp>, ServiceError> {
        self.pacer.closed_until(&self.work).await
    }
}

impl<W: PacedWork> Lane<W> {
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: PacedWork> std::fmt::Debug for Lane<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("pacer", &self.pacer).finish_non_exhaustive()
    }
}

impl<W: PacedWork> State<W> {
    /// Adjusts the number of pending turns to the number of waiting requests, up to this replica's
    /// share of the turns that are booked ahead. Until the round trip to the store is known, there
    /// is at most one. Returns the turns to start, or `None` if no request waits and no turn is
    /// pending.
    fn balance(
        &mut self,
        is_known: bool,
        pacing: Pacing,
    ) -> Option<Vec<(u64, oneshot::Receiver<()>)>> {
        let ahead = if is_known { self.options.ahead() } else { 1 };
        let wanted = self.queue.len().min(ahead);
        if wanted == 0 && self.turns.is_empty() {
            self.runs = false;
            return None;
        }
        let active = self.turns.values().filter(|turn| turn.quit.is_some()).count();
        for _ in wanted..active {
            // Cancels the last one: the requests that moved up use the turns before it.
            let last = self.turns.values_mut().filter(|turn| turn.quit.is_some());
            let last = last.max_by_key(|turn| turn.due.unwrap_or(Timestamp::MAX));
            if let Some(quit) = last.and_then(|turn| turn.quit.take()) {
                let _ = quit.send(());
            }
        }
        let until = match self.options.book_again_at(pacing, self.queue.others().booked()) {
            None => self.queue.own_turns(ahead),
            Some(few) if active > few => active,
            Some(_) => wanted,
        };
        let add = |_| {
            let (quit, quits) = oneshot::channel();
            self.next_turn += 1;
            self.turns.insert(self.next_turn, PendingTurn { due: None, quit: Some(quit) });
            (self.next_turn, quits)
        };
        // Turns above the share are kept: they are used soon, and giving them back would cost more.
        Some((active..until).map(add).collect())
    }

    fn set_due(&mut self, number: u64, due: Timestamp) {
        if let Some(turn) = self.turns.get_mut(&number) {
            turn.due = Some(due);
        }
    }

    /// Returns the minimum wait of a request that arrives now, as far as it is known: the time
    /// until the last booked turn, plus the time for the requests on all replicas that go first and
    /// have no turn yet.
    fn wait_of(&mut self, flow: &str, now: Timestamp, hint: Span) -> Span {
        self.forget_outdated(now);
        let mut dues: Vec<_> = self.turns.values().filter_map(|turn| turn.due).collect();
        dues.sort_unstable();
        if let Some(due) = dues.get(self.queue.ahead_of(flow)) {
            return due.since(now);
        }
        let (from, booked) = self.last_booked(now, hint);
        from + self.turns_take(self.queue.ahead_of_everywhere(flow).saturating_sub(booked))
    }

    /// Returns the time by which a wait may exceed its estimate, because new requests on other
    /// replicas become known only with the next reports. A request that would time out because of
    /// them is refused at once.
    fn uncertainty(&self, patience: Duration) -> Duration {
        if self.queue.others().is_empty() {
            return Duration::ZERO;
        }
        Duration::from(exchange::EVERY).min(patience / 20)
    }

    /// Returns the time until the last booked turn, and the number of turns that all replicas have
    /// booked.
    fn last_booked(&self, now: Timestamp, hint: Span) -> (Span, u64) {
        let others = self.queue.others().booked();
        let dues = || self.turns.values().filter_map(|turn| turn.due);
        let last = dues().max().map(|due| due.since(now));
        let from = last.unwrap_or_else(|| hint.max(self.turns_take(others)));
        (from, others + dues().count() as u64)
    }

    /// Returns the time that this number of turns takes.
    fn turns_take(&self, number: u64) -> Span {
        Span::from_micros(self.options.interval.as_micros().saturating_mul(number))
    }

    /// Returns the report of the backlog for other replicas.
    fn report(&mut self, now: Timestamp) -> BacklogReport {
        let booked = self.turns.values().filter(|turn| turn.due.is_some()).count() as u64;
        let (backlog, len) = (self.queue.backlog(booked), self.queue.len());
        self.exchange.report(now, backlog, len)
    }

    /// Applies the backlogs of other replicas. Removes and returns the requests that would wait too
    /// long, each with the time after which to retry.
    fn hear(&mut self, backlogs: &[Backlog], now: Timestamp) -> Vec<(Waiter<W>, Span)> {
        self.exchange.received(now);
        self.queue.set_others(OtherQueues::new(backlogs));
        if self.queue.others().is_empty() || !self.exchange.may_refuse(now) {
            return Vec::new();
        }
        let (from, booked) = self.last_booked(now, Span::ZERO);
        let interval = self.turns_take(1).as_micros();
        let is_too_long = |ahead: u64, waiter: &Waiter<W>| {
            let behind = Span::from_micros(interval.saturating_mul(ahead.saturating_sub(booked)));
            now + from + behind > waiter.until + exchange::EVERY
        };
        let taken = self.queue.take_too_long(is_too_long);
        if !taken.is_empty() {
            self.exchange.refused(now);
        }
        let waits = |(flow, waiter): (Arc<str>, _)| (waiter, self.wait_of(&flow, now, Span::ZERO));
        taken.into_iter().map(waits).collect()
    }

    /// Forgets the backlogs of other replicas if they are too old.
    fn forget_outdated(&mut self, now: Timestamp) {
        if self.exchange.is_outdated(now) {
            self.queue.set_others(OtherQueues::default());
        }
    }
}

/// Guard that removes a request from the queue when its future ends or is dropped.
struct Leaving<'l, W: PacedWork> {
    lane: &'l Lane<W>,
    place: Place,
}

impl<W: PacedWork> Drop for Leaving<'_, W> {
    fn drop(&mut self) {
        let left = self.lane.lock().queue.leave(&self.place);
        if left.is_some() {
            self.lane.changed.notify_one();
        }
    }
}

/// Sleeps. Returns true if it was cancelled by `quit`.
async fn quits(span: Span, quit: &mut oneshot::Receiver<()>) -> bool {
    tokio::select! {
        biased;
        _ = quit => true,
        () = sleep(Duration::from(span)) => false,
    }
}
