//! Runs one test case on a limiter of its own: the real rules and the real memory store, with a
//! virtual clock.

use std::collections::HashMap;
use std::sync::Arc;

use pollster::block_on;
use sluicegate_config::Config;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Query, QueryError, RequestId, Subject};
use sluicegate_core::store::{Ended, Error};
use sluicegate_core::{Id, Limiter, Span, Store as _, Timestamp};
use sluicegate_service::{Question, Service};
use sluicegate_store::memory::Capacity;
use sluicegate_store::{AnyStore, Memory};

use super::clock::VirtualClock;
use super::expect::Mismatch;
use super::observe::{Observed, Word};
use super::step::{Action, Calls, Case, Dimensions, NUMBER, Once, Step};
use super::yaml::Mark;

/// A failed test: its first step with an unexpected result.
pub(super) struct Failure {
    pub(super) at: Mark,
    /// Number of the step, from 1.
    pub(super) step: usize,
    pub(super) when: Span,
    pub(super) action: String,
    pub(super) mismatches: Vec<Mismatch>,
    pub(super) observed: Observed,
}

/// Runs a test case.
pub(super) fn run(config: &Config, case: &Case) -> Result<(), Box<Failure>> {
    let mut world = World::new(config, case.start);
    let mut steps = case.steps.iter().zip(1..);
    steps.try_for_each(|(step, number)| world.step(step, number))
}

struct World {
    start: Timestamp,
    clock: Arc<VirtualClock>,
    service: Service,
    /// Handles of the reservations, by the id in the test.
    handles: HashMap<String, Handle>,
}

impl World {
    fn new(config: &Config, start: Timestamp) -> Self {
        let clock = Arc::new(VirtualClock::new(start));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        let limiter = Limiter::new(config.ruleset(), AnyStore::custom(store));
        let service = Service::new(limiter, clock.clone(), Vec::new());
        Self { start, clock, service, handles: HashMap::new() }
    }

    fn step(&mut self, step: &Step, number: usize) -> Result<(), Box<Failure>> {
        self.clock.set(self.start + step.when);
        let failed = |when, action, mismatches, observed| {
            let at = step.at;
            Err(Box::new(Failure { at, step: number, when, action, mismatches, observed }))
        };
        let (operation, calls) = match &step.action {
            Action::Ask(operation, calls) => (*operation, calls),
            Action::Once(once) => {
                let observed = self.once(once);
                let mismatches = step.expected.compare(&observed);
                if mismatches.is_empty() {
                    return Ok(());
                }
                return failed(step.when, once.to_string(), mismatches, observed);
            }
        };
        let mut tally = Tally::default();
        let (mut when, mut last) = (step.when, Observed::word(Word::Done));
        for call in 1..=calls.times {
            if call > 1 {
                when = when + calls.every;
                self.clock.set(self.start + when);
            }
            last = self.ask(calls, call, operation);
            tally.count(last.word);
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
        let mismatches = tally.compare(&step.expected.counts);
        if mismatches.is_empty() {
            return Ok(());
        }
        failed(when, format!("{}, {} calls", step.action, calls.times), mismatches, last)
    }

    fn ask(&mut self, calls: &Calls, call: u64, question: Question) -> Observed {
        let name = calls.id.as_ref().map(|id| id.replace(NUMBER, &call.to_string()));
        let id = match &name {
            Some(name) => RequestId::of_caller(Id::scoped("test", name), RequestId::KEEP),
            None => self.service.request_id(),
        };
        let mut query = match query(id, &calls.dimensions, call) {
            Ok(query) => query,
            Err(error) => return Observed::invalid(&error),
        };
        query.cost = calls.cost;
        query.hold = calls.hold;
        let mut handle = None;
        let queries = [query];
        let told = self.service.decide(&queries, question, |answer| {
            handle = answer.decision().is_allowed().then(|| answer.plan().handle());
            Observed::decision(answer)
        });
        let observed = block_on(told).unwrap_or_else(Observed::from);
        self.handles.extend(name.zip(handle));
        observed
    }

    fn once(&self, once: &Once) -> Observed {
        let store = self.service.limiter().store();
        match once {
            Once::Usage(dimensions) => self.usage(dimensions),
            Once::Reset(dimensions) => self.reset(dimensions),
            Once::Settle { id, cost } => {
                self.with(id, |handle| block_on(store.settle(handle, cost)).map(ended))
            }
            Once::Release { id } => {
                self.with(id, |handle| block_on(store.release(handle)).map(ended))
            }
            Once::Cancel { id } => {
                self.with(id, |handle| block_on(store.cancel(handle)).map(ended))
            }
            Once::Renew { id } => {
                self.with(id, |handle| block_on(store.renew(handle)).map(|_| Word::Done))
            }
        }
    }

    fn with(&self, id: &str, run: impl FnOnce(&Handle) -> Result<Word, Error>) -> Observed {
        let unnamed = Handle { id: Id::scoped("test", id), claimant: None, keys: Vec::new() };
        match run(self.handles.get(id).unwrap_or(&unnamed)) {
            Ok(word) => Observed::word(word),
            Err(error) => Observed::failed(&error),
        }
    }

    fn usage(&self, dimensions: &Dimensions) -> Observed {
        let query = match query(self.service.request_id(), dimensions, 1) {
            Ok(query) => query,
            Err(error) => return Observed::invalid(&error),
        };
        let read = self.service.with_plan(&query, async |store, _, plan| {
            let usage = store.usage(plan).await?;
            Ok(Observed::usage(usage.at, plan, &usage.readings))
        });
        block_on(read).unwrap_or_else(Observed::from)
    }

    fn reset(&self, dimensions: &Dimensions) -> Observed {
        let mut query = match query(self.service.request_id(), dimensions, 1) {
            Ok(query) => query,
            Err(error) => return Observed::invalid(&error),
        };
        query.subject = Subject::View;
        let reset = self.service.with_plan(&query, async |store, _, plan| {
            store.reset(plan).await.map(|_| Observed::word(Word::Done))
        });
        block_on(reset).unwrap_or_else(Observed::from)
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

fn ended(ended: Ended) -> Word {
    if ended.replayed { Word::Replayed } else { Word::Done }
}

/// Number of calls per outcome.
#[derive(Default)]
struct Tally(Vec<(Word, u64)>);

impl Tally {
    fn count(&mut self, word: Word) {
        match self.0.iter_mut().find(|(other, _)| *other == word) {
            Some((_, count)) => *count += 1,
            None => self.0.push((word, 1)),
        }
    }

    fn compare(&self, expected: &[(Word, u64)]) -> Vec<Mismatch> {
        let got = |word| self.0.iter().find(|(other, _)| *other == word).map_or(0, |(_, n)| *n);
        let wrong = expected.iter().filter(|&&(word, count)| got(word) != count);
        wrong
            .map(|&(word, count)| Mismatch {
                what: word.to_string(),
                expected: format!("{count} calls"),
                got: got(word).to_string(),
            })
            .collect()
    }
}
