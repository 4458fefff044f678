//! [`Holder`]: a process that acquires a slot, works while it holds it, and releases it.

use sluicegate_core::Span;

use super::{Answer, Ask, DELAY_MAX, Event, Mistake, Question, Sim, Timer};
use crate::sim::process::Process;

/// Timeout of a request to the store.
const TIMEOUT_US: u64 = 20_000;
/// Wait after a denial.
const DEFERRAL_US: u64 = 30_000;
/// Maximum number of acquire requests.
const ACQUIRES_MAX: u32 = 12;

pub(super) struct Holder {
    number: usize,
    pub(super) id: u64,
    pub(super) process: Process,
    lease_us: u64,
    state: State,
    acquires: u32,
    slot: usize,
    worked: Option<Worked>,
    mistake: Option<Mistake>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Acquiring,
    Working { from_us: u64, deadline_us: u64 },
    Releasing { since_us: u64 },
    Ended,
}

/// A time span of work, in true time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worked {
    pub(super) from_us: u64,
    pub(super) until_us: u64,
}

impl Holder {
    pub(super) const fn new(number: usize, id: u64, lease: Span, mistake: Option<Mistake>) -> Self {
        Self {
            number,
            id,
            process: Process::new(),
            lease_us: lease.as_micros(),
            state: State::Acquiring,
            acquires: 0,
            slot: 0,
            worked: None,
            mistake,
        }
    }

    pub(super) fn begin(&mut self, sim: &mut Sim) {
        self.acquire(sim);
    }

    pub(super) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    pub(super) const fn take_worked(&mut self) -> Option<Worked> {
        self.worked.take()
    }

    pub(super) fn due(&mut self, sim: &mut Sim, timer: Timer) {
        if self.overdue(sim) {
            return;
        }
        match (self.state, timer) {
            (State::Acquiring, Timer::Again) if self.acquires < ACQUIRES_MAX => self.acquire(sim),
            (State::Acquiring, Timer::Again) | (State::Working { .. }, Timer::Done) => {
                self.release(sim);
            }
            (State::Working { .. }, Timer::Renew) => {
                self.send(sim, Question::Renew);
                self.wake(sim, self.lease_us / 3, Timer::Renew);
            }
            (State::Releasing { since_us }, Timer::Again) => {
                // By then all its messages have arrived and its lease has expired.
                let over_us = self.lease_us + DELAY_MAX.as_micros();
                if sim.now_us() - since_us < over_us {
                    self.send(sim, Question::Release);
                    self.wake(sim, TIMEOUT_US, Timer::Again);
                } else {
                    sim.saw("gave up releasing");
                    self.state = State::Ended;
                }
            }
            _ => {}
        }
    }

    pub(super) fn answer(&mut self, sim: &mut Sim, ask: Ask, answer: Answer) {
        if self.overdue(sim) {
            return;
        }
        match (self.state, answer) {
            (State::Acquiring, Answer::Held { left, slot }) => {
                let from_us = sim.now_us();
                let deadline_us = self.deadline_us(sim, ask, left);
                if deadline_us <= from_us {
                    sim.saw("answer came too late");
                    return self.release(sim);
                }
                sim.note(|| format!("holder {} works", self.number));
                self.slot = slot;
                self.state = State::Working { from_us, deadline_us };
                let work_us = sim.rng.between(5_000, self.lease_us * 3);
                self.wake(sim, work_us, Timer::Done);
                self.wake(sim, self.lease_us / 3, Timer::Renew);
                self.wake(sim, deadline_us - from_us, Timer::Stop);
            }
            (State::Working { from_us, deadline_us }, Answer::Held { left, .. }) => {
                let deadline_us = deadline_us.max(self.deadline_us(sim, ask, left));
                self.state = State::Working { from_us, deadline_us };
                self.wake(sim, deadline_us - sim.now_us(), Timer::Stop);
            }
            (State::Acquiring | State::Working { .. }, Answer::Lost) => self.release(sim),
            (State::Releasing { .. }, Answer::Released) => self.state = State::Ended,
            // After a denial it waits for the timer.
            _ => {}
        }
    }

    /// Crashes the holder; returns its working time.
    pub(super) fn crash(&mut self, now_us: u64) -> Option<Worked> {
        self.stop(now_us);
        self.state = State::Ended;
        self.worked.take()
    }

    /// Checks the deadline first at every event, however late the event is handled.
    fn overdue(&mut self, sim: &mut Sim) -> bool {
        let overdue = match self.state {
            State::Working { deadline_us, .. } => sim.now_us() >= deadline_us,
            _ => false,
        };
        if overdue {
            sim.saw("stopped at its deadline");
            self.release(sim);
        }
        overdue
    }

    /// Returns the time until which the holder may work, from the remaining time in the reply.
    fn deadline_us(&self, sim: &Sim, ask: Ask, left: Span) -> u64 {
        match self.mistake {
            Some(Mistake::CountsFromAnswer) => sim.now_us() + left.as_micros(),
            Some(Mistake::CountsWholeLease) => ask.sent_us + self.lease_us,
            _ => ask.sent_us + left.as_micros(),
        }
    }

    fn acquire(&mut self, sim: &mut Sim) {
        self.acquires += 1;
        self.send(sim, Question::Acquire);
        self.wake(sim, if self.acquires == 1 { TIMEOUT_US } else { DEFERRAL_US }, Timer::Again);
    }

    fn release(&mut self, sim: &mut Sim) {
        self.stop(sim.now_us());
        self.state = State::Releasing { since_us: sim.now_us() };
        self.send(sim, Question::Release);
        self.wake(sim, TIMEOUT_US, Timer::Again);
    }

    fn stop(&mut self, now_us: u64) {
        if let State::Working { from_us, deadline_us } = self.state {
            self.worked = Some(Worked { from_us, until_us: now_us.min(deadline_us) });
        }
    }

    fn send(&mut self, sim: &mut Sim, question: Question) {
        let (holder, id, slot, sent_us) = (self.number, self.id, self.slot, sim.now_us());
        sim.send(Event::Ask(Ask { holder, sent_us, id, slot, question }));
    }

    fn wake(&self, sim: &mut Sim, delay_us: u64, timer: Timer) {
        sim.after(delay_us, Event::Due { holder: self.number, timer });
    }
}
