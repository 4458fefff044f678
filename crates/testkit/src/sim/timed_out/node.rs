//! [`Node`]: a limiter process that uses one connection at a time, and rolls back attempts that it
//! gave up.

use super::{Connection, DELAY_MAX, Event, Operation, Reply, Sim, TimedOutMistake, Work};
use crate::sim::process::Process;
use crate::sim::rng::Rng;

/// Timeout of a request, after which it gives up the connection.
const TIMEOUT_US: u64 = 20_000;
/// Time after its start at which the outage policy decides an attempt.
const DEADLINE_US: u64 = 45_000;
/// Minimum and maximum delay of a message that is not slow.
const DELAY_US: (u64, u64) = (100, 1_500);

pub(super) struct Node {
    pub(super) process: Process,
    connection: Connection,
    /// Arrival time of the last message on the connection: later ones arrive after it.
    arrives_us: u64,
    /// True if no more messages get through on the connection.
    silent: bool,
    attempts: Vec<Attempt>,
    slow_per_mille: u64,
    silent_per_mille: u64,
    /// Decisions per thousand in which the outage policy admits.
    admits_per_mille: u64,
    mistake: Option<TimedOutMistake>,
}

/// One attempt to have a request admitted.
struct Attempt {
    work: Work,
    since_us: u64,
    operation: Operation,
    /// Number of the current timer; older timers are ignored.
    step: u32,
    /// Connection on which it was last sent.
    sent: u64,
}

/// The result of an attempt for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptResult {
    Allowed,
    Denied,
    /// The store timed out, and the policy admits.
    ByPolicy,
    /// The store timed out, and the policy denies.
    GivenUp,
}

impl Node {
    pub(super) fn random(number: usize, rng: &mut Rng, mistake: Option<TimedOutMistake>) -> Self {
        Self {
            process: Process::new(),
            connection: Connection { node: number, number: 1 },
            arrives_us: 0,
            silent: false,
            attempts: Vec::new(),
            slow_per_mille: rng.between(0, 400),
            silent_per_mille: rng.between(0, 100),
            admits_per_mille: rng.between(0, 400),
            mistake,
        }
    }

    pub(super) const fn connection(&self) -> Connection {
        self.connection
    }

    /// Returns the delay of a message.
    pub(super) fn delay_us(&self, sim: &mut Sim) -> u64 {
        let slow = sim.stormy() && sim.rng.chance(self.slow_per_mille);
        sim.rng.between(DELAY_US.0, if slow { DELAY_MAX.as_micros() } else { DELAY_US.1 })
    }

    pub(super) fn ask(&mut self, sim: &mut Sim, client: usize, names_it: bool) {
        let attempt = sim.fresh();
        let of_client = u64::try_from(client).expect("clients are few");
        // Ids of nodes are larger than all ids of clients.
        let id = if names_it { of_client } else { 1_000_000 + attempt };
        let work = Work { client, id, attempt, of_caller: names_it };
        let operation = Operation::Acquire { whole: false };
        let since_us = sim.now_us();
        self.attempts.push(Attempt { work, since_us, operation, step: 0, sent: 0 });
        self.send(sim, self.attempts.len() - 1);
    }

    pub(super) fn answer(
        &mut self,
        sim: &mut Sim,
        over: Connection,
        work: Work,
        answer: Reply,
    ) -> Option<(Work, AttemptResult)> {
        // A connection that was given up is not read any more.
        if over != self.connection {
            return None;
        }
        let place = self.find(work.attempt);
        if answer == Reply::NoScript {
            let waits =
                place.is_some_and(|place| self.attempts[place].operation != Operation::TakeBack);
            if waits || self.mistake == Some(TimedOutMistake::ResendsGivenUp) {
                self.put(sim, work, Operation::Acquire { whole: true });
            }
            return None;
        }
        let place = place?;
        match (self.attempts[place].operation, answer) {
            (Operation::Acquire { .. }, Reply::Allowed) => {
                self.attempts.swap_remove(place);
                Some((work, AttemptResult::Allowed))
            }
            (Operation::Acquire { .. }, Reply::Denied | Reply::Refused) => {
                // A message on an earlier connection may still be charged.
                if self.attempts[place].step > 1
                    && self.mistake != Some(TimedOutMistake::DeniedIsDone)
                {
                    sim.count("taken back after a denial");
                    self.take_back(sim, place);
                } else {
                    self.attempts.swap_remove(place);
                }
                Some((work, AttemptResult::Denied))
            }
            (Operation::TakeBack, Reply::TakenBack) => {
                self.attempts.swap_remove(place);
                None
            }
            // A reply to an earlier request.
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
        if self.attempts[place].step != step {
            return None;
        }
        // A request may time out before the connection is given up.
        if self.attempts[place].sent == self.connection.number && sim.rng.chance(500) {
            sim.count("connection given up");
            self.connection.number += 1;
            self.arrives_us = 0;
            self.silent = false;
        }
        let Attempt { work, since_us, operation, .. } = self.attempts[place];
        if operation == Operation::TakeBack {
            sim.count("taken back again");
            self.send(sim, place);
            return None;
        }
        if step == 1 && sim.now_us() - since_us < DEADLINE_US {
            sim.count("retried");
            self.send(sim, place);
            return None;
        }
        let admits = sim.rng.chance(self.admits_per_mille);
        if !admits || self.mistake == Some(TimedOutMistake::TakesBackAdmitted) {
            self.take_back(sim, place);
        } else {
            self.attempts.swap_remove(place);
        }
        Some((work, if admits { AttemptResult::ByPolicy } else { AttemptResult::GivenUp }))
    }

    fn take_back(&mut self, sim: &mut Sim, place: usize) {
        self.attempts[place].operation = Operation::TakeBack;
        self.send(sim, place);
        if self.mistake == Some(TimedOutMistake::TakeBackOnce) {
            self.attempts.swap_remove(place);
        }
    }

    /// Drops all memory; returns the attempts that are now abandoned.
    pub(super) fn crash(&mut self) -> Vec<u64> {
        self.connection.number += 1;
        self.arrives_us = 0;
        self.silent = false;
        self.attempts.drain(..).map(|attempt| attempt.work.attempt).collect()
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.attempts.iter().position(|attempt| attempt.work.attempt == number)
    }

    /// Sends the request of an attempt, and sets its timer.
    fn send(&mut self, sim: &mut Sim, place: usize) {
        let attempt = &mut self.attempts[place];
        attempt.step += 1;
        attempt.sent = self.connection.number;
        let Attempt { work, operation, step, .. } = *attempt;
        self.put(sim, work, operation);
        let due = Event::Due { node: self.connection.node, attempt: work.attempt, step };
        sim.after(TIMEOUT_US, due);
    }

    /// Puts a message on the connection, behind earlier ones.
    fn put(&mut self, sim: &mut Sim, work: Work, operation: Operation) {
        self.silent |= sim.stormy() && sim.rng.chance(self.silent_per_mille);
        let over = self.connection;
        if self.silent {
            sim.note(|| format!("    lost      {operation:?} of {work:?} over {over:?}"));
            return;
        }
        let delay_us = self.delay_us(sim);
        self.arrives_us = (sim.now_us() + delay_us).max(self.arrives_us + 1);
        sim.after(self.arrives_us - sim.now_us(), Event::Message { over, work, operation });
    }
}
