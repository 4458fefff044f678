//! Runs one test case on a limiter of its own: the real rules and the real memory store, with a
//! virtual clock.

use std::collections::HashMap;
use std::sync::Arc;

use pollster::block_on;
use sluicegate_config::{Config, Position};
use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Query, QueryError, RequestId, RuleScope};
use sluicegate_core::store::{EndResult, Error};
use sluicegate_core::{Id, Limiter, Span, Store as _, Timestamp};
use sluicegate_service::{DecisionMode, Service};
use sluicegate_store::memory::Capacity;
use sluicegate_store::{AnyStore, Memory};

use super::clock::VirtualClock;
use super::expect::Mismatch;
use super::result::{StepOutcome, StepResult};
use super::step::{Case, Dimensions, NUMBER, OtherAction, RequestCalls, Step, StepAction};

/// A failed test: its first step with an unexpected result.
pub(super) struct Failure {
    pub(super) at: Position,
    /// Number of the step, from 1.
    pub(super) step: usize,
    pub(super) when: Span,
    pub(super) action: String,
    pub(super) mismatches: Vec<Mismatch>,
    pub(super) result: StepResult,
}

/// Runs a test case.
pub(super) fn run(config: &Config, case: &Case) -> Result<(), Box<Failure>> {
    let mut run = TestRun::new(config, case.start);
    let mut steps = case.steps.iter().zip(1..);
    steps.try_for_each(|(step, number)| run.step(step, number))
}

struct TestRun {
    start: Timestamp,
    clock: Arc<VirtualClock>,
    service: Service,
    /// Handles of the reservations, by the id in the test.
    handles: HashMap<String, Handle>,
}

impl TestRun {
    fn new(config: &Config, start: Timestamp) -> Self {
        let clock = Arc::new(VirtualClock::new(start));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let limiter = Limiter::new(config.ruleset().clone(), AnyStore::custom(store));
        let service = Service::new(limiter, clock.clone(), Vec::new());
        Self { start, clock, service, handles: HashMap::new() }
    }

    fn step(&mut self, step: &Step, number: usize) -> Result<(), Box<Failure>> {
        self.clock.set(self.start + step.when);
        let failed = |when, action, mismatches, result| {
            let at = step.at;
            Err(Box::new(Failure { at, step: number, when, action, mismatches, result }))
        };
        let (operation, calls) = match &step.action {
            StepAction::Request(operation, calls) => (*operation, calls),
            StepAction::Other(other) => {
                let result = self.run_other(other);
                let mismatches = step.expected.compare(&result);
                if mismatches.is_empty() {
                    return Ok(());
                }
                return failed(step.when, other.to_string(), mismatches, result);
            }
        };
        let mut outcomes = OutcomeCounts::default();
        let (mut when, mut last) = (step.when, StepResult::outcome(StepOutcome::Done));
        for call in 1..=calls.times {
            if call > 1 {
                when = when + calls.every;
                self.clock.set(self.start + when);
            }
            last = self.send(calls, call, operation);
            outcomes.count(last.outcome);
            if !step.expected.counts.is_empty() {
                continue;
            }
            let mismatches = step.expected.compare(&last);
            if !mismatches.is_empty() {
                let action = match calls.times {
                    1 => step.action.to_string(),
                    times => format!("{}, call {call} of {times}", step.action),
                };
                return failed(when, action, mismatches, last);
            }
        }
        let mismatches = outcomes.compare(&step.expected.counts);
        if mismatches.is_empty() {
            return Ok(());
        }
        failed(when, format!("{}, {} calls", step.action, calls.times), mismatches, last)
    }

    fn send(&mut self, calls: &RequestCalls, call: u64, question: DecisionMode) -> StepResult {
        let name = calls.id.as_ref().map(|id| id.replace(NUMBER, &call.to_string()));
        let id = match &name {
            Some(name) => RequestId::of_caller(Id::scoped("test", name), RequestId::KEEP),
            None => self.service.request_id(),
        };
        let mut query = match query(id, &calls.dimensions, call) {
            Ok(query) => query,
            Err(error) => return StepResult::invalid(&error),
        };
        query.cost = calls.cost;
        query.hold = calls.hold;
        let mut handle = None;
        let queries = [query];
        let decided = self.service.decide(&queries, question, |answer| {
            handle = answer.decision().is_allowed().then(|| answer.plan().handle());
            StepResult::decision(answer)
        });
        let result = block_on(decided).unwrap_or_else(StepResult::from);
        self.handles.extend(name.zip(handle));
        result
    }

    fn run_other(&self, action: &OtherAction) -> StepResult {
        let store = self.service.limiter().store();
        match action {
            OtherAction::Usage(dimensions) => self.usage(dimensions),
            OtherAction::Reset(dimensions) => self.reset(dimensions),
            OtherAction::Settle { id, cost } => {
                self.with(id, |handle| block_on(store.settle(handle, cost)).map(ended))
            }
            OtherAction::Release { id } => {
                self.with(id, |handle| block_on(store.release(handle)).map(ended))
            }
            OtherAction::Cancel { id } => {
                self.with(id, |handle| block_on(store.cancel(handle)).map(ended))
            }
            OtherAction::Renew { id } => {
                self.with(id, |handle| block_on(store.renew(handle)).map(|_| StepOutcome::Done))
            }
        }
    }

    fn with(
        &self,
        id: &str,
        run: impl FnOnce(&Handle) -> Result<StepOutcome, Error>,
    ) -> StepResult {
        let unnamed = Handle { id: Id::scoped("test", id), claimant: None, keys: Vec::new() };
        match run(self.handles.get(id).unwrap_or(&unnamed)) {
            Ok(outcome) => StepResult::outcome(outcome),
            Err(error) => StepResult::failed(&error),
        }
    }

    fn usage(&self, dimensions: &Dimensions) -> StepResult {
        let query = match query(self.service.request_id(), dimensions, 1) {
            Ok(query) => query,
            Err(error) => return StepResult::invalid(&error),
        };
        let read = self.service.with_plan(&query, async |store, _, plan| {
            let usage = store.usage(plan).await?;
            Ok(StepResult::usage(usage.at, plan, &usage.readings))
        });
        block_on(read).unwrap_or_else(StepResult::from)
    }

    fn reset(&self, dimensions: &Dimensions) -> StepResult {
        let mut query = match query(self.service.request_id(), dimensions, 1) {
            Ok(query) => query,
            Err(error) => return StepResult::invalid(&error),
        };
        query.rule_scope = RuleScope::View;
        let reset = self.service.with_plan(&query, async |store, _, plan| {
            store.reset(plan).await.map(|_| StepResult::outcome(StepOutcome::Done))
        });
        block_on(reset).unwrap_or_else(StepResult::from)
    }
}

fn query(id: RequestId, dimensions: &Dimensions, call: u64) -> Result<Query<'_>, QueryError> {
    let mut query = Query::new(id);
    for (name, value) in &dimensions.0 {
        if value.contains(NUMBER) {
            query.insert(name.as_str(), value.replace(NUMBER, &call.to_string()))?;
        } else {
            query.insert(name.as_str(), value.as_str())?;
        }
    }
    Ok(query)
}

fn ended(ended: EndResult) -> StepOutcome {
    if ended.replayed { StepOutcome::Replayed } else { StepOutcome::Done }
}

/// Number of calls per outcome.
#[derive(Default)]
struct OutcomeCounts(Vec<(StepOutcome, u64)>);

impl OutcomeCounts {
    fn count(&mut self, outcome: StepOutcome) {
        match self.0.iter_mut().find(|(other, _)| *other == outcome) {
            Some((_, count)) => *count += 1,
            None => self.0.push((outcome, 1)),
        }
    }

    fn compare(&self, expected: &[(StepOutcome, u64)]) -> Vec<Mismatch> {
        let got =
            |outcome| self.0.iter().find(|(other, _)| *other == outcome).map_or(0, |(_, n)| *n);
        let wrong = expected.iter().filter(|&&(outcome, count)| got(outcome) != count);
        wrong
            .map(|&(outcome, count)| Mismatch {
                what: outcome.to_string(),
                expected: format!("{count} calls"),
                got: got(outcome).to_string(),
            })
            .collect()
    }
}
