//! A holder: one delivery of a job to a worker, from booking to going.

use sluicegate_core::Timestamp;

use super::{Answer, Ask, Event, Mistake, Question, Sim};
use crate::sim::process::Process;

/// How long it waits for an answer before it asks again.
const TIMEOUT_US: u64 = 20_000;
/// How long it waits before it books again, when there was no start inside the horizon.
const DEFERRAL_US: u64 = 50_000;

/// Whether work can wait for its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    Booked,
    Plain,
}

pub(super) struct Holder {
    number: usize,
    pub(super) job: u64,
    pub(super) aim: Aim,
    pub(super) process: Process,
    claimant: u64,
    /// Which exchange of question and answer it is in; answers to earlier ones are old.
    exchange: u64,
    state: State,
    /// Whether the work is still wanted when its start has come.
    wanted: bool,
    /// How far its clock is behind that of the store, for those who look at it.
    behind_us: u64,
    mistake: Option<Mistake>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Asking(Question),
    /// Until its timer, then it asks.
    Waiting(Question),
    Ended,
}

/// It goes: at an instant of the store, or right now.
pub(super) type Went = Option<Timestamp>;

impl Holder {
    pub(super) const fn new(number: usize, job: u64, aim: Aim, mistake: Option<Mistake>) -> Self {
        Self {
            number,
            job,
            aim,
            process: Process::new(),
            claimant: 0,
            exchange: 0,
            state: State::Ended,
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
                Aim::Booked => Question::Book,
                Aim::Plain => Question::Acquire,
            },
        );
    }

    pub(super) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    pub(super) fn due(&mut self, sim: &mut Sim, exchange: u64) -> Option<Went> {
        if exchange != self.exchange {
            return None;
        }
        match self.state {
            State::Asking(question) => self.send(sim, question),
            State::Waiting(Question::Claim) if !self.wanted => self.ask(sim, Question::Cancel),
            State::Waiting(question) => self.ask(sim, question),
            State::Ended => {}
        }
        None
    }

    pub(super) fn answer(&mut self, sim: &mut Sim, ask: Ask, answer: Answer) -> Option<Went> {
        if ask.exchange != self.exchange {
            return None;
        }
        match answer {
            Answer::Allow { at } => return self.go(Some(at)),
            Answer::Go { good_for } => {
                let took_us = sim.now_us() - ask.sent_us;
                if took_us <= good_for.as_micros() || self.mistake == Some(Mistake::StaleGo) {
                    return self.go(None);
                }
                sim.saw("go came too late");
                self.claim_as_another(sim);
            }
            Answer::Spent => self.claim_as_another(sim),
            Answer::Booked { wait } | Answer::Early { wait } | Answer::Rebooked { wait } => {
                // Its clock shows the start so much later.
                let behind_us = match self.mistake {
                    Some(Mistake::OwnClock) => self.behind_us,
                    _ => 0,
                };
                self.wait(sim, wait.as_micros() + behind_us, Question::Claim);
            }
            Answer::Deny if self.aim == Aim::Plain => self.state = State::Ended,
            Answer::Deny => self.wait(sim, DEFERRAL_US, Question::Book),
            Answer::Claimed => self.ask(sim, Question::Claim),
            Answer::Unknown => self.ask(sim, Question::Book),
            Answer::Gone | Answer::Cancelled => self.state = State::Ended,
        }
        None
    }

    fn go(&mut self, at: Went) -> Option<Went> {
        self.state = State::Ended;
        Some(at)
    }

    /// The old claimant may be asked for by a message that is still on its way, and has to stay
    /// what it is: one that had its go.
    fn claim_as_another(&mut self, sim: &mut Sim) {
        self.claimant = sim.fresh();
        self.ask(sim, Question::Claim);
    }

    fn wait(&mut self, sim: &mut Sim, wait_us: u64, then: Question) {
        self.exchange += 1;
        self.state = State::Waiting(then);
        sim.after(wait_us, Event::Due { holder: self.number, exchange: self.exchange });
    }

    fn ask(&mut self, sim: &mut Sim, question: Question) {
        self.exchange += 1;
        self.state = State::Asking(question);
        self.send(sim, question);
    }

    fn send(&mut self, sim: &mut Sim, question: Question) {
        let (holder, exchange) = (self.number, self.exchange);
        let (id, claimant, sent_us) = (self.job, self.claimant, sim.now_us());
        sim.send(Event::Ask(Ask { holder, exchange, sent_us, id, claimant, question }));
        sim.after(TIMEOUT_US, Event::Due { holder, exchange });
    }
}
