//! What every front door shares: the limiter, and whoever watches it decide.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::query::{Query, RequestId};
use sluicegate_core::ruleset::{PlanError, Ruleset};
use sluicegate_core::store::{self, Store};
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_core::{Decision, Id, Limiter, Plan};

/// Is told of every decision; metrics and the decision log are some.
pub trait Observer: Send + Sync {
    /// A decision was made.
    fn decided(&self, decided: &Decided<'_, '_, '_>);
}

/// A decision with all that led to it.
pub struct Decided<'a, 'q, 'p> {
    /// Who asked; of a batch, the first.
    pub query: &'a Query<'q>,
    /// What had to be charged.
    pub plan: &'a Plan<'p>,
    /// What was decided.
    pub decision: &'a Decision,
    /// How.
    pub operation: Operation,
    /// How long it took.
    pub latency: Span,
}

/// The operations that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Charge now, or not at all.
    Acquire,
    /// Charge nothing.
    Peek,
    /// Charge for the first instant that fits.
    Book,
}

impl Operation {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Peek => "peek",
            Self::Book => "book",
        }
    }
}

/// The limiter behind every front door.
pub struct Service<S, C> {
    limiter: Limiter<S>,
    clock: C,
    ids: Ids,
    observers: Vec<Box<dyn Observer>>,
}

/// Why there is no decision.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The query is at fault.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The store is.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl<S: Store, C: Clock> Service<S, C> {
    /// A service over a limiter. The clock is this node's: calendar windows and latencies go by it.
    pub fn new(limiter: Limiter<S>, clock: C, observers: Vec<Box<dyn Observer>>) -> Self {
        Self { limiter, clock, ids: Ids::new(), observers }
    }

    /// The limiter itself.
    pub const fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    /// The time of this node.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A name for a request whose caller gave none.
    pub fn request_id(&self) -> RequestId {
        RequestId::ours(self.ids.next())
    }

    /// Decides on one or several queries as one plan, and lets `answer` tell the result.
    ///
    /// The answer is made while the rules that were planned by are still at hand.
    pub async fn decide<T>(
        &self,
        queries: &[Query<'_>],
        operation: Operation,
        answer: impl FnOnce(&Ruleset, &Plan<'_>, &Decision) -> T,
    ) -> Result<T, Failure> {
        let began = self.clock.now();
        let rules = self.limiter.rules();
        let plan = plan(&rules, queries, &began)?;
        let store = self.limiter.store();
        let decision = match operation {
            Operation::Acquire => store.acquire(&plan).await?,
            Operation::Peek => store.peek(&plan).await?,
            Operation::Book => store.book(&plan).await?,
        };
        if let Some(query) = queries.first() {
            let latency = self.clock.now().since(began);
            let plan = &plan;
            let decided = Decided { query, plan, decision: &decision, operation, latency };
            for observer in &self.observers {
                observer.decided(&decided);
            }
        }
        Ok(answer(&rules, &plan, &decision))
    }

    /// Runs an operation of the store that is about the plan of a query.
    pub async fn with_plan<T>(
        &self,
        query: &Query<'_>,
        run: impl AsyncFnOnce(&S, &Ruleset, &Plan<'_>) -> Result<T, store::Error>,
    ) -> Result<T, Failure> {
        let rules = self.limiter.rules();
        let plan = rules.plan(query, &self.clock)?;
        Ok(run(self.limiter.store(), &rules, &plan).await?)
    }
}

/// One plan for all queries of a call.
fn plan<'a>(
    rules: &'a Ruleset,
    queries: &'a [Query<'_>],
    clock: &impl Clock,
) -> Result<Plan<'a>, PlanError> {
    let (first, rest) = queries.split_first().expect("decoders refuse a call without queries");
    let mut plan = rules.plan(first, clock)?;
    for query in rest {
        plan.join(rules.plan(query, clock)?)?;
    }
    if !rest.is_empty() {
        plan.replace();
    }
    Ok(plan)
}

/// Names that nobody else makes up: random for this process, then counted.
struct Ids {
    process: u64,
    next: AtomicU64,
}

impl Ids {
    fn new() -> Self {
        // The standard library's source of random keys, which needs no further crate.
        let random = || RandomState::new().build_hasher().finish();
        Self { process: random(), next: AtomicU64::new(random() >> 1) }
    }

    fn next(&self) -> Id {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Id::from_bits(u128::from(self.process) << 64 | u128::from(number))
    }
}
