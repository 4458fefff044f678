//! [`Store`]: the simulated store, with a counter, one record per id of a caller, and one fence per
//! node.

use std::collections::BTreeMap;

use sluicegate_core::algorithm::log::LogQuota;

use super::check::Check;
use super::{Connection, Operation, Reply, Sim, TimedOutMistake, Work};
use crate::sim::counter::{ChargeMark, Counter, RefundMode};
use crate::sim::rng::Rng;

pub(super) struct Store {
    counter: Counter,
    /// Messages per thousand at which it has forgotten its scripts.
    forgets_per_mille: u64,
    /// Charges of ids that nodes made.
    once: BTreeMap<u64, ChargeMark>,
    /// Charges of ids that callers made, and the attempts that rely on them.
    records: BTreeMap<u64, Record>,
    /// Fence of each node: messages on connections below this number are refused.
    fences: BTreeMap<usize, u64>,
    mistake: Option<TimedOutMistake>,
}

#[derive(Default)]
struct Record {
    charged: Option<ChargeMark>,
    attempts: BTreeMap<u64, AttemptState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AttemptState {
    /// It relies on the charge.
    Holds,
    /// It does not rely on a charge, and never will.
    TakenBack,
}

impl Store {
    pub(super) fn random(quota: LogQuota, rng: &mut Rng, mistake: Option<TimedOutMistake>) -> Self {
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
        operation: Operation,
        check: &mut Check,
    ) -> Option<Reply> {
        let forgot = sim.stormy() && sim.rng.chance(self.forgets_per_mille);
        if operation == (Operation::Acquire { whole: false }) && forgot {
            sim.count("forgot the script");
            return Some(Reply::NoScript);
        }
        let node = if self.mistake == Some(TimedOutMistake::FenceForAll) { 0 } else { over.node };
        let fence = self.fences.get(&node).copied().unwrap_or_default();
        if fence > over.number && self.mistake != Some(TimedOutMistake::NoFence) {
            return None;
        }
        if operation == Operation::TakeBack {
            let number = match self.mistake {
                Some(TimedOutMistake::FenceTooHigh) => over.number + 1,
                _ => over.number,
            };
            self.fences.insert(node, number);
            self.take_back(sim, work, check);
            return Some(Reply::TakenBack);
        }
        let answer = self.acquire(sim, work, check);
        if answer == Reply::Refused {
            check.refused(work);
        }
        Some(answer)
    }

    fn acquire(&mut self, sim: &mut Sim, work: Work, check: &mut Check) -> Reply {
        let now = sim.clock(0);
        if work.of_caller {
            let record = self.records.entry(work.id).or_default();
            let taken_back = |standing: &AttemptState| *standing == AttemptState::TakenBack;
            let refuses_the_id = self.mistake == Some(TimedOutMistake::RefusesTheId);
            if record.attempts.get(&work.attempt).is_some_and(taken_back)
                || refuses_the_id && record.attempts.values().any(taken_back)
            {
                return Reply::Refused;
            }
            if record.charged.is_some() {
                if !record.attempts.contains_key(&work.attempt) {
                    sim.count("relies on an earlier attempt");
                }
                if self.mistake != Some(TimedOutMistake::ReplayNotNoted) {
                    record.attempts.insert(work.attempt, AttemptState::Holds);
                }
                check.shared(work);
                return Reply::Allowed;
            }
        } else if self.once.contains_key(&work.id) {
            return Reply::Allowed;
        }
        if self.counter.earliest(now) > now {
            return Reply::Denied;
        }
        let mark = self.counter.take(now);
        check.charged(work, now);
        if work.of_caller {
            let record = self.records.entry(work.id).or_default();
            record.charged = Some(mark);
            record.attempts.insert(work.attempt, AttemptState::Holds);
        } else {
            self.once.insert(work.id, mark);
        }
        Reply::Allowed
    }

    fn take_back(&mut self, sim: &mut Sim, work: Work, check: &mut Check) {
        let now = sim.clock(0);
        check.taken_back(work);
        let mark = if work.of_caller {
            let record = self.records.entry(work.id).or_default();
            let before = record.attempts.insert(work.attempt, AttemptState::TakenBack);
            let held = record.attempts.values().any(|standing| *standing == AttemptState::Holds);
            let last = before == Some(AttemptState::Holds) && !held;
            if last || self.mistake == Some(TimedOutMistake::TakeBackById) {
                record.charged.take()
            } else {
                if held && before == Some(AttemptState::Holds) {
                    sim.count("another relies on it");
                }
                None
            }
        } else {
            self.once.remove(&work.id)
        };
        if let Some(mark) = mark {
            sim.count("given back");
            self.counter.give_back(mark, now, RefundMode::Safe);
            check.given_back(work, now);
        }
    }
}
