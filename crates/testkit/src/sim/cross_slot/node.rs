//! [`Node`]: a limiter process that asks every slot, and admits the client when all have reserved.

use sluicegate_core::Span;

use super::{CounterIndex, CrossSlotMistake, DEADLINE, Event, LIFE, Reply, Sim, TIMEOUT, Work};
use crate::sim::process::Process;
use crate::sim::rng::Rng;

pub(super) struct Node {
    number: usize,
    /// Time by which its clock is ahead of the true time. Only `NodeClock` uses it.
    ahead_us: u64,
    pub(super) process: Process,
    attempts: Vec<Attempt>,
    /// Time for which a charge counts.
    window: Span,
    mistake: Option<CrossSlotMistake>,
}

/// One attempt to have a plan admitted.
struct Attempt {
    work: Work,
    /// Start time of its phase.
    since_us: u64,
    phase: Phase,
    /// Number of the current timer; older timers are ignored.
    step: u32,
    parts: Vec<SlotPart>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Reserving,
    TakingBack,
}

/// The counters of a plan that are in one slot.
struct SlotPart {
    slot: usize,
    counters: Vec<usize>,
    answer: Option<Reply>,
}

/// The result of an attempt for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptResult {
    Allow,
    /// A slot denied or timed out: in production the outage policy of the rule would decide.
    Deny,
    /// No reply, but the attempt is over: its charges have expired.
    GivesUp,
}

impl Node {
    pub(super) fn random(
        number: usize,
        window: Span,
        rng: &mut Rng,
        mistake: Option<CrossSlotMistake>,
    ) -> Self {
        let ahead_us = rng.between(0, 30_000);
        let process = Process::new();
        Self { number, ahead_us, process, attempts: Vec::new(), window, mistake }
    }

    pub(super) fn ask(&mut self, sim: &mut Sim, client: usize, plan: &[CounterIndex]) {
        let mut parts: Vec<SlotPart> = Vec::new();
        for &(slot, counter) in plan {
            match parts.iter_mut().find(|part| part.slot == slot) {
                Some(part) => part.counters.push(counter),
                None => parts.push(SlotPart { slot, counters: vec![counter], answer: None }),
            }
        }
        let id = u64::try_from(client).expect("clients are few");
        let work = Work { client, id, attempt: sim.fresh() };
        let since_us = sim.now_us();
        let phase = Phase::Reserving;
        let mut attempt = Attempt { work, since_us, phase, step: 0, parts };
        attempt.send(sim, self.number, self.ahead_us);
        self.attempts.push(attempt);
    }

    pub(super) fn answer(
        &mut self,
        sim: &mut Sim,
        slot: usize,
        number: u64,
        answer: Reply,
    ) -> Option<(Work, AttemptResult)> {
        let place = self.find(number)?;
        let attempt = &mut self.attempts[place];
        let part = attempt.parts.iter_mut().find(|part| part.slot == slot)?;
        let work = attempt.work;
        match (attempt.phase, answer) {
            (Phase::Reserving, Reply::Reserved) => {
                part.answer = Some(answer);
                if !attempt.parts.iter().all(|part| part.answer.is_some()) {
                    return None;
                }
                self.attempts.swap_remove(place);
                Some((work, AttemptResult::Allow))
            }
            (Phase::Reserving, Reply::Denied | Reply::Refused) => {
                self.take_back(sim, place);
                Some((work, AttemptResult::Deny))
            }
            (Phase::TakingBack, Reply::TakenBack) => {
                part.answer = Some(answer);
                if attempt.parts.iter().all(|part| part.answer.is_some()) {
                    self.attempts.swap_remove(place);
                }
                None
            }
            // A reply to an earlier phase.
            _ => None,
        }
    }

    pub(super) fn due(
        &mut self,
        sim: &mut Sim,
        number: u64,
        step: u32,
    ) -> Option<(Work, AttemptResult)> {
        let place = self.find(number)?;
        let attempt = &mut self.attempts[place];
        if attempt.step != step {
            return None;
        }
        let lasts_us = sim.now_us() - attempt.since_us;
        if attempt.phase == Phase::TakingBack {
            if lasts_us >= (self.window + LIFE).as_micros() {
                let attempt = self.attempts.swap_remove(place);
                return Some((attempt.work, AttemptResult::GivesUp));
            }
            sim.count("taken back again");
            attempt.send(sim, self.number, self.ahead_us);
            return None;
        }
        // A node that was suspended must not send an old request: the slots may have forgotten by
        // now that they charged it.
        let late = lasts_us >= DEADLINE.as_micros();
        let late = late && self.mistake != Some(CrossSlotMistake::RetryAfterDeadline);
        if attempt.step == 1 && !late {
            sim.count("retried");
            if self.mistake == Some(CrossSlotMistake::RetryUnderNewId) {
                attempt.work.id = sim.fresh();
                attempt.work.attempt = sim.fresh();
            }
            attempt.send(sim, self.number, self.ahead_us);
            return None;
        }
        let work = attempt.work;
        self.take_back(sim, place);
        Some((work, AttemptResult::Deny))
    }

    fn take_back(&mut self, sim: &mut Sim, place: usize) {
        let attempt = &mut self.attempts[place];
        attempt.phase = Phase::TakingBack;
        attempt.since_us = sim.now_us();
        if self.mistake == Some(CrossSlotMistake::TakeBackWhereReserved) {
            attempt.parts.retain(|part| part.answer == Some(Reply::Reserved));
        }
        for part in &mut attempt.parts {
            part.answer = None;
        }
        attempt.send(sim, self.number, self.ahead_us);
        if self.mistake == Some(CrossSlotMistake::TakeBackOnce) || attempt.parts.is_empty() {
            self.attempts.swap_remove(place);
        }
    }

    /// Drops all memory; returns the clients whose attempts are now abandoned.
    pub(super) fn crash(&mut self) -> Vec<usize> {
        self.attempts.drain(..).map(|attempt| attempt.work.client).collect()
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.attempts.iter().position(|attempt| attempt.work.attempt == number)
    }
}

impl Attempt {
    /// Sends the message of its phase to every slot that has not replied, and sets the timer.
    fn send(&mut self, sim: &mut Sim, from: usize, ahead_us: u64) {
        let work = self.work;
        for part in self.parts.iter().filter(|part| part.answer.is_none()) {
            let slot = part.slot;
            sim.send(match self.phase {
                Phase::Reserving => {
                    let counters = part.counters.clone();
                    let sent = sim.clock(ahead_us);
                    Event::Reserve { slot, from, work, counters, sent }
                }
                Phase::TakingBack => Event::TakeBack { slot, from, work },
            });
        }
        self.step += 1;
        let due = Event::Due { node: from, attempt: work.attempt, step: self.step };
        sim.after(TIMEOUT.as_micros(), due);
    }
}
