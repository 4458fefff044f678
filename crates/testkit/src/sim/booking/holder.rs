//! [`Holder`]: one delivery of a job to a worker, from booking to the start of its work.

use sluicegate_core::store_clock::StoreClock;
use sluicegate_core::{Id, Timestamp};

use super::{BookingMistake, Event, Operation, Reply, Request, Sim};
use crate::sim::counter::Counter;
use crate::sim::process::Process;

/// Timeout of a request to the store.
const TIMEOUT_US: u64 = 20_000;
/// Wait before it books again, if no start was inside the horizon.
const DEFERRAL_US: u64 = 50_000;

/// The kind of a request: booked ahead, admitted now or never, or within the lead or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    Booked,
    Plain,
    Ahead,
}

pub(super) struct Holder {
    number: usize,
    pub(super) job: u64,
    pub(super) aim: Aim,
    /// Number of the owner of the job, if it has one.
    pub(super) owner: Option<usize>,
    pub(super) process: Process,
    claimant: u64,
    /// Number of its current request; replies to earlier ones are ignored.
    exchange: u64,
    state: HolderState,
    /// True if the work is still wanted at its start time.
    wanted: bool,
    /// Time by which its clock is behind that of the store; only `OwnClock` uses it.
    behind_us: u64,
    mistake: Option<BookingMistake>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HolderState {
    Asking(Operation),
    /// Waits for its timer and then sends this request.
    Waiting(Operation),
    /// Waits for its start, which was decided at this time of the store and is valid until this
    /// true time.
    Ready {
        decided: Timestamp,
        opens_us: u64,
        good_until_us: u64,
    },
    Ended,
}

/// A start of work, with the time of the store at which it was decided.
pub(super) enum StartTime {
    /// It counts at the time of its decision.
    Acquired { at: Timestamp },
    /// It starts right now.
    Now { decided: Timestamp },
}

impl Holder {
    pub(super) const fn new(
        number: usize,
        job: u64,
        (aim, owner): (Aim, Option<usize>),
        mistake: Option<BookingMistake>,
    ) -> Self {
        Self {
            number,
            job,
            aim,
            owner,
            process: Process::new(),
            claimant: 0,
            exchange: 0,
            state: HolderState::Ended,
            wanted: true,
            behind_us: 0,
            mistake,
        }
    }

    pub(super) fn begin(&mut self, sim: &mut Sim) {
        self.claimant = sim.fresh();
        self.wanted = sim.rng.chance(850);
        self.behind_us = sim.rng.between(0, 60_000);
        self.ask(
            sim,
            match self.aim {
                Aim::Booked => Operation::Book,
                Aim::Plain => Operation::Acquire,
                Aim::Ahead => Operation::AcquireAhead,
            },
        );
    }

    pub(super) fn ended(&self) -> bool {
        self.state == HolderState::Ended
    }

    /// Handles its timer. `own` are the real starts of its owner.
    pub(super) fn due(
        &mut self,
        sim: &mut Sim,
        exchange: u64,
        own: Option<&mut Counter>,
    ) -> Option<StartTime> {
        if exchange != self.exchange {
            return None;
        }
        match self.state {
            HolderState::Asking(operation) => self.send(sim, operation),
            HolderState::Waiting(Operation::Claim) if !self.wanted => {
                self.ask(sim, Operation::Cancel)
            }
            HolderState::Waiting(operation) => self.ask(sim, operation),
            HolderState::Ready { decided, opens_us, good_until_us } => {
                return self.start(sim, decided, (opens_us, good_until_us), own);
            }
            HolderState::Ended => {}
        }
        None
    }

    /// Handles a reply that was made at the time `at` of the store, whose clock has these bounds.
    pub(super) fn answer(
        &mut self,
        sim: &mut Sim,
        ask: Request,
        (at, answer): (Timestamp, Reply),
        clock: &StoreClock,
        own: Option<&mut Counter>,
    ) -> Option<StartTime> {
        if ask.exchange != self.exchange {
            return None;
        }
        match answer {
            Reply::Allow { at } => return self.go(StartTime::Acquired { at }),
            Reply::Go { decided, start, good_until } => {
                let received_us = sim.now_us();
                let since_us = |from: u64, until: Timestamp| from + until.since(at).as_micros();
                let middle_us = (ask.sent_us + received_us) / 2;
                let known = clock.interval(start, good_until);
                let known = known.map(|(opens, closes)| (opens.as_micros(), closes.as_micros()));
                let interval = match (self.mistake, known) {
                    (Some(BookingMistake::GoesBeforeStart), _) => {
                        Some((received_us, since_us(ask.sent_us, good_until)))
                    }
                    (Some(BookingMistake::StartCountedFromSent), _) => {
                        Some((since_us(ask.sent_us, start), since_us(ask.sent_us, good_until)))
                    }
                    (Some(BookingMistake::DecidedInTheMiddle), _) => {
                        Some((since_us(middle_us, start), since_us(middle_us, good_until)))
                    }
                    (Some(BookingMistake::StaleGo), None) => Some((received_us, received_us)),
                    (_, known) => known,
                };
                match interval {
                    Some(interval) => return self.start(sim, decided, interval, own),
                    None => self.too_late(sim),
                }
            }
            Reply::Spent if self.aim == Aim::Ahead => self.ask(sim, Operation::Cancel),
            Reply::Spent => self.claim_as_another(sim),
            Reply::Booked { wait } | Reply::Early { wait } | Reply::Rebooked { wait } => {
                // Its slow clock shows the start this much later.
                let behind_us = match self.mistake {
                    Some(BookingMistake::OwnClock) => self.behind_us,
                    _ => 0,
                };
                self.wait(sim, wait.as_micros() + behind_us, Operation::Claim);
            }
            Reply::Deny if self.aim != Aim::Booked => self.state = HolderState::Ended,
            Reply::Deny => self.wait(sim, DEFERRAL_US, Operation::Book),
            Reply::Claimed => self.ask(sim, Operation::Claim),
            Reply::Unknown => self.ask(sim, Operation::Book),
            Reply::Gone | Reply::Cancelled => self.state = HolderState::Ended,
        }
        None
    }

    /// Starts the work if its interval is open and the last start of its owner is far enough away.
    /// Otherwise waits for both, or gives up if that is too late.
    fn start(
        &mut self,
        sim: &mut Sim,
        decided: Timestamp,
        (opens_us, good_until_us): (u64, u64),
        own: Option<&mut Counter>,
    ) -> Option<StartTime> {
        let now_us = sim.now_us();
        let mut ready_us = opens_us.max(now_us);
        let own = own.filter(|_| self.mistake != Some(BookingMistake::OwnerIgnoresRealStarts));
        if let Some(own) = &own {
            ready_us = own.earliest(Timestamp::from_micros(ready_us)).as_micros();
        }
        if ready_us > good_until_us && self.mistake != Some(BookingMistake::StaleGo) {
            self.too_late(sim);
        } else if ready_us == now_us {
            if let Some(own) = own {
                own.take(Timestamp::from_micros(now_us));
            }
            return self.go(StartTime::Now { decided });
        } else {
            if ready_us > opens_us {
                sim.count("waited for its owner");
            }
            self.exchange += 1;
            self.state = HolderState::Ready { decided, opens_us, good_until_us };
            let (holder, exchange) = (self.number, self.exchange);
            sim.after(ready_us - now_us, Event::Due { holder, exchange });
        }
        None
    }

    fn go(&mut self, start: StartTime) -> Option<StartTime> {
        self.state = HolderState::Ended;
        Some(start)
    }

    /// The start was missed: books again, or gives up work that was acquired ahead.
    fn too_late(&mut self, sim: &mut Sim) {
        sim.count("go came too late");
        match self.aim {
            Aim::Ahead => self.ask(sim, Operation::Cancel),
            _ => self.claim_as_another(sim),
        }
    }

    /// Uses a new claimant id. A message with the old one may still be in flight, and the store
    /// must keep the old one marked as spent.
    fn claim_as_another(&mut self, sim: &mut Sim) {
        self.claimant = sim.fresh();
        self.ask(sim, Operation::Claim);
    }

    fn wait(&mut self, sim: &mut Sim, wait_us: u64, then: Operation) {
        self.exchange += 1;
        self.state = HolderState::Waiting(then);
        sim.after(wait_us, Event::Due { holder: self.number, exchange: self.exchange });
    }

    fn ask(&mut self, sim: &mut Sim, operation: Operation) {
        self.exchange += 1;
        self.state = HolderState::Asking(operation);
        self.send(sim, operation);
    }

    fn send(&mut self, sim: &mut Sim, operation: Operation) {
        let (holder, exchange) = (self.number, self.exchange);
        let (id, claimant, sent_us) = (self.job, self.claimant, sim.now_us());
        let owner = self.owner.map(|owner| Id::from_bits(owner as u128));
        let request = Request { holder, exchange, sent_us, id, claimant, owner, operation };
        sim.send(Event::Request(request));
        sim.after(TIMEOUT_US, Event::Due { holder, exchange });
    }
}
