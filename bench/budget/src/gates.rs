//! Limiters that keep a budget: ours in two modes, and the check-then-add of gateways without
//! reservations.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{EstimateMode, Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::Clock;
use sluicegate_core::{Id, Limit, Money, Span, Store as _, Timestamp};
use sluicegate_store::memory::{Capacity, Memory};

use crate::traffic::{BEGIN, Work};

/// The budget of every run: 10 dollars in any hour.
pub(crate) const BUDGET: u64 = 10_000_000_000;
pub(crate) const WINDOW: Span = Span::from_secs(3_600);
const LIMIT: &str = "10 USD/h";

/// A limiter under test.
pub(crate) trait Gate {
    /// Decides a request. Returns true if it is admitted.
    fn admit(&mut self, number: usize, work: &Work) -> bool;

    /// Reports the actual cost of an admitted request that has ended.
    fn settle(&mut self, number: usize, work: &Work, now: Timestamp);
}

/// The virtual clock of the store.
#[derive(Clone)]
struct Virtual(Arc<AtomicU64>);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// Sluicegate with its memory store.
pub(crate) struct Ours {
    rules: Ruleset,
    store: Memory<Virtual>,
    clock: Virtual,
    estimates: bool,
}

impl Ours {
    /// Creates the limiter. `estimates` tells if requests state an estimated cost.
    pub(crate) fn new(mode: EstimateMode, estimates: bool) -> Self {
        let limit = LIMIT.parse::<Limit>().expect("a limit");
        let rule = Rule { mode, ..Rule::new("BUDGET", [limit]) };
        let rules = Ruleset::new(vec![Group::new("g", [rule])], Settings::default());
        let clock = Virtual(Arc::new(AtomicU64::new(BEGIN.as_micros())));
        let store = Memory::with_clock(Capacity::default(), clock.clone());
        Self { rules: rules.expect("rules"), store, clock, estimates }
    }
}

/// Polls a call to a memory store, whose future is ready at the first poll.
fn at_once<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a store in memory never waits"),
    }
}

impl Gate for Ours {
    fn admit(&mut self, number: usize, work: &Work) -> bool {
        self.clock.0.store(work.at.as_micros(), Ordering::Relaxed);
        let mut query = Query::new(RequestId::ours(Id::from_bits(number as u128 + 1)));
        query.cost.money = Money::from_nanos(work.estimate).filter(|_| self.estimates);
        query.hold = Some(Span::from_secs(60));
        let plan = self.rules.plan(&query, work.at).expect("a plan");
        at_once(self.store.acquire(&plan)).expect("a decision").is_allowed()
    }

    fn settle(&mut self, number: usize, work: &Work, now: Timestamp) {
        self.clock.0.store(now.as_micros(), Ordering::Relaxed);
        let id = Id::from_bits(number as u128 + 1);
        let handle = Handle { id, claimant: None, keys: Vec::new() };
        let cost = Cost { money: Money::from_nanos(work.actual), ..Cost::default() };
        at_once(self.store.settle(&handle, &cost)).expect("it was admitted");
    }
}

/// A counter that admits requests while the recorded cost is less than the budget, and adds the
/// cost of a request when it ends.
pub(crate) struct CheckThenAdd {
    replicas: Vec<Spent>,
}

#[derive(Clone, Default)]
struct Spent {
    entries: VecDeque<(Timestamp, u64)>,
    sum: u64,
}

impl CheckThenAdd {
    /// Creates a number of replicas that count separately.
    pub(crate) fn new(replicas: usize) -> Self {
        Self { replicas: vec![Spent::default(); replicas] }
    }
}

impl Gate for CheckThenAdd {
    fn admit(&mut self, number: usize, work: &Work) -> bool {
        let replica = number % self.replicas.len();
        let spent = &mut self.replicas[replica];
        while let Some(&(at, cost)) = spent.entries.front()
            && at + WINDOW <= work.at
        {
            spent.sum -= cost;
            spent.entries.pop_front();
        }
        spent.sum < BUDGET
    }

    fn settle(&mut self, number: usize, work: &Work, now: Timestamp) {
        let replica = number % self.replicas.len();
        let spent = &mut self.replicas[replica];
        spent.sum += work.actual;
        spent.entries.push_back((now, work.actual));
    }
}
