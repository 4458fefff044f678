//! A start that is booked, and claimed immediately before the work goes.
//!
//! One store keeps a counter, a log or a bucket. Jobs come from a queue that delivers at least
//! once: a **holder** is one delivery of a job to one worker. It books, waits until the start,
//! claims, and goes. It may be stopped or killed at any point, and the queue may deliver the job
//! to another holder while the first still runs. Other work acquires from the same counter
//! without booking.
//!
//! # Messages
//!
//! | message | carries | means |
//! |---|---|---|
//! | `Acquire` | id | may this go now? |
//! | `Book` | id | reserve the first instant that fits |
//! | `Claim` | id, claimant | I am about to go |
//! | `Cancel` | id, claimant | this work does not go; what I claimed has not left |
//! | `Allow` | at | charged at that instant |
//! | `Booked`, `Early`, `Rebooked` | wait | claim so much later than this answer was given |
//! | `Go` | good for | go, if no more than this has passed since the claim was *sent* |
//! | `Spent` | | this claimant had its go, and it is over: if you did not go, claim as another |
//! | `Deny` | | it does not fit now, or no start is inside the horizon: nothing is written |
//! | `Claimed` | | the id was claimed before, so it can't be booked: claim it |
//! | `Unknown` | | nothing is booked: book it |
//! | `Gone` | | it was cancelled |
//!
//! Answers give a *wait*, not an instant: a worker whose clock is behind by more than the slack
//! would otherwise come late for ever.
//!
//! # What the store remembers of an id
//!
//! | | none | unbooked | booked | open | cancelled |
//! |---|---|---|---|---|---|
//! | `Book` | book → booked, or `Deny` | as none | replay | `Claimed` | `Gone` |
//! | `Claim`, before the start | `Unknown` | `Unknown` | `Early` | | `Gone` |
//! | `Claim`, in [start, start + slack] | `Unknown` | `Unknown` | → open, `Go` | by its claimant: `Go` again | `Gone` |
//! | `Claim`, later | `Unknown` | `Unknown` | give back, book anew | by its claimant: `Spent` | `Gone` |
//! | `Claim`, by one that had its go before | `Unknown` | `Spent` | `Spent` | `Spent` | `Gone` |
//! | `Claim`, open for another | | | | leave it charged, book anew | |
//! | `Cancel` | → cancelled | → cancelled | give back → cancelled | by its claimant: give back; → cancelled | replay |
//!
//! Booking anew leads to booked, or to unbooked and `Deny` if the start is past the horizon. Who
//! had a go is remembered in every state, because a repeated claim of the first must neither
//! take the booking of the second nor book anything for itself.
//!
//! # What a holder does
//!
//! | state | on | then |
//! |---|---|---|
//! | asking | no answer for a while | the same question again |
//! | waiting | the wait is over | `Claim`, or `Cancel` if the work is no longer wanted |
//! | claiming | `Go`, still good | the work goes |
//! | claiming | `Go` that took too long, or `Spent` | `Claim` under a new claimant |
//! | any | `Gone` | end |
//!
//! The work goes in [start, start + slack] by the clock of the store, although the holder does
//! not know that clock: the claim was sent before it was decided, so "good for, from when it was
//! sent" ends no later than the booking.
//!
//! # Invariants
//!
//! | | |
//! |---|---|
//! | B1 | what goes never exceeds the limit, booked or not, by the clock of the store |
//! | B2 | every holder that lives comes to its end, and so does the run (`liveness`) |
//! | B3 | what is charged has gone, or may have, or will: nothing is charged for nobody |
//! | B4 | a window and the slack after the last booked start everything is free |

mod check;
mod holder;
mod store;

use sluicegate_core::algorithm::log::Quota;
use sluicegate_core::{Span, Timestamp};

use super::counter::Counter;
use super::explore::{Run, Tracing};
use super::process::{Fate, Misfortune};
use super::scheduler::Scheduler;
use check::Check;
use holder::{Aim, Holder};
use store::Store;

const DELAY_MAX: Span = Span::from_millis(120);
const STALL_MAX: Span = Span::from_millis(400);
const STORMY: Span = Span::from_millis(900);
/// How late a booking may be used. Longer than a claim takes on a good day.
const SLACK: Span = Span::from_millis(10);

/// Something that an implementation could get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A plain acquire looks only at what has happened.
    AcquireIgnoresBookings,
    /// A booking is written at its start, and used until its slack is over.
    WrittenAtStart,
    /// A booking goes for every claimant.
    SecondClaimantGoes,
    /// A claim that comes late goes.
    LateClaimGoes,
    /// Booking anew removes what an earlier claimant may have used.
    RebookingRemovesUsed,
    /// A late repetition of a claim books anew for work that has gone.
    LateRepetitionRebooks,
    /// One that had its go gets another, out of the booking of somebody else.
    SpentClaimantGoes,
    /// A cancel gives back what another claimant may have used.
    CancelGivesBackUsed,
    /// A cancel forgets the id, so that its late booking is written.
    CancelWithoutTombstone,
    /// A holder goes however long ago it was told to.
    StaleGo,
    /// A holder waits for the start by its own clock.
    OwnClock,
    /// A booking that comes again is written again.
    BookedAgain,
    /// A bucket gives back without a look at the bookings behind.
    BucketForgetsLater,
    /// A bucket gives back without a look at what was given back before.
    BucketForgetsGivenBack,
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
    /// The queue delivers a job, or a caller comes that does not book.
    Deliver { job: u64, aim: Aim },
    /// A question reaches the store.
    Ask(Ask),
    /// An answer reaches a holder.
    Answer { ask: Ask, answer: Answer },
    /// The timer of a holder.
    Due { holder: usize, exchange: u64 },
}

/// A question, with what its answer has to be matched with.
#[derive(Clone, Copy, Debug)]
struct Ask {
    holder: usize,
    exchange: u64,
    sent_us: u64,
    id: u64,
    claimant: u64,
    question: Question,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Acquire,
    Book,
    Claim,
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Allow { at: Timestamp },
    Booked { wait: Span },
    Early { wait: Span },
    Rebooked { wait: Span },
    Go { good_for: Span },
    Spent,
    Deny,
    Claimed,
    Unknown,
    Gone,
    Cancelled,
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
        let limit = rng.between(1, 3);
        let window = Span::from_millis(rng.between(40, 200));
        let counter = match rng.between(0, 2) {
            0 => Counter::bucket(limit, Span::from_millis(rng.between(20, 100))),
            1 => Counter::log(vec![Quota { limit, window }]),
            _ => {
                let longer = Quota { limit: limit * 2, window: window + window + window };
                Counter::log(vec![Quota { limit, window }, longer])
            }
        };
        let horizon = Span::from_millis(rng.between(300, 2_000));
        let store = Store::new(counter, rng.between(0, 8_000), horizon, mistake);
        for _ in 0..sim.rng.between(3, 8) {
            let job = sim.fresh();
            let delay_us = sim.rng.between(0, 300_000);
            sim.after(delay_us, Event::Deliver { job, aim: Aim::Booked });
            if sim.rng.chance(300) {
                // Delivered again while the first may still run, or after it has ended.
                let delay_us = delay_us + sim.rng.between(1_000, 500_000);
                sim.after(delay_us, Event::Deliver { job, aim: Aim::Booked });
            }
        }
        for _ in 0..sim.rng.between(3, 12) {
            let job = sim.fresh();
            let delay_us = sim.rng.between(0, 800_000);
            sim.after(delay_us, Event::Deliver { job, aim: Aim::Plain });
        }
        sim.note(|| format!("{}, horizon {horizon}", store.counter));
        let (holders, check) = (Vec::new(), Check::default());
        Self { sim, misfortune, store, holders, check, mistake }
    }

    fn play(&mut self) {
        while let Some(event) = self.sim.next() {
            match event {
                Event::Deliver { job, aim } => {
                    let mut holder = Holder::new(self.holders.len(), job, aim, self.mistake);
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
            Question::Book => self.store.book(now, ask.id),
            Question::Claim => self.store.claim(now, ask.id, ask.claimant),
            Question::Cancel => self.store.cancel(now, ask.id, ask.claimant),
        };
        let Ask { holder, id, claimant, question, .. } = ask;
        self.sim.note(|| {
            format!("store: {question:?} {id} by {claimant} → {answer:?} for holder {holder}")
        });
        self.sim.saw(match answer {
            Answer::Allow { .. } => "allowed",
            Answer::Booked { .. } => "booked",
            Answer::Early { .. } => "early",
            Answer::Rebooked { .. } => "rebooked",
            Answer::Go { .. } => "go",
            Answer::Spent => "spent",
            Answer::Deny => "denied",
            Answer::Claimed => "claimed before",
            Answer::Unknown => "unknown",
            Answer::Gone => "gone",
            Answer::Cancelled => "cancelled",
        });
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
                return sim.after(for_us, event);
            }
            Fate::Dead => return,
            Fate::Crashes => {
                sim.saw("crashed");
                sim.note(|| format!("holder {number} crashes"));
                holder.process.down_until(u64::MAX);
                if holder.aim == Aim::Booked {
                    let delay_us = sim.rng.between(1_000, 300_000);
                    sim.after(delay_us, Event::Deliver { job: holder.job, aim: Aim::Booked });
                }
                return;
            }
        }
        let went = match event {
            Event::Answer { ask, answer } => holder.answer(sim, ask, answer),
            Event::Due { exchange, .. } => holder.due(sim, exchange),
            _ => None,
        };
        let Some(went) = went else { return };
        let at = went.unwrap_or_else(|| sim.clock(self.store.ahead_us));
        let job = holder.job;
        sim.note(|| format!("holder {number} goes with {job}"));
        let finding = self.check.goes(at, &self.store.counter);
        sim.broke(finding);
    }

    /// B2, B3 and B4, when every message has arrived.
    fn rest(&mut self) {
        let waiting =
            self.holders.iter().find(|holder| !holder.ended() && !holder.process.is_dead());
        let waiting = waiting.map(|holder| format!("B2: job {} never goes", holder.job));
        self.sim.broke(waiting);
        // What a dead holder has sent may still book for it: that is lost until it ages out.
        let finding = self.store.charged_for_nobody(|job| {
            let mut holders = self.holders.iter().filter(|holder| holder.job == job);
            holders.all(Holder::ended)
        });
        self.sim.broke(finding);
        let now = self.sim.clock(self.store.ahead_us);
        let last = self.store.last_start().map_or(Span::ZERO, |start| start.since(now));
        self.sim.pass(last + SLACK + self.store.counter.window());
        let used = self.store.counter.used(self.sim.clock(self.store.ahead_us));
        self.sim.broke((used > 0).then(|| format!("B4: {used} in use after a window")));
    }
}
