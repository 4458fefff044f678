//! A limiter with a real store that reports its decisions to an observer.

use std::sync::Arc;

use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{Group, InlineRule, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::{Decision, Id, Limit, Span, Store};
use sluicegate_service::answer::Answer;
use sluicegate_service::{DecisionEvent, Observer, Operation};
use sluicegate_store::memory::{Capacity, Memory};
use sluicegate_testkit::ManualClock;
use sluicegate_testkit::suite::EPOCH;

/// Rules and a store, with a clock that does not move.
pub(crate) struct Limiter {
    pub(crate) rules: Ruleset,
    pub(crate) store: Memory<Arc<ManualClock>>,
    pub(crate) clock: Arc<ManualClock>,
}

/// A request of a test.
#[derive(Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) id: RequestId,
    pub(crate) who: &'a [(&'a str, &'a str)],
    pub(crate) cost: Cost,
    pub(crate) hold: Option<Span>,
    pub(crate) inline: Vec<InlineRule>,
    pub(crate) operation: Operation,
    pub(crate) latency: Span,
}

impl<'a> Ask<'a> {
    /// Creates an acquire that takes 100 µs.
    pub(crate) fn new(id: u128, who: &'a [(&'a str, &'a str)]) -> Self {
        Self {
            id: RequestId::ours(Id::from_bits(id)),
            who,
            cost: Cost::default(),
            hold: None,
            inline: Vec::new(),
            operation: Operation::Acquire,
            latency: Span::from_micros(100),
        }
    }

    pub(crate) fn query(&self) -> Query<'a> {
        let mut query = Query::new(self.id);
        for &(name, value) in self.who {
            query.insert(name, value).expect("a dimension");
        }
        query.cost = self.cost;
        query.hold = self.hold;
        query.inline = self.inline.clone();
        query
    }
}

impl Limiter {
    pub(crate) fn new(groups: Vec<Group>) -> Self {
        Self::with(groups, Settings::default())
    }

    pub(crate) fn with(groups: Vec<Group>, settings: Settings) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        Self { rules: Ruleset::new(groups, settings).expect("rules"), store, clock }
    }

    /// Decides and notifies the observer.
    pub(crate) fn ask(&self, observer: &impl Observer, ask: &Ask<'_>) -> Decision {
        let query = ask.query();
        let plan = self.rules.plan(&query, EPOCH).expect("a plan");
        let decision = pollster::block_on(async {
            match ask.operation {
                Operation::Acquire => self.store.acquire(&plan).await,
                Operation::Peek => self.store.peek(&plan).await,
                Operation::Book => self.store.book(&plan).await,
                other => panic!("{} does not decide", other.name()),
            }
        });
        let decision = decision.expect("a decision");
        observer.on_decision(&DecisionEvent {
            query: &query,
            answer: Answer::new(&self.rules, &plan, &decision),
            operation: ask.operation,
            claimant: None,
            started: EPOCH,
            latency: ask.latency,
            trace: None,
        });
        decision
    }
}

/// Creates a rule with these limits.
pub(crate) fn rule(name: &str, per: &[&str], limits: &[&str]) -> Rule {
    let limits = limits.iter().map(|limit| limit.parse::<Limit>().expect("a limit"));
    Rule::new(name, limits).per(per)
}

/// Puts each rule into a separate group, so that all must pass.
pub(crate) fn all_of(rules: impl IntoIterator<Item = Rule>) -> Vec<Group> {
    rules.into_iter().map(|rule| Group::new(format!("{} only", rule.name), [rule])).collect()
}
