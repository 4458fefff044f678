//! [`Store`]: the simulated store, with a counter, one record per id of a caller, and one fence per
//! node.

use std::collections::BTreeMap;

use sluicegate_core::algorithm::log::Quota;

use super::check::Check;
use super::{Answer, Connection, Mistake, Question, Sim, Work};
use crate::sim::counter::{Counter, GiveBack, Mark};
use crate::sim::rng::Rng;

pub(super) struct Store {
    counter: Counter,
    /// Messages per thousand at which it has forgotten its scripts.
    forgets_per_mille: u64,
    /// Charges of ids that nodes made.
    once: BTreeMap<u64, Mark>,
    /// Charges of ids that callers made, and the attempts that rely on them.
    records: BTreeMap<u64, Record>,
    /// Fence of each node: messages on connections below this number are refused.
    fences: BTreeMap<usize, u64>,
    mistake: Option<Mistake>,
}

#[derive(Default)]
struct Record {
    charged: Option<Mark>,
    attempts: BTreeMap<u64, Standing>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It relies on the charge.
    Holds,
    /// It does not rely on a charge, and never will.
    TakenBack,
}

impl Store {
    pub(super) fn drawn(quota: Quota, rng: &mut Rng, mistake: Option<Mistake>) -> Self {
        Self {
            counter: Counter::log(vec![quota]),
            forgets_per_mille: rng.between(0, 80),
            once: BTreeMap::new(),
            records: BTreeMap::new(),
            fences: BTreeMap::new(),
            mistake,
        }
    }

    /// Executes one script call; returns no reply if the fence refuses it.
    pub(super) fn handle(
        &mut self,
        sim: &mut Sim,
        over: Connection,
        work: Work,
        question: Question,
        check: &mut Check,
    ) -> Option<Answer> {
        let forgot = sim.stormy() && sim.rng.chance(self.forgets_per_mille);
        if question == (Question::Acquire { whole: false }) && forgot {
            sim.saw("forgot the script");
            return Some(Answer::NoScript);
        }
        let node = if self.mistake == Some(Mistake::FenceForAll) { 0 } else { over.node };
        let fence = self.fences.get(&node).copied().unwrap_or_default();
        if fence > over.number && self.mistake != Some(Mistake::NoFence) {
            return None;
        }
        if question == Question::TakeBack {
            let number = match self.mistake {
                Some(Mistake::FenceTooHigh) => over.number + 1,
                _ => over.number,
            };
            self.fences.insert(node, number);
            self.take_back(sim, work, check);
            return Some(Answer::TakenBack);
        }
        let answer = self.acquire(sim, work, check);
        if answer == Answer::Refused {
            check.refused(work);
        }
        Some(answer)
    }

    fn acquire(&mut self, sim: &mut Sim, work: Work, check: &mut Check) -> Answer {
        let now = sim.clock(0);
        if work.of_caller {
            let record = self.records.entry(work.id).or_default();
            let taken_back = |standing: &Standing| *standing == Standing::TakenBack;
            let refuses_the_id = self.mistake == Some(Mistake::RefusesTheId);
            if record.attempts.get(&work.attempt).is_some_and(taken_back)
                || refuses_the_id && record.attempts.values().any(taken_back)
            {
                return Answer::Refused;
            }
            if record.charged.is_some() {
                if !record.attempts.contains_key(&work.attempt) {
                    sim.saw("relies on an earlier attempt");
                }
                if self.mistake != Some(Mistake::ReplayNotNoted) {
                    record.attempts.insert(work.attempt, Standing::Holds);
                }
                check.shared(work);
                return Answer::Allowed;
            }
        } else if self.once.contains_key(&work.id) {
            return Answer::Allowed;
        }
        if self.counter.earliest(now) > now {
            return Answer::Denied;
        }
        let mark = self.counter.take(now);
        check.charged(work, now);
        if work.of_caller {
            let record = self.records.entry(work.id).or_default();
            record.charged = Some(mark);
            record.attempts.insert(work.attempt, Standing::Holds);
        } else {
            self.once.insert(work.id, mark);
        }
        Answer::Allowed
    }

    fn take_back(&mut self, sim: &mut Sim, work: Work, check: &mut Check) {
        let now = sim.clock(0);
        check.taken_back(work);
        let mark = if work.of_caller {
            let record = self.records.entry(work.id).or_default();
            let before = record.attempts.insert(work.attempt, Standing::TakenBack);
            let held = record.attempts.values().any(|standing| *standing == Standing::Holds);
            let last = before == Some(Standing::Holds) && !held;
            if last || self.mistake == Some(Mistake::TakeBackById) {
                record.charged.take()
            } else {
                if held && before == Some(Standing::Holds) {
                    sim.saw("another relies on it");
                }
                None
            }
        } else {
            self.once.remove(&work.id)
        };
        if let Some(mark) = mark {
            sim.saw("given back");
            self.counter.give_back(mark, now, GiveBack::Safe);
            check.given_back(work, now);
        }
    }
}
