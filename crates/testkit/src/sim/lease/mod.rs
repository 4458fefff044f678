//! Slots that are leased: taken with a time to live, renewed while the work runs, released after.
//!
//! One store keeps the leases. A holder works only while it holds one. It may be stopped or
//! killed at any point, and nobody tells the store: the slot comes back when the lease is over.
//!
//! # Messages
//!
//! | message | carries | means |
//! |---|---|---|
//! | `Acquire` | id | give me a slot |
//! | `Renew` | id | I still work: as long again, from now |
//! | `Release` | id | I am done, or have given up; this id never comes again |
//! | `Held` | left | the lease is held, and lasts so much longer than this answer |
//! | `Deny` | | all slots are held |
//! | `Lost` | | the lease is over; somebody else may have the slot |
//! | `Released` | | so noted |
//!
//! # What the store remembers of an id
//!
//! | | none | held | expired | released |
//! |---|---|---|---|---|
//! | `Acquire` | → held, `Held`; or `Deny` | `Held` with what is left; nothing is extended | `Lost` | `Lost` |
//! | `Renew` | `Lost` | extend, `Held` | `Lost`, also if a slot is free | `Lost` |
//! | `Release` | → released | end → released | → released | replay |
//!
//! A record outlives its lease by the longest delay of a message: otherwise a late `Acquire`
//! takes a slot for a holder that is gone. An id is for *one holder*: a replacement that comes
//! under the id of the one it replaces is told `Held` while the first still works.
//!
//! A holder repeats `Acquire` a bounded number of times, and `Release` until it is answered or
//! nothing can be left of its lease: a time to live and the longest delay after it stopped.
//!
//! # Until when a holder may work
//!
//! Until what was *left*, counted from the moment it *sent* the question. The store decided
//! after that, so the holder stops before the store gives the slot away, and no clock is
//! compared with another; they only have to run equally fast. An answer to a repeated `Acquire`
//! has less left than a whole lease, so "a lease from when I asked" would be too long.
//!
//! # Invariants
//!
//! | | |
//! |---|---|
//! | L1 | at no instant do more work than there are slots |
//! | L2 | a slot is denied only while all are rightly held: by a lease that was renewed or taken less than its time to live ago, and not released |
//! | L3 | what has expired or was released is not renewed |
//! | L4 | when all has ended, everything is free one lease later |
//!
//! A holder that dies is rightly counted for at most one lease after the last message that it
//! sent has arrived.

mod check;
mod holder;
mod store;

use sluicegate_core::Span;
use sluicegate_core::algorithm::concurrency::Quota;

use super::explore::{Run, Tracing};
use super::process::{Fate, Misfortune};
use super::scheduler::Scheduler;
use check::Check;
use holder::Holder;
use store::Store;

const DELAY_MAX: Span = Span::from_millis(120);
const STALL_MAX: Span = Span::from_millis(300);
const STORMY: Span = Span::from_millis(900);

/// Something that an implementation could get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A lease is counted until it is released.
    NeverExpires,
    /// A renewal is answered and changes nothing.
    RenewalIgnored,
    /// A lease lasts half as long as its holder is told.
    ShortLease,
    /// A renewal brings back a lease that is over.
    RenewalRevives,
    /// A release names the number of a slot, not the id of a lease.
    ReleaseBySlot,
    /// A release forgets the id, so that its late acquire takes a slot.
    ReleaseWithoutTombstone,
    /// An acquire that comes again is told that it holds a whole lease.
    ReplayOfExpired,
    /// A holder counts from when the answer came.
    CountsFromAnswer,
    /// A holder counts a whole lease from its question, whatever is left.
    CountsWholeLease,
    /// A replacement comes under the id of the holder that it replaces.
    ReplacementSharesId,
}

/// Plays the run of a seed.
pub fn run(seed: u64, mistake: Option<Mistake>, tracing: Tracing) -> Run {
    let mut world = World::drawn(seed, mistake, tracing);
    world.play();
    world.rest();
    world.sim.finish()
}

type Sim = Scheduler<Event>;

#[derive(Clone, Debug)]
enum Event {
    /// Somebody needs a slot.
    Begin { id: u64 },
    /// A question reaches the store.
    Ask(Ask),
    /// An answer reaches a holder.
    Answer { ask: Ask, answer: Answer },
    /// A timer of a holder.
    Due { holder: usize, timer: Timer },
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    holder: usize,
    sent_us: u64,
    id: u64,
    /// The number of its slot. Nothing depends on it.
    slot: usize,
    question: Question,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Acquire,
    Renew,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Held { left: Span, slot: usize },
    Deny,
    Lost,
    Released,
}

/// Why a holder wakes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Its question has no answer, or a denial is some time ago.
    Again,
    /// A third of the lease is over.
    Renew,
    /// What it may work is over.
    Stop,
    /// The work is done.
    Done,
}

struct World {
    sim: Sim,
    misfortune: Misfortune,
    store: Store,
    holders: Vec<Holder>,
    check: Check,
    mistake: Option<Mistake>,
}

impl World {
    fn drawn(seed: u64, mistake: Option<Mistake>, tracing: Tracing) -> Self {
        let mut sim = Sim::new(seed, tracing, DELAY_MAX, STORMY);
        let rng = &mut sim.rng;
        let misfortune = Misfortune::drawn(rng, STALL_MAX);
        let lease = Span::from_millis(rng.between(30, 200));
        let quota = Quota { limit: rng.between(1, 3), lease };
        let store = Store::new(quota, rng.between(0, 8_000), mistake);
        for _ in 0..sim.rng.between(4, 12) {
            let delay_us = sim.rng.between(0, 600_000);
            let id = sim.fresh();
            sim.after(delay_us, Event::Begin { id });
        }
        sim.note(|| format!("{} slots, a lease lasts {lease}", quota.limit));
        let (holders, check) = (Vec::new(), Check::new(quota));
        Self { sim, misfortune, store, holders, check, mistake }
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
                Event::Ask(ask) => self.store(ask),
                Event::Answer { ask: Ask { holder, .. }, .. } | Event::Due { holder, .. } => {
                    self.holder(holder, event);
                }
            }
        }
    }

    fn store(&mut self, ask: Ask) {
        let now = self.sim.clock(self.store.ahead_us);
        let answer = match ask.question {
            Question::Acquire => self.store.acquire(now, ask.id),
            Question::Renew => self.store.renew(now, ask.id),
            Question::Release => self.store.release(now, ask.id, ask.slot),
        };
        let Ask { holder, id, question, .. } = ask;
        self.sim.note(|| format!("store: {question:?} {id} → {answer:?} for holder {holder}"));
        self.sim.saw(match answer {
            Answer::Held { .. } if question == Question::Renew => "renewed",
            Answer::Held { .. } => "held",
            Answer::Deny => "denied",
            Answer::Lost => "lost",
            Answer::Released => "released",
        });
        let finding = self.check.answered(now, id, question, answer);
        self.sim.broke(finding);
        self.sim.send(Event::Answer { ask, answer });
    }

    fn holder(&mut self, number: usize, event: Event) {
        let (sim, holder) = (&mut self.sim, &mut self.holders[number]);
        if holder.ended() {
            return;
        }
        match holder.process.fate(sim, self.misfortune) {
            Fate::Runs => {}
            Fate::Stalls { for_us } => {
                sim.saw("stalled");
                sim.note(|| format!("holder {number} is stopped for {for_us} us more"));
                sim.after(for_us, event);
                // Who waits for it can't tell a slow holder from a dead one.
                if sim.rng.chance(100) {
                    self.replace(number);
                }
                return;
            }
            Fate::Dead => return,
            Fate::Crashes => {
                sim.saw("crashed");
                sim.note(|| format!("holder {number} crashes"));
                holder.process.down_until(u64::MAX);
                self.check.worked(holder.crash(sim.now_us()));
                return self.replace(number);
            }
        }
        match event {
            Event::Answer { ask, answer } => holder.answer(sim, ask, answer),
            Event::Due { timer, .. } => holder.due(sim, timer),
            _ => {}
        }
        if let Some(worked) = holder.take_worked() {
            sim.note(|| format!("holder {number} stops"));
            self.check.worked(Some(worked));
        }
    }

    /// Somebody else does the work of a holder that died, or seems to have.
    fn replace(&mut self, number: usize) {
        let id = match self.mistake {
            Some(Mistake::ReplacementSharesId) => self.holders[number].id,
            _ => self.sim.fresh(),
        };
        let delay_us = self.sim.rng.between(1_000, 100_000);
        self.sim.after(delay_us, Event::Begin { id });
    }

    /// L1 and L4, when every message has arrived.
    fn rest(&mut self) {
        let waiting =
            self.holders.iter().find(|holder| !holder.ended() && !holder.process.is_dead());
        let waiting = waiting.map(|holder| format!("liveness: {} never ends", holder.id));
        self.sim.broke(waiting);
        let finding = self.check.too_many_at_work();
        self.sim.broke(finding);
        self.sim.pass(self.check.quota.lease);
        let used = self.store.used(self.sim.clock(self.store.ahead_us));
        self.sim.broke((used > 0).then(|| format!("L4: {used} slots are held by nobody")));
    }
}
