//! Simulation of leases on concurrency slots: acquired with a time to live, renewed while the work
//! runs, and released afterwards.
//!
//! One store keeps the leases. A holder works only while it holds one. It may be suspended or
//! killed at any point without notice to the store: the slot becomes free when its lease expires.
//!
//! # Messages
//!
//! | message | carries | means |
//! |---|---|---|
//! | `Acquire` | id | asks for a slot |
//! | `Renew` | id | extends the lease to its full length from now |
//! | `Release` | id | ends the lease; the holder never uses this id again |
//! | `Held` | remaining time | the lease is held for this time after the reply |
//! | `Deny` | | all slots are held |
//! | `Lost` | | the lease is over; another holder may have the slot |
//! | `Released` | | confirms the release |
//!
//! # Records of the store, one per id
//!
//! | | none | held | expired | released |
//! |---|---|---|---|---|
//! | `Acquire` | → held, `Held`; or `Deny` | `Held` with the remaining time; nothing is extended | `Lost` | `Lost` |
//! | `Renew` | `Lost` | extend, `Held` | `Lost`, also if a slot is free | `Lost` |
//! | `Release` | → released | end → released | → released | replay |
//!
//! A record outlives its lease by the maximum delay of a message: otherwise a late `Acquire` takes
//! a slot for a holder that is gone. An id belongs to *one holder*: a replacement that uses the id
//! of the holder that it replaces would receive `Held` while the first one still works.
//!
//! A holder repeats `Acquire` a bounded number of times. It repeats `Release` until it gets a reply
//! or its lease is certainly over: a time to live and the maximum delay after it stopped.
//!
//! # Working time of a holder
//!
//! A holder may work for the *remaining* time in the reply, counted from the moment it *sent* the
//! request. The store decided after that moment, so the holder stops before the store gives the
//! slot away. No two clocks are compared; they only have to run equally fast. A reply to a repeated
//! `Acquire` has less time left than a whole lease, so "a lease from when I asked" would be too
//! long.
//!
//! # Invariants
//!
//! | | |
//! |---|---|
//! | L1 | at no time do more holders work than there are slots |
//! | L2 | a slot is denied only while all are rightly held: by a lease that was renewed or taken less than its time to live ago, and not released |
//! | L3 | an expired or released lease is not renewed |
//! | L4 | one lease after the end of all holders, all slots are free |
//!
//! A holder that dies is counted for at most one lease after its last message arrived.

mod check;
mod holder;
mod store;

use sluicegate_core::Span;
use sluicegate_core::algorithm::concurrency::SlotQuota;

use super::explore::{Run, Tracing};
use super::process::{FaultRates, ProcessState};
use super::scheduler::Scheduler;
use check::Check;
use holder::Holder;
use store::Store;

const DELAY_MAX: Span = Span::from_millis(120);
const STALL_MAX: Span = Span::from_millis(300);
const STORMY: Span = Span::from_millis(900);

/// A bug that an implementation could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseMistake {
    /// A lease counts until it is released.
    NeverExpires,
    /// A renewal is confirmed and changes nothing.
    RenewalIgnored,
    /// A lease lasts half as long as the reply says.
    ShortLease,
    /// A renewal revives an expired lease.
    RenewalRevives,
    /// A release names the number of a slot and not the id of a lease.
    ReleaseBySlot,
    /// A release forgets the id, so that a late acquire of the same id takes a slot.
    ReleaseWithoutTombstone,
    /// A repeated acquire receives a whole lease as remaining time.
    ReplayOfExpired,
    /// A holder counts the remaining time from the arrival of the reply.
    CountsFromAnswer,
    /// A holder counts a whole lease from its request, whatever the remaining time.
    CountsWholeLease,
    /// A replacement uses the id of the holder that it replaces.
    ReplacementSharesId,
}

/// Runs the simulation of a seed.
pub fn run(seed: u64, mistake: Option<LeaseMistake>, tracing: Tracing) -> Run {
    let mut simulation = Simulation::random(seed, mistake, tracing);
    simulation.play();
    simulation.rest();
    simulation.sim.finish()
}

type Sim = Scheduler<Event>;

#[derive(Clone, Debug)]
enum Event {
    /// A new holder starts.
    Begin { id: u64 },
    /// A request reaches the store.
    Request(Request),
    /// A reply reaches a holder.
    Reply { ask: Request, answer: Reply },
    /// A timer of a holder is due.
    Due { holder: usize, timer: Timer },
}

#[derive(Clone, Copy, Debug)]
struct Request {
    holder: usize,
    sent_us: u64,
    id: u64,
    /// Number of its slot. Only `ReleaseBySlot` uses it.
    slot: usize,
    operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Acquire,
    Renew,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Held { left: Span, slot: usize },
    Deny,
    Lost,
    Released,
}

/// The reason why a holder wakes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Its request timed out, or the wait after a denial is over.
    Again,
    /// A third of the lease is over.
    Renew,
    /// Its working time is over.
    Stop,
    /// The work is done.
    Done,
}

struct Simulation {
    sim: Sim,
    faults: FaultRates,
    store: Store,
    holders: Vec<Holder>,
    check: Check,
    mistake: Option<LeaseMistake>,
}

impl Simulation {
    fn random(seed: u64, mistake: Option<LeaseMistake>, tracing: Tracing) -> Self {
        let mut sim = Sim::new(seed, tracing, DELAY_MAX, STORMY);
        let rng = &mut sim.rng;
        let faults = FaultRates::random(rng, STALL_MAX);
        let lease = Span::from_millis(rng.between(30, 200));
        let quota = SlotQuota { limit: rng.between(1, 3), lease };
        let store = Store::new(quota, rng.between(0, 8_000), mistake);
        for _ in 0..sim.rng.between(4, 12) {
            let delay_us = sim.rng.between(0, 600_000);
            let id = sim.fresh();
            sim.after(delay_us, Event::Begin { id });
        }
        sim.note(|| format!("{} slots, a lease lasts {lease}", quota.limit));
        let (holders, check) = (Vec::new(), Check::new(quota));
        Self { sim, faults, store, holders, check, mistake }
    }

    fn play(&mut self) {
        while let Some(event) = self.sim.next() {
            match event {
                Event::Begin { id } => {
                    let lease = self.check.quota.lease;
                    let mut holder = Holder::new(self.holders.len(), id, lease, self.mistake);
                    holder.begin(&mut self.sim);
                    self.holders.push(holder);
                }
                Event::Request(ask) => self.store(ask),
                Event::Reply { ask: Request { holder, .. }, .. } | Event::Due { holder, .. } => {
                    self.holder(holder, event);
                }
            }
        }
    }

    fn store(&mut self, ask: Request) {
        let now = self.sim.clock(self.store.ahead_us);
        let answer = match ask.operation {
            Operation::Acquire => self.store.acquire(now, ask.id),
            Operation::Renew => self.store.renew(now, ask.id),
            Operation::Release => self.store.release(now, ask.id, ask.slot),
        };
        let Request { holder, id, operation, .. } = ask;
        self.sim.note(|| format!("store: {operation:?} {id} → {answer:?} for holder {holder}"));
        self.sim.count(match answer {
            Reply::Held { .. } if operation == Operation::Renew => "renewed",
            Reply::Held { .. } => "held",
            Reply::Deny => "denied",
            Reply::Lost => "lost",
            Reply::Released => "released",
        });
        let finding = self.check.answered(now, id, operation, answer);
        self.sim.report(finding);
        self.sim.send(Event::Reply { ask, answer });
    }

    fn holder(&mut self, number: usize, event: Event) {
        let (sim, holder) = (&mut self.sim, &mut self.holders[number]);
        if holder.ended() {
            return;
        }
        match holder.process.draw_state(sim, self.faults, || format!("holder {number}"), &event) {
            ProcessState::Runs => {}
            ProcessState::Stalls => {
                // No observer can tell a slow holder from a dead one.
                if sim.rng.chance(100) {
                    self.replace(number);
                }
                return;
            }
            ProcessState::Dead => return,
            ProcessState::Crashes => {
                holder.process.down_until(u64::MAX);
                self.check.worked(holder.crash(sim.now_us()));
                return self.replace(number);
            }
        }
        match event {
            Event::Reply { ask, answer } => holder.answer(sim, ask, answer),
            Event::Due { timer, .. } => holder.due(sim, timer),
            _ => {}
        }
        if let Some(worked) = holder.take_worked() {
            sim.note(|| format!("holder {number} stops"));
            self.check.worked(Some(worked));
        }
    }

    /// Starts another holder for the work of one that died, or seems to have.
    fn replace(&mut self, number: usize) {
        let id = match self.mistake {
            Some(LeaseMistake::ReplacementSharesId) => self.holders[number].id,
            _ => self.sim.fresh(),
        };
        let delay_us = self.sim.rng.between(1_000, 100_000);
        self.sim.after(delay_us, Event::Begin { id });
    }

    /// Checks L1 and L4 after every message has arrived.
    fn rest(&mut self) {
        let waiting =
            self.holders.iter().find(|holder| !holder.ended() && !holder.process.is_dead());
        let waiting = waiting.map(|holder| format!("liveness: {} never ends", holder.id));
        self.sim.report(waiting);
        let finding = self.check.too_many_at_work();
        self.sim.report(finding);
        self.sim.pass(self.check.quota.lease);
        let used = self.store.used(self.sim.clock(self.store.ahead_us));
        self.sim.report((used > 0).then(|| format!("L4: {used} slots are held without a holder")));
    }
}
