//! [`Holder`]: a process that acquires a slot, works while it holds it, and releases it.

use sluicegate_core::Span;

use super::{DELAY_MAX, Event, LeaseMistake, Operation, Reply, Request, Sim, Timer};
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
    state: HolderState,
    acquires: u32,
    slot: usize,
    worked: Option<WorkSpan>,
    mistake: Option<LeaseMistake>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HolderState {
    Acquiring,
    Working { from_us: u64, deadline_us: u64 },
    Releasing { since_us: u64 },
    Ended,
}

/// A time span of work, in true time.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkSpan {
    pub(super) from_us: u64,
    pub(super) until_us: u64,
}

impl Holder {
    pub(super) const fn new(
        number: usize,
        id: u64,
        lease: Span,
        mistake: Option<LeaseMistake>,
    ) -> Self {
        Self {
            number,
            id,
            process: Process::new(),
            lease_us: lease.as_micros(),
            state: HolderState::Acquiring,
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
        self.state == HolderState::Ended
    }

    pub(super) const fn take_worked(&mut self) -> Option<WorkSpan> {
        self.worked.take()
    }

    pub(super) fn due(&mut self, sim: &mut Sim, timer: Timer) {
        if self.overdue(sim) {
            return;
        }
        match (self.state, timer) {
            (HolderState::Acquiring, Timer::Again) if self.acquires < ACQUIRES_MAX => {
                self.acquire(sim)
            }
            (HolderState::Acquiring, Timer::Again) | (HolderState::Working { .. }, Timer::Done) => {
                self.release(sim);
            }
            (HolderState::Working { .. }, Timer::Renew) => {
                self.send(sim, Operation::Renew);
                self.wake(sim, self.lease_us / 3, Timer::Renew);
            }
            (HolderState::Releasing { since_us }, Timer::Again) => {
                // By then all its messages have arrived and its lease has expired.
                let over_us = self.lease_us + DELAY_MAX.as_micros();
                if sim.now_us() - since_us < over_us {
                    self.send(sim, Operation::Release);
                    self.wake(sim, TIMEOUT_US, Timer::Again);
                } else {
                    sim.count("gave up releasing");
                    self.state = HolderState::Ended;
                }
            }
            _ => {}
        }
    }

    pub(super) fn answer(&mut self, sim: &mut Sim, ask: Request, answer: Reply) {
        if self.overdue(sim) {
            return;
        }
        match (self.state, answer) {
            (HolderState::Acquiring, Reply::Held { left, slot }) => {
                let from_us = sim.now_us();
                let deadline_us = self.deadline_us(sim, ask, left);
                if deadline_us <= from_us {
                    sim.count("answer came too late");
                    return self.release(sim);
                }
                sim.note(|| format!("holder {} works", self.number));
                self.slot = slot;
                self.state = HolderState::Working { from_us, deadline_us };
                let work_us = sim.rng.between(5_000, self.lease_us * 3);
                self.wake(sim, work_us, Timer::Done);
                self.wake(sim, self.lease_us / 3, Timer::Renew);
                self.wake(sim, deadline_us - from_us, Timer::Stop);
            }
            (HolderState::Working { from_us, deadline_us }, Reply::Held { left, .. }) => {
                let deadline_us = deadline_us.max(self.deadline_us(sim, ask, left));
                self.state = HolderState::Working { from_us, deadline_us };
                self.wake(sim, deadline_us - sim.now_us(), Timer::Stop);
            }
            (HolderState::Acquiring | HolderState::Working { .. }, Reply::Lost) => {
                self.release(sim)
            }
            (HolderState::Releasing { .. }, Reply::Released) => self.state = HolderState::Ended,
            // After a denial it waits for the timer.
            _ => {}
        }
    }

    /// Crashes the holder; returns its working time.
    pub(super) fn crash(&mut self, now_us: u64) -> Option<WorkSpan> {
        self.stop(now_us);
        self.state = HolderState::Ended;
        self.worked.take()
    }

    /// Checks the deadline first at every event, however late the event is handled.
    fn overdue(&mut self, sim: &mut Sim) -> bool {
        let overdue = match self.state {
            HolderState::Working { deadline_us, .. } => sim.now_us() >= deadline_us,
            _ => false,
        };
        if overdue {
            sim.count("stopped at its deadline");
            self.release(sim);
        }
        overdue
    }

    /// Returns the time until which the holder may work, from the remaining time in the reply.
    fn deadline_us(&self, sim: &Sim, ask: Request, left: Span) -> u64 {
        match self.mistake {
            Some(LeaseMistake::CountsFromAnswer) => sim.now_us() + left.as_micros(),
            Some(LeaseMistake::CountsWholeLease) => ask.sent_us + self.lease_us,
            _ => ask.sent_us + left.as_micros(),
        }
    }

    fn acquire(&mut self, sim: &mut Sim) {
        self.acquires += 1;
        self.send(sim, Operation::Acquire);
        self.wake(sim, if self.acquires == 1 { TIMEOUT_US } else { DEFERRAL_US }, Timer::Again);
    }

    fn release(&mut self, sim: &mut Sim) {
        self.stop(sim.now_us());
        self.state = HolderState::Releasing { since_us: sim.now_us() };
        self.send(sim, Operation::Release);
        self.wake(sim, TIMEOUT_US, Timer::Again);
    }

    fn stop(&mut self, now_us: u64) {
        if let HolderState::Working { from_us, deadline_us } = self.state {
            self.worked = Some(WorkSpan { from_us, until_us: now_us.min(deadline_us) });
        }
    }

    fn send(&mut self, sim: &mut Sim, operation: Operation) {
        let (holder, id, slot, sent_us) = (self.number, self.id, self.slot, sim.now_us());
        sim.send(Event::Request(Request { holder, sent_us, id, slot, operation }));
    }

    fn wake(&self, sim: &mut Sim, delay_us: u64, timer: Timer) {
        sim.after(delay_us, Event::Due { holder: self.number, timer });
    }
}
