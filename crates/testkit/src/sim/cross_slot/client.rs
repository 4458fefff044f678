//! [`Client`]: sends a request to a node, and may send it again under the same id.

use super::node::AttemptResult;
use super::slot::Slot;
use super::{CounterIndex, Event, Sim};
use crate::sim::rng::Rng;

/// Timeout of a request to a node.
const PATIENCE_US: u64 = 60_000;

pub(super) struct Client {
    /// Counters that its request is charged on, in two or three slots.
    pub(super) plan: Vec<CounterIndex>,
    questions: u32,
    questions_max: u32,
    reply: Option<AttemptResult>,
}

impl Client {
    pub(super) fn random(rng: &mut Rng, slots: &[Slot]) -> Self {
        let skipped = (slots.len() > 2 && rng.chance(500)).then(|| rng.index(slots.len()));
        let mut plan = Vec::new();
        for (slot, counters) in slots.iter().map(|slot| slot.counters.len()).enumerate() {
            if skipped == Some(slot) {
                continue;
            }
            let first = rng.index(counters);
            plan.push((slot, first));
            if counters > 1 && rng.chance(200) {
                plan.push((slot, 1 - first));
            }
        }
        let questions_max = if rng.chance(500) { 3 } else { 1 };
        Self { plan, questions: 0, questions_max, reply: None }
    }

    /// Creates a client that is charged on every counter.
    pub(super) fn of_everything(slots: &[Slot]) -> Self {
        let places = slots.iter().enumerate();
        let plan = places
            .flat_map(|(slot, kept)| (0..kept.counters.len()).map(move |counter| (slot, counter)))
            .collect();
        Self { plan, questions: 0, questions_max: 1, reply: None }
    }

    /// Sends the request to a random node, `delay_us` from now.
    pub(super) fn ask(&mut self, sim: &mut Sim, number: usize, nodes: usize, delay_us: u64) {
        self.questions += 1;
        let node = sim.rng.index(nodes);
        sim.after(delay_us, Event::Request { client: number, node });
        let operation = self.questions;
        sim.after(delay_us + PATIENCE_US, Event::Waited { client: number, operation });
    }

    /// Handles the reply of a node. After a denial it may ask again under the same id.
    pub(super) fn on_reply(
        &mut self,
        sim: &mut Sim,
        number: usize,
        reply: AttemptResult,
        nodes: usize,
    ) {
        self.reply = Some(reply);
        if reply == AttemptResult::Deny && self.questions < self.questions_max {
            sim.count("asked again after a denial");
            let delay_us = sim.rng.between(100, 120_000);
            self.ask(sim, number, nodes, delay_us);
        }
    }

    /// Handles the timeout of a request. Without a reply it asks another node.
    pub(super) fn waited(&mut self, sim: &mut Sim, number: usize, operation: u32, nodes: usize) {
        let silent = self.reply.is_none() && self.questions == operation;
        if silent && self.questions < self.questions_max {
            sim.count("asked another node");
            self.ask(sim, number, nodes, 0);
        }
    }
}
