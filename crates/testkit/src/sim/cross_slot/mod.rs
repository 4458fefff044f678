//! Simulation of a plan whose counters are in several slots: reserve in parallel, and roll back if
//! any part is denied.
//!
//! A slot is a Redis primary: it handles one message after the other, each as one atomic script, by
//! its own clock. Clocks of different slots differ. A node is a limiter process. It makes an
//! **attempt** for every request of a client, under the client's id and a number of its own.
//!
//! # Messages
//!
//! | message | to | carries | means |
//! |---|---|---|---|
//! | `Reserve` | slot | id, attempt, counters | charges all of them now, or none |
//! | `Reserved` | node | | charged, now or by an earlier attempt under this id |
//! | `Denied` | node | | at least one does not fit; nothing was written |
//! | `Refused` | node | | the attempt was rolled back; nothing was written |
//! | `TakeBack` | slot | id, attempt | rolls back: this attempt does not need the charge, and never will |
//! | `TakenBack` | node | | confirms the rollback |
//!
//! # Records of a slot, one per id
//!
//! | | not charged | held by others | held by this attempt | this attempt rolled back |
//! |---|---|---|---|---|
//! | `Reserve` | decide: charge, → held; or deny and write nothing | in its window: → held by this one too; expired: same as not charged | replay | refuse |
//! | `TakeBack` | → tombstone | → tombstone, others hold | → tombstone; the last one refunds the charge | replay |
//!
//! The tombstone belongs to the *attempt* and not to the id: a client that asks again, at this node
//! or another, uses the same id and must not be refused because an earlier attempt was rolled back.
//! The charge belongs to *every* attempt that received `Reserved`: it is refunded when the last of
//! them is rolled back. A charge that has left its window is not shared: its attempt may belong to
//! a dead node, and a later attempt that shares it would go uncounted. In Redis this is one hash
//! per id and slot, with a field for each attempt and the marks of its charges.
//!
//! A record is kept [`LIFE`] after it was last written, and as long as its charge counts:
//!
//! - a repeated `Reserve` must find the record of the first. The last one is sent before the
//!   [deadline](DEADLINE) of its attempt and takes at most [`DELAY_MAX`];
//! - a `Reserve` that arrives after its `TakeBack` was sent before it, so it is at most
//!   [`DELAY_MAX`] late.
//!
//! # Steps of a node
//!
//! | step | on | then |
//! |---|---|---|
//! | start | request of a client | `Reserve` to every slot |
//! | wait | all `Reserved` | reply Allow |
//! | wait | a `Denied` or `Refused` | reply Deny; roll back |
//! | wait | [`TIMEOUT`], first time, before the [deadline](DEADLINE) | the same `Reserve` again to the slots without a reply |
//! | wait | [`TIMEOUT`] otherwise | reply Deny; roll back |
//! | roll back | | `TakeBack` to *every* slot, also those that denied: a repeated `Reserve` may still arrive |
//! | roll back | [`TIMEOUT`] | again to the slots without a reply, until each has replied, or a window and [`LIFE`] are over and the charge has expired |
//!
//! # Invariants
//!
//! | | |
//! |---|---|
//! | S1 | no window of a counter holds more than its limit of admitted requests, by the slot's clock |
//! | S2 | an admitted request is charged on all its counters |
//! | S3 | a request is charged at most once on a counter, and an attempt not again after its record expired |
//! | S4 | a request that was not admitted is charged nowhere, unless the node crashed |
//! | S5 | after a window without requests, every counter is free again |
//! | S6 | an attempt is refused only after it was rolled back itself |

mod check;
mod client;
mod node;
mod slot;

use std::fmt;

use sluicegate_core::algorithm::log::LogQuota;
use sluicegate_core::{Span, Timestamp};

use super::explore::{Run, Tracing};
use super::process::{FaultRates, ProcessState};
use super::scheduler::Scheduler;
use check::Check;
use client::Client;
use node::{AttemptResult, Node};
use slot::Slot;

/// Maximum delay of a message.
pub const DELAY_MAX: Span = Span::from_millis(150);
/// Timeout of a request to a slot.
pub const TIMEOUT: Span = Span::from_millis(20);
/// Time after its start during which an attempt may still send a `Reserve`.
pub const DEADLINE: Span = Span::from_millis(45);
/// Time that a record outlives its last change.
pub const LIFE: Span = Span::from_millis(150 + 45);

const STALL_MAX: Span = Span::from_millis(700);
const DOWN_MAX: Span = Span::from_millis(100);
const STORMY: Span = Span::from_millis(900);

/// A bug that an implementation could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossSlotMistake {
    /// A rollback forgets the attempt, so that a late reserve is charged.
    NoTombstone,
    /// A tombstone expires before the last message can have arrived.
    ShortTombstone,
    /// A record expires before the last retry can have arrived.
    ShortRecord,
    /// A retry uses a new id.
    RetryUnderNewId,
    /// A retry is sent however long ago the attempt began.
    RetryAfterDeadline,
    /// A repeated reserve is charged again.
    ChargedAgain,
    /// A rollback removes the newest entry and not the one of its id.
    TakeBackByScore,
    /// A rollback is sent only to the slots that replied `Reserved`.
    TakeBackWhereReserved,
    /// A rollback is sent once, even if it is lost.
    TakeBackOnce,
    /// A rollback ends the charge of every attempt under the id.
    TakeBackForAll,
    /// A tombstone refuses every attempt under the id.
    TombstoneForAll,
    /// The charge belongs only to the last attempt that reserved it.
    LastAttemptOwns,
    /// An attempt shares the charge of another attempt after that charge has left its window.
    SharesAgedOut,
    /// A reserve is decided and written by the clock of the node that sent it.
    NodeClock,
}

/// Runs the simulation of a seed.
pub fn run(seed: u64, mistake: Option<CrossSlotMistake>, tracing: Tracing) -> Run {
    let mut simulation = Simulation::random(seed, mistake, tracing);
    simulation.play();
    let finding = simulation.check.left_over();
    simulation.sim.report(finding);
    simulation.probe();
    simulation.sim.finish()
}

type Sim = Scheduler<Event>;

/// A counter, by its slot and its index there.
type CounterIndex = (usize, usize);

/// The request that a message is about. Only the checks use `client`.
#[derive(Clone, Copy)]
struct Work {
    client: usize,
    id: u64,
    attempt: u64,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} attempt {}", self.client, self.attempt)
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// A client's request reaches a node.
    Request { client: usize, node: usize },
    /// The timeout of a client's request with this number.
    Waited { client: usize, operation: u32 },
    /// A message reaches a slot.
    Reserve { slot: usize, from: usize, work: Work, counters: Vec<usize>, sent: Timestamp },
    /// A message reaches a slot.
    TakeBack { slot: usize, from: usize, work: Work },
    /// A reply reaches a node.
    Reply { node: usize, slot: usize, attempt: u64, answer: Reply },
    /// The timer of an attempt is due.
    Due { node: usize, attempt: u64, step: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Reserved,
    Denied,
    Refused,
    TakenBack,
}

struct Simulation {
    sim: Sim,
    faults: FaultRates,
    check: Check,
    slots: Vec<Slot>,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    quota: LogQuota,
    mistake: Option<CrossSlotMistake>,
}

impl Simulation {
    fn random(seed: u64, mistake: Option<CrossSlotMistake>, tracing: Tracing) -> Self {
        let mut sim = Sim::new(seed, tracing, DELAY_MAX, STORMY);
        let rng = &mut sim.rng;
        let faults = FaultRates::random(rng, STALL_MAX);
        let window = Span::from_millis(rng.between(60, 400));
        let quota = LogQuota { limit: rng.between(1, 3), window };
        let slots: Vec<_> =
            (0..rng.index(2) + 2).map(|number| Slot::random(number, quota, rng, mistake)).collect();
        let nodes: Vec<_> = (0..rng.index(2) + 2)
            .map(|number| Node::random(number, window, rng, mistake))
            .collect();
        let mut clients: Vec<_> =
            (0..rng.between(6, 16)).map(|_| Client::random(rng, &slots)).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            let delay_us = sim.rng.between(0, 400_000);
            client.ask(&mut sim, number, nodes.len(), delay_us);
        }
        sim.note(|| format!("{}/{window} on every counter", quota.limit));
        let check = Check::new(quota, clients.len());
        Self { sim, faults, check, slots, nodes, clients, quota, mistake }
    }

    fn play(&mut self) {
        while let Some(event) = self.sim.next() {
            match &event {
                Event::Request { node, .. }
                | Event::Reply { node, .. }
                | Event::Due { node, .. } => {
                    let node = *node;
                    self.node(node, event);
                }
                Event::Waited { client, operation } => {
                    let nodes = self.nodes.len();
                    self.clients[*client].waited(&mut self.sim, *client, *operation, nodes);
                }
                Event::Reserve { slot, .. } | Event::TakeBack { slot, .. } => {
                    let slot = *slot;
                    self.slot(slot, event);
                }
            }
            let finding = self.check.take_finding();
            self.sim.report(finding);
        }
    }

    /// Lets a slot handle a message and reply, and checks its counters.
    fn slot(&mut self, number: usize, event: Event) {
        let slot = &mut self.slots[number];
        let now = self.sim.clock(slot.ahead_us);
        let (from, work, answer) = match event {
            Event::Reserve { from, work, counters, sent, .. } => {
                let by = if self.mistake == Some(CrossSlotMistake::NodeClock) { sent } else { now };
                (from, work, slot.reserve(now, by, work, &counters, &mut self.check))
            }
            Event::TakeBack { from, work, .. } => {
                slot.take_back(now, work, &mut self.check);
                self.check.attempt_taken_back(work, number, now);
                (from, work, Reply::TakenBack)
            }
            _ => return,
        };
        if answer == Reply::Refused {
            self.check.refused(work, number);
        }
        self.sim.note(|| format!("slot {number} to node {from}: {answer:?} for {work:?}"));
        self.sim.count(match answer {
            Reply::Reserved => "reserved",
            Reply::Denied => "denied by a slot",
            Reply::Refused => "refused by a tombstone",
            Reply::TakenBack => "taken back",
        });
        let attempt = work.attempt;
        self.sim.send(Event::Reply { node: from, slot: number, attempt, answer });
        for (index, counter) in slot.counters.iter().enumerate() {
            self.check.counts((number, index), counter.used(now), now);
        }
    }

    fn node(&mut self, number: usize, event: Event) {
        let (sim, node) = (&mut self.sim, &mut self.nodes[number]);
        match node.process.draw_state(sim, self.faults, || format!("node {number}"), &event) {
            ProcessState::Runs => {}
            ProcessState::Stalls | ProcessState::Dead => return,
            ProcessState::Crashes => {
                let down_us = sim.now_us() + sim.rng.between(1_000, DOWN_MAX.as_micros());
                node.process.down_until(down_us);
                for client in node.crash() {
                    self.check.orphaned(client);
                }
                return;
            }
        }
        let reply = match event {
            Event::Request { client, .. } => {
                node.ask(sim, client, &self.clients[client].plan);
                None
            }
            Event::Reply { slot, attempt, answer, .. } => node.answer(sim, slot, attempt, answer),
            Event::Due { attempt, step, .. } => node.due(sim, attempt, step),
            _ => None,
        };
        let Some((work, reply)) = reply else { return };
        let client = work.client;
        sim.note(|| format!("node {number} tells {work:?}: {reply:?}"));
        match reply {
            AttemptResult::Allow => {
                sim.count("allowed");
                self.check.admitted(work, &self.clients[client].plan);
            }
            AttemptResult::Deny => sim.count("not admitted"),
            AttemptResult::GivesUp => {
                sim.count("gave up taking back");
                for (number, slot) in self.slots.iter().enumerate() {
                    self.check.taken_back(client, number, sim.clock(slot.ahead_us));
                }
                return;
            }
        }
        self.clients[client].on_reply(sim, client, reply, self.nodes.len());
    }

    /// Checks S5: after one window, a single request on every counter is admitted.
    fn probe(&mut self) {
        self.sim.pass(self.quota.window.max(DOWN_MAX));
        let number = self.clients.len();
        let mut client = Client::of_everything(&self.slots);
        client.ask(&mut self.sim, number, self.nodes.len(), 0);
        self.clients.push(client);
        self.check.one_more_client();
        self.play();
        let finding = self.check.was_admitted(number);
        self.sim.report(finding);
    }
}
