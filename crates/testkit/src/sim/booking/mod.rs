//! Simulation of bookings: a start time is booked, and claimed immediately before the work starts.
//!
//! One store keeps a counter, a log or a bucket. Jobs come from a queue that delivers at least
//! once: a **holder** is one delivery of a job to one worker. It books, waits until the start,
//! claims a little ahead of it, and starts the work in the interval that the answer leaves. It may
//! be suspended or killed at any point, and the queue may deliver the job to another holder while
//! the first still runs. Other work acquires from the same counter without booking, now or a little
//! ahead. A gate may close at any time.
//!
//! Some jobs belong to an **owner**: a process that books them for itself and spaces the real starts
//! of all of them. Nobody else can claim these. Under a bucket, the bookings of one owner in a row
//! have no slack between them.
//!
//! # Messages
//!
//! | message | carries | means |
//! |---|---|---|
//! | `Acquire` | id | asks to start now |
//! | `AcquireAhead` | id, claimant, owner | asks to start within the lead |
//! | `Close` | until | nothing may start before that time |
//! | `Book` | id, owner | reserves the first time that fits |
//! | `Claim` | id, claimant, owner | asks to start booked work |
//! | `Cancel` | id, claimant | the work is not wanted any more; this claimant has not started it |
//! | `Allow` | at | charged at that time |
//! | `Booked`, `Early`, `Rebooked` | wait | claim this long after the reply was made |
//! | `Go` | start, good until | start in this interval by the clock of the store |
//! | `Spent` | | this claimant received `Go` before: if it did not start, it has to claim under a new claimant id |
//! | `Deny` | | no start fits now, or inside the horizon: nothing is written |
//! | `Claimed` | | the id was claimed before and can't be booked: claim it |
//! | `Unknown` | | nothing is booked: book it |
//! | `Gone` | | the booking was cancelled |
//!
//! A reply says how long to *wait*, and not until when: a worker whose clock is behind by more than
//! the slack would otherwise always claim too late. Every reply also contains the time of the store
//! at which it was made. From these times a node learns the bounds of the store's clock
//! ([`StoreClock`]). The clocks of the store and of the nodes differ, and run at speeds that differ a
//! little.
//!
//! # Records of the store, one per id
//!
//! | | none | unbooked | booked | open | cancelled |
//! |---|---|---|---|---|---|
//! | `Book` | book → booked, or `Deny` | same as none | replay | `Claimed` | `Gone` |
//! | `Claim`, more than the lead before the start | `Unknown` | `Unknown` | `Early` | | `Gone` |
//! | `Claim`, in [start − lead, start + slack], and the gate is open at the start | `Unknown` | `Unknown` | → open, `Go` | by its claimant: `Go` again | `Gone` |
//! | `Claim`, later, or the gate is closed | `Unknown` | `Unknown` | refund, rebook | by its claimant: `Spent` | `Gone` |
//! | `Claim`, by a claimant that received `Go` before | `Unknown` | `Spent` | `Spent` | `Spent` | `Gone` |
//! | `Claim`, open for another | | | | leave it charged, rebook | |
//! | `Cancel` | → cancelled | → cancelled | refund → cancelled | by its claimant: refund; → cancelled | replay |
//!
//! Rebooking leads to booked, or to unbooked and `Deny` if the start is past the horizon. The
//! claimants that received `Go` are remembered in every state, because a repeated claim of the
//! first must neither use the booking of the second nor book anything for itself.
//!
//! # States of a holder
//!
//! | state | on | then |
//! |---|---|---|
//! | requesting | timeout | send the same request again |
//! | waiting | the wait is over | `Claim`, or `Cancel` if the work is no longer wanted |
//! | claiming | `Go` | wait until it opens, and start the work if it is still valid |
//! | claiming | `Go`, but the owner's last start is too near | wait for the owner's bucket of real starts, and start if it is still valid |
//! | claiming | `Go` that came too late, or `Spent` | `Claim` under a new claimant id |
//! | any | `Gone` | end |
//!
//! The work starts in [start, start + slack] by the clock of the store, although the holder does
//! not know that clock, only its bounds: a start by the lower bound is not too early, and one by the
//! upper bound is not too late. All holders of a node share the bounds, and each reply narrows
//! them, whatever the question was.
//!
//! # Invariants
//!
//! | | |
//! |---|---|
//! | B1 | started work, booked or not, never exceeds the limit by the clock of the store |
//! | B2 | every holder that does not die comes to its end, and so does the run (`liveness`) |
//! | B3 | every charge belongs to work that has started, may have started or will start |
//! | B4 | one window plus the slack after the last booked start, the counter is free |
//! | B5 | no work that is decided after a gate has closed starts before it opens, and any other starts at most lead + slack after the gate has closed |

mod check;
mod holder;
mod store;

use sluicegate_core::algorithm::log::LogQuota;
use sluicegate_core::store_clock::StoreClock;
use sluicegate_core::{Id, Span, Timestamp};

use super::counter::Counter;
use super::explore::{Run, Tracing};
use super::process::{FaultRates, ProcessState};
use super::scheduler::Scheduler;
use check::Check;
use holder::{Aim, Holder, StartTime};
use store::Store;

const DELAY_MAX: Span = Span::from_millis(120);
const STALL_MAX: Span = Span::from_millis(400);
const STORMY: Span = Span::from_millis(900);
/// Time after its start during which a booking may be used. Longer than a claim usually takes.
const SLACK: Span = Span::from_millis(10);

/// A bug that an implementation could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookingMistake {
    /// A plain acquire ignores bookings.
    AcquireIgnoresBookings,
    /// A booking is charged at its start, but used until its slack is over.
    WrittenAtStart,
    /// Every claimant of a booking receives `Go`.
    SecondClaimantGoes,
    /// A late claim receives `Go`.
    LateClaimGoes,
    /// Rebooking refunds a charge that an earlier claimant may have used.
    RebookingRemovesUsed,
    /// A late repetition of a claim rebooks work that has already started.
    LateRepetitionRebooks,
    /// A claimant that received `Go` receives it again from another claimant's booking.
    SpentClaimantGoes,
    /// A cancel refunds a charge that another claimant may have used.
    CancelGivesBackUsed,
    /// A cancel forgets the id, so that a late booking of the same id is written.
    CancelWithoutTombstone,
    /// A holder starts its work however old its `Go` is.
    StaleGo,
    /// A holder starts its work at once, although its booking starts later.
    GoesBeforeStart,
    /// A holder counts the time until the start from the moment it sent the claim.
    StartCountedFromSent,
    /// A holder assumes that the store decided in the middle of the round trip.
    DecidedInTheMiddle,
    /// The clock of the store drifts ten times as fast as a node assumes.
    FastDrift,
    /// An early claim receives `Go` although the gate is closed at its start.
    EarlyClaimIgnoresGate,
    /// A holder waits for the start by its own clock.
    OwnClock,
    /// A repeated booking is written again.
    BookedAgain,
    /// A bucket refunds without regard to later bookings.
    BucketForgetsLater,
    /// A bucket refunds without regard to earlier refunds.
    BucketForgetsGivenBack,
    /// An owner does not space its real starts.
    OwnerIgnoresRealStarts,
    /// A change of the owner costs no slack.
    OwnersShareRun,
}

/// Runs the simulation of a seed.
pub fn run(seed: u64, mistake: Option<BookingMistake>, tracing: Tracing) -> Run {
    let mut simulation = Simulation::random(seed, mistake, tracing);
    simulation.play();
    simulation.rest();
    simulation.sim.finish()
}

type Sim = Scheduler<Event>;

#[derive(Clone, Debug)]
enum Event {
    /// The queue delivers a job, or a caller without a booking arrives.
    Deliver { job: u64, aim: Aim, owner: Option<usize> },
    /// A request reaches the store.
    Request(Request),
    /// A reply that the store made at this time of its clock reaches a holder.
    Reply { ask: Request, at: Timestamp, answer: Reply },
    /// The timer of a holder is due.
    Due { holder: usize, exchange: u64 },
    /// The upstream asks for a pause of this length.
    Close { wait_us: u64 },
}

/// A request, with the fields to match its reply.
#[derive(Clone, Copy, Debug)]
struct Request {
    holder: usize,
    exchange: u64,
    sent_us: u64,
    id: u64,
    claimant: u64,
    owner: Option<Id>,
    operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Acquire,
    AcquireAhead,
    Book,
    Claim,
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Allow { at: Timestamp },
    Booked { wait: Span },
    Early { wait: Span },
    Rebooked { wait: Span },
    Go { decided: Timestamp, start: Timestamp, good_until: Timestamp },
    Spent,
    Deny,
    Claimed,
    Unknown,
    Gone,
    Cancelled,
}

/// The clock of the store: it is ahead of the true time, and runs a little faster or slower.
struct DriftingClock {
    ahead_us: u64,
    /// Speed above that of a clock that is `slower_ppm` slower than the true time.
    drift_ppm: u64,
    slower_ppm: u64,
}

impl DriftingClock {
    fn now(&self, sim: &Sim) -> Timestamp {
        let passed_us = sim.now_us();
        let gained_us = passed_us * self.drift_ppm / 1_000_000;
        let lost_us = passed_us * self.slower_ppm / 1_000_000;
        Timestamp::from_micros(passed_us + self.ahead_us + gained_us - lost_us)
    }
}

struct Simulation {
    sim: Sim,
    faults: FaultRates,
    store: Store,
    holders: Vec<Holder>,
    /// The store's clock, as each node knows it. Holder n is on node n modulo their number.
    clocks: Vec<StoreClock>,
    /// The real starts of each owner under a bucket.
    owners: Vec<Counter>,
    check: Check,
    lead: Span,
    mistake: Option<BookingMistake>,
}

impl Simulation {
    fn random(seed: u64, mistake: Option<BookingMistake>, tracing: Tracing) -> Self {
        let mut sim = Sim::new(seed, tracing, DELAY_MAX, STORMY);
        let rng = &mut sim.rng;
        let faults = FaultRates::random(rng, STALL_MAX);
        let limit = rng.between(1, 3);
        let window = Span::from_millis(rng.between(40, 200));
        let counter = match rng.between(0, 2) {
            0 => Counter::bucket(limit, Span::from_millis(rng.between(20, 100))),
            1 => Counter::log(vec![LogQuota { limit, window }]),
            _ => {
                let longer = LogQuota { limit: limit * 2, window: window + window + window };
                Counter::log(vec![LogQuota { limit, window }, longer])
            }
        };
        let horizon = Span::from_millis(rng.between(300, 2_000));
        let lead = Span::from_millis(rng.between(0, 30));
        // The owner of a bucket spaces its starts by its own clock, so there the drift of the clocks
        // is not exact (decision 022).
        let drift_ppm = match counter {
            Counter::Bucket { .. } => 0,
            _ if mistake == Some(BookingMistake::FastDrift) => 10_000,
            _ => 1_000,
        };
        let clock = DriftingClock {
            ahead_us: rng.between(0, 8_000),
            drift_ppm: rng.between(0, 2 * drift_ppm),
            slower_ppm: drift_ppm,
        };
        let clocks = vec![StoreClock::default(); index(rng.between(1, 3))];
        let store = Store::new(counter, clock, (horizon, lead), mistake);
        for _ in 0..sim.rng.between(3, 8) {
            let job = sim.fresh();
            let delay_us = sim.rng.between(0, 300_000);
            sim.after(delay_us, Event::Deliver { job, aim: Aim::Booked, owner: None });
            if sim.rng.chance(300) {
                // Redelivered while the first holder may still run, or after it has ended.
                let delay_us = delay_us + sim.rng.between(1_000, 500_000);
                sim.after(delay_us, Event::Deliver { job, aim: Aim::Booked, owner: None });
            }
        }
        for _ in 0..sim.rng.between(3, 12) {
            let job = sim.fresh();
            let delay_us = sim.rng.between(0, 800_000);
            let aim = if sim.rng.chance(500) { Aim::Plain } else { Aim::Ahead };
            sim.after(delay_us, Event::Deliver { job, aim, owner: None });
        }
        // Owners book several starts at once.
        let owners = sim.rng.between(0, 2);
        for _ in 0..if owners == 0 { 0 } else { sim.rng.between(1, 5) } {
            let owner = Some(index(sim.rng.between(1, owners)));
            let delay_us = sim.rng.between(0, 600_000);
            for _ in 0..sim.rng.between(1, 4) {
                let job = sim.fresh();
                let aim = if sim.rng.chance(800) { Aim::Booked } else { Aim::Ahead };
                let delay_us = delay_us + sim.rng.between(0, 2_000);
                sim.after(delay_us, Event::Deliver { job, aim, owner });
            }
        }
        let is_bucket = matches!(store.counter, Counter::Bucket { .. });
        let owners = (0..=owners).filter(|_| is_bucket).map(|_| store.counter.unused()).collect();
        for _ in 0..sim.rng.between(0, 2) {
            let delay_us = sim.rng.between(0, 800_000);
            let wait_us = sim.rng.between(1_000, 200_000);
            sim.after(delay_us, Event::Close { wait_us });
        }
        sim.note(|| format!("{}, horizon {horizon}, lead {lead}", store.counter));
        let (holders, check) = (Vec::new(), Check::default());
        Self { sim, faults, store, holders, clocks, owners, check, lead, mistake }
    }

    fn play(&mut self) {
        while let Some(event) = self.sim.next() {
            match event {
                Event::Deliver { job, aim, owner } => {
                    let number = self.holders.len();
                    let mut holder = Holder::new(number, job, (aim, owner), self.mistake);
                    holder.begin(&mut self.sim);
                    self.holders.push(holder);
                }
                Event::Request(ask) => self.store(ask),
                Event::Close { wait_us } => {
                    let now = self.store.clock.now(&self.sim);
                    let until = now + Span::from_micros(wait_us);
                    self.sim.count("closed");
                    self.sim.note(|| format!("store: closed until {until}"));
                    self.store.close(until);
                    self.check.closes(now, until);
                }
                Event::Reply { ask: Request { holder, .. }, .. } | Event::Due { holder, .. } => {
                    self.holder(holder, event);
                }
            }
        }
    }

    fn store(&mut self, ask: Request) {
        let now = self.store.clock.now(&self.sim);
        let answer = match ask.operation {
            Operation::Acquire => self.store.acquire(now, ask.id),
            Operation::AcquireAhead => {
                self.store.acquire_ahead(now, ask.id, ask.claimant, ask.owner)
            }
            Operation::Book => self.store.book(now, ask.id, ask.owner),
            Operation::Claim => self.store.claim(now, ask.id, ask.claimant, ask.owner),
            Operation::Cancel => self.store.cancel(now, ask.id, ask.claimant),
        };
        let Request { holder, id, claimant, operation, .. } = ask;
        self.sim.note(|| {
            format!("store: {operation:?} {id} by {claimant} → {answer:?} for holder {holder}")
        });
        self.sim.count(match answer {
            Reply::Allow { .. } => "allowed",
            Reply::Booked { .. } => "booked",
            Reply::Early { .. } => "early",
            Reply::Rebooked { .. } => "rebooked",
            Reply::Go { start, .. } if start > now => "go ahead of the start",
            Reply::Go { .. } => "go",
            Reply::Spent => "spent",
            Reply::Deny => "denied",
            Reply::Claimed => "claimed before",
            Reply::Unknown => "unknown",
            Reply::Gone => "gone",
            Reply::Cancelled => "cancelled",
        });
        self.sim.send(Event::Reply { ask, at: now, answer });
    }

    fn holder(&mut self, number: usize, event: Event) {
        let (sim, holder) = (&mut self.sim, &mut self.holders[number]);
        if holder.ended() {
            return;
        }
        match holder.process.draw_state(sim, self.faults, || format!("holder {number}"), &event) {
            ProcessState::Runs => {}
            ProcessState::Stalls | ProcessState::Dead => return,
            ProcessState::Crashes => {
                holder.process.down_until(u64::MAX);
                if holder.aim == Aim::Booked && holder.owner.is_none() {
                    let delay_us = sim.rng.between(1_000, 300_000);
                    let (job, owner) = (holder.job, None);
                    sim.after(delay_us, Event::Deliver { job, aim: Aim::Booked, owner });
                }
                return;
            }
        }
        let own = holder.owner.and_then(|owner| self.owners.get_mut(owner));
        let node = number % self.clocks.len();
        let clock = &mut self.clocks[node];
        let went = match event {
            Event::Reply { ask, at, answer } => {
                let sent = Timestamp::from_micros(ask.sent_us);
                clock.learn(sent, at, Timestamp::from_micros(sim.now_us()));
                holder.answer(sim, ask, (at, answer), clock, own)
            }
            Event::Due { exchange, .. } => holder.due(sim, exchange, own),
            _ => None,
        };
        let Some(went) = went else { return };
        let now = self.store.clock.now(sim);
        let (decided, at) = match went {
            StartTime::Acquired { at } => (at, at),
            StartTime::Now { decided } => (decided, now),
        };
        let job = holder.job;
        sim.note(|| format!("holder {number} goes with {job}"));
        let finding = self.check.goes(at, &self.store.counter);
        sim.report(finding);
        sim.report(self.check.is_open(decided, at, self.lead + SLACK));
    }

    /// Checks B2, B3 and B4 after every message has arrived.
    fn rest(&mut self) {
        let waiting =
            self.holders.iter().find(|holder| !holder.ended() && !holder.process.is_dead());
        let waiting = waiting.map(|holder| format!("B2: job {} never goes", holder.job));
        self.sim.report(waiting);
        // A message of a dead holder may still book: that charge is lost until it expires.
        let finding = self.store.orphaned_charges(|job| {
            let mut holders = self.holders.iter().filter(|holder| holder.job == job);
            holders.all(Holder::ended)
        });
        self.sim.report(finding);
        let now = self.store.clock.now(&self.sim);
        let last = self.store.last_start().map_or(Span::ZERO, |start| start.since(now));
        let rest = last + SLACK + self.store.counter.window();
        // By a clock that may be slow.
        self.sim.pass(rest + Span::from_micros(rest.as_micros() / 50));
        let used = self.store.counter.used(self.store.clock.now(&self.sim));
        self.sim.report((used > 0).then(|| format!("B4: {used} in use after a window")));
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("the owners of a run are few")
}
