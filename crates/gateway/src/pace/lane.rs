//! Those who wait for one route, and the pump that brings their turns.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sluicegate_core::limit::{Limit, Unit};
use sluicegate_core::store::GateClosure;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_service::{Service, ServiceError};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::room::{Entered, Place, Room};
use super::slot::{Booker, Outcome};
use crate::options::Wait;
use crate::pass::Pass;
use crate::refusal::Refusal;

/// The most turns that are booked ahead. More than a second's worth of most contracts, so that no
/// turn is missed; few enough that a replica which dies takes little with it.
const WINDOW: usize = 32;

/// The waiting room of a route on this replica.
pub(crate) struct Lane {
    booker: Booker,
    state: Mutex<State>,
    /// Somebody came or left.
    changed: Notify,
}

struct State {
    room: Room<Waiter>,
    slots: BTreeMap<u64, Slot>,
    next_slot: u64,
    /// From one turn to the next, in the long run.
    interval: Span,
    max: Duration,
    pumping: bool,
}

struct Waiter {
    since: Timestamp,
    tell: oneshot::Sender<Turn>,
}

/// A turn that is on its way.
struct Slot {
    /// When it opens, by the clock of this node, as far as that is known.
    due: Option<Timestamp>,
    /// Ends it; `None` once it was told to.
    quit: Option<oneshot::Sender<()>>,
}

enum Turn {
    Go(Pass),
    /// Somebody of a shorter queue took the place.
    Displaced,
    /// Nobody may go.
    Closed(Refusal),
}

/// The end of a wait.
pub(crate) struct Waited {
    /// The turn.
    pub(crate) pass: Pass,
    /// How long it took.
    pub(crate) took: Span,
}

impl Lane {
    pub(crate) fn new(
        service: Arc<Service>,
        key: String,
        limits: &[Limit],
        wait: &Wait,
    ) -> Arc<Self> {
        let state = State {
            room: Room::new(wait.depth, wait.order.clone()),
            slots: BTreeMap::new(),
            next_slot: 0,
            interval: interval(limits),
            max: wait.max,
            pumping: false,
        };
        let stream = tokio::sync::Mutex::new(());
        let booker = Booker { service, key, stream, unanswered: AtomicU64::new(0) };
        Arc::new(Self { booker, state: Mutex::new(state), changed: Notify::new() })
    }

    /// Waits differently from now on. Those who wait already stay.
    pub(crate) fn reconfigure(&self, limits: &[Limit], wait: &Wait) {
        let mut state = self.lock();
        state.room.reconfigure(wait.depth, wait.order.clone());
        state.interval = interval(limits);
        state.max = wait.max;
    }

    /// How many wait.
    pub(crate) fn depth(&self) -> usize {
        self.lock().room.len()
    }

    /// How long the one who came first of those has waited.
    pub(crate) fn oldest(&self) -> Span {
        let now = self.booker.service.now();
        self.lock().room.oldest().map_or(Span::ZERO, |waiter| now.since(waiter.since))
    }

    /// Whether somebody has to be waited for.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.lock();
        state.room.len() > 0 || !state.slots.is_empty()
    }

    /// The store has answered.
    pub(crate) fn answered(&self) {
        self.booker.answered();
    }

    /// The store has not answered; says whether it has not for too long to be waited for.
    pub(crate) fn is_out(&self) -> bool {
        self.booker.is_out()
    }

    /// The dimension that tells flows apart.
    pub(crate) fn by(&self) -> Option<String> {
        self.lock().room.by().map(str::to_owned)
    }

    /// Waits for a turn, at most for `patience`.
    ///
    /// `hint` is when the store would have let it go. Dropped, it leaves the room, and all behind
    /// it move up.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        flow: &str,
        hint: Span,
        patience: Duration,
    ) -> Result<Waited, Refusal> {
        let (waiter, told) = self.waiter();
        let since = waiter.since;
        let place = self.enter(flow, hint, patience, waiter)?;
        self.called(flow, place, (since, told), patience).await
    }

    /// Waits for another turn in the place of one that was missed, at most for `patience`.
    ///
    /// A request that had a turn does not go to the end again: it gets the next that opens.
    pub(crate) async fn wait_again(
        self: &Arc<Self>,
        patience: Duration,
    ) -> Result<Waited, Refusal> {
        let (waiter, told) = self.waiter();
        let since = waiter.since;
        let place = self.come_back(waiter);
        self.called("", place, (since, told), patience).await
    }

    fn waiter(&self) -> (Waiter, oneshot::Receiver<Turn>) {
        let (tell, told) = oneshot::channel();
        (Waiter { since: self.booker.service.now(), tell }, told)
    }

    /// Waits in a place until its turn comes.
    async fn called(
        &self,
        flow: &str,
        place: Place,
        (since, told): (Timestamp, oneshot::Receiver<Turn>),
        patience: Duration,
    ) -> Result<Waited, Refusal> {
        let _leaving = Leaving { lane: self, place };
        match timeout(patience, told).await {
            Ok(Ok(Turn::Go(pass))) => {
                Ok(Waited { pass, took: self.booker.service.now().since(since) })
            }
            Ok(Ok(Turn::Closed(refusal))) => Err(refusal),
            // Displaced, out of time, or the pump is gone with its runtime.
            Ok(Ok(Turn::Displaced) | Err(_)) | Err(_) => Err(self.refusal(flow, since)),
        }
    }

    /// What those are told who waited in vain.
    fn refusal(&self, flow: &str, now: Timestamp) -> Refusal {
        if self.booker.is_unanswered() {
            return Refusal::StoreUnavailable;
        }
        let retry_after = self.lock().wait_of(flow, now, Span::ZERO);
        Refusal::Limited { retry_after: Some(retry_after), rule: None }
    }

    /// Goes into the room, unless the wait is known to be too long.
    fn enter(
        self: &Arc<Self>,
        flow: &str,
        hint: Span,
        patience: Duration,
        waiter: Waiter,
    ) -> Result<Place, Refusal> {
        let mut state = self.lock();
        let expected = state.wait_of(flow, waiter.since, hint);
        let refusal = || Refusal::Limited { retry_after: Some(expected), rule: None };
        if Duration::from(expected) > patience.min(state.max) {
            return Err(refusal());
        }
        let (place, displaced) = match state.room.enter(flow, waiter) {
            Entered::Full(_) => return Err(refusal()),
            Entered::Waiting(place) => (place, None),
            Entered::InPlaceOf(place, other) => (place, Some(other)),
        };
        self.pump_for(state);
        if let Some(Waiter { tell, .. }) = displaced {
            let _ = tell.send(Turn::Displaced);
        }
        Ok(place)
    }

    fn come_back(self: &Arc<Self>, waiter: Waiter) -> Place {
        let mut state = self.lock();
        let place = state.room.come_back(waiter);
        self.pump_for(state);
        place
    }

    /// Sees to it that turns come for somebody who has just come.
    fn pump_for(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let starts = !std::mem::replace(&mut state.pumping, true);
        drop(state);
        if starts {
            tokio::spawn(self.clone().pump());
        } else {
            self.changed.notify_one();
        }
    }

    /// Keeps turns coming for as long as somebody waits.
    async fn pump(self: Arc<Self>) {
        let mut slots = FuturesUnordered::new();
        loop {
            match self.lock().balance() {
                Balance::Done => return,
                Balance::More(more) => {
                    for (number, quit) in more {
                        let lane = &self;
                        slots.push(async move {
                            let told = |due| lane.lock().expect_at(number, due);
                            (number, lane.booker.slot(quit, told).await)
                        });
                    }
                }
            }
            tokio::select! {
                Some((number, outcome)) = slots.next() => self.turn(number, outcome),
                () = self.changed.notified() => {}
            }
        }
    }

    /// A slot has come to its end: somebody goes, or everybody has to.
    fn turn(&self, number: u64, outcome: Outcome) {
        let mut state = self.lock();
        state.slots.remove(&number);
        match outcome {
            Outcome::Quit => {}
            Outcome::Turn(pass) => {
                let mut turn = Turn::Go(pass);
                // A request that is gone by now gives the turn back to us.
                while let Some(waiter) = state.room.next() {
                    match waiter.tell.send(turn) {
                        Ok(()) => return,
                        Err(unused) => turn = unused,
                    }
                }
                // Nobody left: dropped, the pass goes back to the store.
            }
            Outcome::Closed(refusal) => {
                for waiter in state.room.clear() {
                    let _ = waiter.tell.send(Turn::Closed(refusal.clone()));
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets nobody go for so long, on any replica.
    pub(crate) async fn close(&self, span: Span) -> Result<GateClosure, ServiceError> {
        let service = &self.booker.service;
        service.close(&self.booker.query(service.request_id()), span).await
    }
}

/// What the pump has to do.
enum Balance {
    /// Add these slots, and go on.
    More(Vec<(u64, oneshot::Receiver<()>)>),
    /// Nobody waits and nothing is booked.
    Done,
}

impl State {
    /// As many turns as there are waiting, up to the window.
    fn balance(&mut self) -> Balance {
        let wanted = self.room.len().min(WINDOW);
        if wanted == 0 && self.slots.is_empty() {
            self.pumping = false;
            return Balance::Done;
        }
        let active = self.slots.values().filter(|slot| slot.quit.is_some()).count();
        for _ in wanted..active {
            // The last of them: those before it are for those who moved up.
            let last = self.slots.values_mut().filter(|slot| slot.quit.is_some());
            let last = last.max_by_key(|slot| slot.due.unwrap_or(Timestamp::MAX));
            if let Some(quit) = last.and_then(|slot| slot.quit.take()) {
                let _ = quit.send(());
            }
        }
        let add = |_| {
            let (quit, quits) = oneshot::channel();
            self.next_slot += 1;
            self.slots.insert(self.next_slot, Slot { due: None, quit: Some(quit) });
            (self.next_slot, quits)
        };
        Balance::More((active..wanted).map(add).collect())
    }

    fn expect_at(&mut self, number: u64, due: Timestamp) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.due = Some(due);
        }
    }

    /// How long somebody who comes now has to wait at least, as far as that is known.
    fn wait_of(&self, flow: &str, now: Timestamp, hint: Span) -> Span {
        let ahead = self.room.ahead_of(flow);
        let mut dues: Vec<_> = self.slots.values().filter_map(|slot| slot.due).collect();
        dues.sort_unstable();
        let (booked, from) = match dues.get(ahead) {
            Some(due) => return due.since(now),
            None => (dues.len(), dues.last().map_or(hint, |due| due.since(now))),
        };
        let behind = u64::try_from(ahead - booked).unwrap_or(u64::MAX);
        from + Span::from_micros(self.interval.as_micros().saturating_mul(behind))
    }
}

/// From one turn to the next, in the long run: that of the slowest limit.
fn interval(limits: &[Limit]) -> Span {
    let counted = limits.iter().filter(|limit| limit.unit() == Unit::Requests);
    let each = counted.map(|limit| limit.window().as_micros() / limit.amount().get().max(1));
    Span::from_micros(each.max().unwrap_or(0))
}

/// Leaves the room when the request goes away, in whatever way.
struct Leaving<'l> {
    lane: &'l Lane,
    place: Place,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let left = self.lane.lock().room.leave(&self.place);
        if left.is_some() {
            self.lane.changed.notify_one();
        }
    }
}
