//! Simulation of a call that timed out: decided by the outage policy, and rolled back if denied.
//!
//! A node uses one connection to the store at a time. When a reply takes too long, the node gives
//! up the connection and makes a new one; messages on the old one may still arrive, in order and
//! much later. If no reply comes before the deadline, the outage policy decides. A request that it
//! denies is rolled back; a request that it admits stays charged, if it was charged.
//!
//! # Messages
//!
//! Every message names its node and the number of the connection that it was sent on.
//!
//! | message | to | carries | means |
//! |---|---|---|---|
//! | `Acquire` | store | id, attempt | charges now, or denies |
//! | `Allowed` | node | | charged, now or by an earlier attempt under this id |
//! | `Denied` | node | | the request does not fit; nothing was written |
//! | `Refused` | node | | the attempt was rolled back; nothing was written |
//! | `NoScript` | node | | the store does not know the script: send the whole script |
//! | `TakeBack` | store | id, attempt | rolls back: no client was admitted by this attempt |
//! | `TakenBack` | node | | confirms the rollback |
//!
//! # Late arrivals
//!
//! A connection keeps its order. So an attempt arrives after its own rollback only if it was sent
//! on an older connection. A rollback raises the **fence** of its node to the number of the
//! connection that it came on; the store refuses messages on older connections. Ids that the node
//! made need nothing else: the rollback removes their charge by id. An id of a caller has a record
//! with every attempt that relies on the charge, as in [`cross_slot`](super::cross_slot): the
//! rollback of the last one refunds the charge.
//!
//! An attempt that was sent again and then denied is rolled back as well: its first message may
//! still be in flight, and fit when it arrives.
//!
//! One case breaks the order of a connection: a batch that is sent again because the store forgot
//! the script. It leaves out attempts that were given up meanwhile.
//!
//! # Invariants
//!
//! | | |
//! |---|---|
//! | U1 | no window holds more than its limit of requests that the store admitted |
//! | U2 | a request that the store admitted stays charged for its window |
//! | U3 | a request that the outage policy admitted is not rolled back |
//! | U4 | at the end, a denied request is not charged, unless its node crashed |
//! | U5 | an attempt is refused only after its rollback, or on a connection that was given up |

mod check;
mod node;
mod store;

use std::fmt;

use sluicegate_core::Span;
use sluicegate_core::algorithm::log::LogQuota;

use super::explore::{Run, Tracing};
use super::process::{FaultRates, ProcessState};
use super::rng::Rng;
use super::scheduler::Scheduler;
use check::Check;
use node::{AttemptResult, Node};
use store::Store;

/// Maximum delay of a message.
const DELAY_MAX: Span = Span::from_millis(300);
const STALL_MAX: Span = Span::from_millis(200);
const DOWN_MAX: Span = Span::from_millis(100);
const STORMY: Span = Span::from_millis(900);

/// A bug that an implementation could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOutMistake {
    /// A late message on an old connection is charged.
    NoFence,
    /// The fence also refuses messages on the connection of the rollback.
    FenceTooHigh,
    /// All nodes share one fence.
    FenceForAll,
    /// A repeated batch contains attempts that were given up meanwhile.
    ResendsGivenUp,
    /// A denial ends an attempt that was sent before on another connection.
    DeniedIsDone,
    /// A rollback is sent once, even if it is lost.
    TakeBackOnce,
    /// A rollback refunds the charge of an id even if other attempts rely on it.
    TakeBackById,
    /// A retry that shares an earlier charge is not recorded as relying on it.
    ReplayNotNoted,
    /// After one attempt was rolled back, its id is always refused.
    RefusesTheId,
    /// Requests that the outage policy admits are rolled back, too.
    TakesBackAdmitted,
}

/// Runs the simulation of a seed.
pub fn run(seed: u64, mistake: Option<TimedOutMistake>, tracing: Tracing) -> Run {
    let mut simulation = Simulation::random(seed, mistake, tracing);
    simulation.play();
    let finding = simulation.check.left_over();
    simulation.sim.report(finding);
    simulation.sim.finish()
}

type Sim = Scheduler<Event>;

/// The request that a message is about. Only the checks use `client`.
#[derive(Clone, Copy)]
struct Work {
    client: usize,
    id: u64,
    attempt: u64,
    /// True if the caller made the id and may use it again.
    of_caller: bool,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} attempt {}", self.client, self.attempt)
    }
}

/// A connection of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    node: usize,
    number: u64,
}

#[derive(Clone, Debug)]
enum Event {
    /// A client's request reaches a node.
    Request { client: usize, node: usize },
    /// A message reaches the store.
    Message { over: Connection, work: Work, operation: Operation },
    /// A reply reaches a node.
    Reply { over: Connection, work: Work, answer: Reply },
    /// A timer of a node is due.
    Due { node: usize, attempt: u64, step: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Sent with the whole script, or with its hash.
    Acquire {
        whole: bool,
    },
    TakeBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Allowed,
    Denied,
    Refused,
    NoScript,
    TakenBack,
}

/// A client that sends a request to a node, and may send it again.
struct Client {
    /// True if the client makes the request id; otherwise the node makes one for each request.
    names_it: bool,
    questions: u32,
    questions_max: u32,
}

impl Client {
    fn random(rng: &mut Rng) -> Self {
        Self {
            names_it: rng.chance(600),
            questions: 0,
            questions_max: if rng.chance(600) { 3 } else { 1 },
        }
    }

    fn ask(&mut self, sim: &mut Sim, number: usize, nodes: usize, delay_us: u64) {
        if self.questions < self.questions_max {
            self.questions += 1;
            let node = sim.rng.index(nodes);
            sim.after(delay_us, Event::Request { client: number, node });
        }
    }
}

struct Simulation {
    sim: Sim,
    faults: FaultRates,
    check: Check,
    store: Store,
    nodes: Vec<Node>,
    clients: Vec<Client>,
}

impl Simulation {
    fn random(seed: u64, mistake: Option<TimedOutMistake>, tracing: Tracing) -> Self {
        let mut sim = Sim::new(seed, tracing, DELAY_MAX, STORMY);
        let rng = &mut sim.rng;
        let faults = FaultRates::random(rng, STALL_MAX);
        let window = Span::from_millis(rng.between(300, 3_000));
        let quota = LogQuota { limit: rng.between(1, 4), window };
        let store = Store::random(quota, rng, mistake);
        let nodes: Vec<_> = (0..rng.index(2) + 1).map(|n| Node::random(n, rng, mistake)).collect();
        let mut clients: Vec<_> = (0..rng.between(4, 12)).map(|_| Client::random(rng)).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            let delay_us = sim.rng.between(0, 500_000);
            client.ask(&mut sim, number, nodes.len(), delay_us);
        }
        sim.note(|| format!("{}/{window}", quota.limit));
        Self { sim, faults, check: Check::new(quota), store, nodes, clients }
    }

    fn play(&mut self) {
        while let Some(event) = self.sim.next() {
            match event {
                Event::Message { over, work, operation } => self.message(over, work, operation),
                Event::Request { node, .. }
                | Event::Reply { over: Connection { node, .. }, .. }
                | Event::Due { node, .. } => self.node(node, event),
            }
            let finding = self.check.take_finding();
            self.sim.report(finding);
        }
    }

    /// Lets the store handle a message and reply.
    fn message(&mut self, over: Connection, work: Work, operation: Operation) {
        let (sim, check) = (&mut self.sim, &mut self.check);
        let live = self.nodes[over.node].connection() == over;
        let Some(answer) = self.store.handle(sim, over, work, operation, check) else {
            sim.count("refused by the fence");
            sim.note(|| format!("refused by the fence: {operation:?} of {work:?} over {over:?}"));
            if live {
                check.found(format!("U5: {work:?} is refused on a live connection"));
            }
            return;
        };
        sim.note(|| format!("store to {over:?}: {answer:?} for {work:?}"));
        let delay_us = self.nodes[over.node].delay_us(sim);
        sim.after(delay_us, Event::Reply { over, work, answer });
    }

    fn node(&mut self, number: usize, event: Event) {
        let (sim, node) = (&mut self.sim, &mut self.nodes[number]);
        match node.process.draw_state(sim, self.faults, || format!("node {number}"), &event) {
            ProcessState::Runs => {}
            ProcessState::Stalls | ProcessState::Dead => return,
            ProcessState::Crashes => {
                let down_us = sim.now_us() + sim.rng.between(1_000, DOWN_MAX.as_micros());
                node.process.down_until(down_us);
                node.crash().into_iter().for_each(|attempt| self.check.orphaned(attempt));
                return;
            }
        }
        let told = match event {
            Event::Request { client, .. } => {
                node.ask(sim, client, self.clients[client].names_it);
                None
            }
            Event::Reply { over, work, answer } => node.answer(sim, over, work, answer),
            Event::Due { attempt, step, .. } => node.due(sim, attempt, step),
            Event::Message { .. } => None,
        };
        let Some((work, told)) = told else { return };
        sim.note(|| format!("node {number} tells {work:?}: {told:?}"));
        match told {
            AttemptResult::Allowed => {
                sim.count("allowed");
                self.check.admitted(work);
            }
            AttemptResult::ByPolicy => {
                sim.count("admitted by the policy");
                self.check.admitted_by_policy(work);
            }
            AttemptResult::Denied | AttemptResult::GivenUp => {
                sim.count(if told == AttemptResult::Denied { "denied" } else { "given up" });
                let delay_us = sim.rng.between(100, 120_000);
                let nodes = self.nodes.len();
                self.clients[work.client].ask(&mut self.sim, work.client, nodes, delay_us);
            }
        }
    }
}
