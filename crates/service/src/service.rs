//! [`Service`]: the limiter that every listener, gateway and worker calls, with its observers.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_core::limiter::Verdict;
use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::ruleset::{PlanError, Ruleset};
use sluicegate_core::store::{self, Claim, EndResult, GateClosure, Renewal, Store as _, Usage};
use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_core::{Decision, Id, Limiter, Plan};
use sluicegate_store::{AnyStore, SharedClock};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::answer::{Answer, AnswerContext};
use crate::audit::AuditLog;
use crate::observer::{
    ChangeEvent, DecisionEvent, Effect, FailureEvent, Observer, Operation, StoreCallEvent,
    UnansweredEvent, UnconfirmedCharges,
};
use crate::trace::{EventTrace, SpanObserver, Tracer};

/// A kind of request that is answered with a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionMode {
    /// Charges now or denies.
    Acquire,
    /// Charges now, and also denies if a rule counted more than its limit.
    Tally,
    /// Decides without charging.
    Peek,
    /// Charges at the first instant that fits.
    Book,
}

impl DecisionMode {
    const fn operation(self) -> Operation {
        match self {
            Self::Acquire | Self::Tally => Operation::Acquire,
            Self::Peek => Operation::Peek,
            Self::Book => Operation::Book,
        }
    }
}

/// The limiter with its clock and its observers, shared by all protocol servers.
pub struct Service {
    limiter: Limiter<AnyStore>,
    clock: SharedClock,
    ids: IdGenerator,
    observers: Vec<Box<dyn Observer>>,
    audit: AuditLog,
    tracer: Tracer,
    tasks: TaskTracker,
}

/// An operation in progress: its start, and its span if it belongs to a trace.
struct OperationStart {
    at: Timestamp,
    trace: Option<EventTrace>,
}

/// A request that got no decision.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The query is invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Service {
    /// Creates a service. `clock` is the clock of this node; calendar windows and latencies use it.
    pub fn new(
        limiter: Limiter<AnyStore>,
        clock: impl Clock + 'static,
        observers: Vec<Box<dyn Observer>>,
    ) -> Self {
        let clock = SharedClock::new(clock);
        let (ids, audit, tracer) = (IdGenerator::new(), AuditLog::default(), Tracer::default());
        Self { limiter, clock, ids, observers, audit, tracer, tasks: TaskTracker::new() }
    }

    /// Records decisions and store calls as spans of the traces that they belong to.
    #[must_use]
    pub fn with_tracer(mut self, tracer: Tracer) -> Self {
        if tracer.is_on() {
            let store = if self.limiter.store().memory().is_some() { "memory" } else { "redis" };
            self.observers.push(Box::new(SpanObserver::new(tracer.clone(), store)));
        }
        self.tracer = tracer;
        self
    }

    /// Returns the tracer, which creates the spans of requests and messages.
    pub const fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Returns the limiter.
    pub const fn limiter(&self) -> &Limiter<AnyStore> {
        &self.limiter
    }

    /// Returns the clock of this node.
    pub const fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// Returns the log of the actions that changed this service.
    pub const fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// Returns the tasks that a process waits for before it ends ([`Self::finish`]): they call the store
    /// for requests, for instance to give back what a request has not used.
    pub const fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Waits until the tasks have ended, for at most `max`.
    pub async fn finish(&self, max: Duration) {
        self.tasks.close();
        if timeout(max, self.tasks.wait()).await.is_err() {
            let unfinished = self.tasks.len();
            warn!(
                unfinished,
                "store calls unfinished at the end: what they give back expires instead"
            );
        }
    }

    /// Returns the time of this node.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns a new id for a request whose caller gave none.
    pub fn request_id(&self) -> RequestId {
        RequestId::ours(self.ids.next())
    }

    /// Decides on one or several queries as one plan, and passes the answer to `encode`.
    ///
    /// `encode` runs while the rules of the plan are still borrowed, so it can encode the answer
    /// without copying them.
    pub async fn decide<T>(
        &self,
        queries: &[Query<'_>],
        mode: DecisionMode,
        encode: impl FnOnce(&Answer<'_, '_>) -> T,
    ) -> Result<T, ServiceError> {
        let started = self.start();
        let rules = self.limiter.rules();
        let plan = plan(&rules, queries, &started.at)?;
        if let Some((ban, decision)) = plan.ban(started.at) {
            let verdict = Ok(Verdict::of_store(decision));
            return self.conclude((queries, mode), (&rules, &ban), verdict, &started, encode);
        }
        let operation = mode.operation();
        let call = self.start_call(plan.id.id, operation, &started).charging(&plan);
        let verdict = call.finish(match operation {
            Operation::Peek => self.limiter.peek(&plan).await,
            Operation::Book => self.limiter.book(&plan).await,
            _ => self.limiter.acquire(&plan).await,
        });
        self.conclude((queries, mode), (&rules, &plan), verdict, &started, encode)
    }

    /// Turns the verdict about a plan into an answer. Not a part of [`Self::decide`], so that its
    /// variables do not add to the size of that future.
    fn conclude<T>(
        &self,
        (queries, mode): (&[Query<'_>], DecisionMode),
        (rules, plan): (&Ruleset, &Plan<'_>),
        verdict: Result<Verdict, store::Error>,
        started: &OperationStart,
        encode: impl FnOnce(&Answer<'_, '_>) -> T,
    ) -> Result<T, ServiceError> {
        let operation = mode.operation();
        let Verdict { decision, outage, nodes } = match verdict {
            Ok(verdict) => verdict,
            Err(error) => {
                self.notify_failure(queries, plan, operation, &error, started);
                return Err(error.into());
            }
        };
        let answer = Answer::new(rules, plan, &decision)
            .by_policy(outage, nodes)
            .with_context(AnswerContext::of(queries));
        let answer = if mode == DecisionMode::Tally { answer.deny_if_exceeded() } else { answer };
        if let Some(query) = queries.first() {
            self.notify_decision(query, answer, operation, None, started);
        }
        Ok(encode(&answer))
    }

    /// Claims a booking, and passes the result to `encode`.
    pub async fn claim<T>(
        &self,
        query: &Query<'_>,
        claimant: Id,
        encode: impl FnOnce(&Ruleset, &Plan<'_>, Claim) -> T,
    ) -> Result<T, ServiceError> {
        let started = self.start();
        let rules = self.limiter.rules();
        let plan = rules.plan(query, started.at)?;
        let (plan, claim) = match plan.ban(started.at) {
            Some((ban, Decision::Deny(deny))) => (ban, Claim::Deny(deny)),
            Some((ban, Decision::Never(never))) => (ban, Claim::Never(never)),
            _ => {
                let call = self.start_call(plan.id.id, Operation::Claim, &started).charging(&plan);
                let claim = call.finish(self.limiter.store().claim(&plan, claimant).await)?;
                (plan, claim)
            }
        };
        let decision = match &claim {
            Claim::Go { allow, .. } => Ok(Decision::Allow(allow.clone())),
            Claim::Deny(deny) => Ok(Decision::Deny(deny.clone())),
            Claim::Never(never) => Ok(Decision::Never(never.clone())),
            Claim::Early { at, start } => Err((Some(*at), Effect::Early { start: *start })),
            Claim::Rebooked { at, start } => {
                Err((Some(*at), Effect::Rebooked { start: *start, plan: &plan }))
            }
            Claim::Spent => Err((None, Effect::Spent)),
        };
        match decision {
            Ok(decision) => {
                let answer = Answer::new(&rules, &plan, &decision);
                self.notify_decision(query, answer, Operation::Claim, Some(claimant), &started);
            }
            Err((at, effect)) => {
                self.notify_change(query.id.id, Operation::Claim, at, effect, &started)
            }
        }
        Ok(encode(&rules, &plan, claim))
    }

    /// Replaces the estimate of an admission with its actual cost.
    pub async fn settle(&self, handle: &Handle, cost: &Cost) -> Result<EndResult, store::Error> {
        let started = self.start();
        let call = self.start_call(handle.id, Operation::Settle, &started).owing(cost);
        let ended = call.finish(self.limiter.settle(handle, cost).await)?;
        self.notify_end(Operation::Settle, handle, Some(cost), ended, &started);
        Ok(ended)
    }

    /// Frees the concurrency slots of an admission.
    pub async fn release(&self, handle: &Handle) -> Result<EndResult, store::Error> {
        let started = self.start();
        let call = self.start_call(handle.id, Operation::Release, &started);
        let ended = call.finish(self.limiter.release(handle).await)?;
        self.notify_end(Operation::Release, handle, None, ended, &started);
        Ok(ended)
    }

    /// Gives back all charges of an admission whose work did not run.
    pub async fn cancel(&self, handle: &Handle) -> Result<EndResult, store::Error> {
        let started = self.start();
        let call = self.start_call(handle.id, Operation::Cancel, &started);
        let ended = call.finish(self.limiter.cancel(handle).await)?;
        self.notify_end(Operation::Cancel, handle, None, ended, &started);
        Ok(ended)
    }

    /// Extends the leases and the hold of an admission.
    pub async fn renew(&self, handle: &Handle) -> Result<Renewal, store::Error> {
        let started = self.start();
        let call = self.start_call(handle.id, Operation::Renew, &started);
        let renewed = call.finish(self.limiter.renew(handle).await)?;
        let effect = Effect::Renewed { until: renewed.until };
        self.notify_change(handle.id, Operation::Renew, Some(renewed.at), effect, &started);
        Ok(renewed)
    }

    /// Gives back the charges of a query without naming an admission, and passes the remaining
    /// usage to `encode`.
    pub async fn refund<T>(
        &self,
        query: &Query<'_>,
        encode: impl FnOnce(&Ruleset, &Plan<'_>, Usage) -> T,
    ) -> Result<T, ServiceError> {
        let started = self.start();
        let rules = self.limiter.rules();
        let plan = rules.plan(query, started.at)?;
        let call = self.start_call(plan.id.id, Operation::Refund, &started);
        let usage = match call.finish(self.limiter.store().refund(&plan).await) {
            Ok(usage) => usage,
            Err(error) => {
                self.notify_failure(
                    std::slice::from_ref(query),
                    &plan,
                    Operation::Refund,
                    &error,
                    &started,
                );
                return Err(error.into());
            }
        };
        let effect = Effect::Refunded { plan: &plan };
        self.notify_change(query.id.id, Operation::Refund, Some(usage.at), effect, &started);
        Ok(encode(&rules, &plan, usage))
    }

    /// Deletes the usage of the counters that a query is charged on, and passes the affected plan
    /// to `encode`. `selects` selects rules by name.
    pub async fn reset<T>(
        &self,
        query: &Query<'_>,
        selects: impl Fn(&str) -> bool,
        encode: impl FnOnce(&Plan<'_>) -> T,
    ) -> Result<T, ServiceError> {
        let started = self.start();
        let rules = self.limiter.rules();
        let plan = rules.plan(query, started.at)?;
        let places = plan.charges().iter().enumerate();
        let places = places.filter(|(_, charge)| selects(&charge.rule().name));
        let places: Vec<_> = places.map(|(place, _)| place).collect();
        let plan = plan.with_only(&places);
        let call = self.start_call(plan.id.id, Operation::Reset, &started);
        let at = call.finish(self.limiter.reset(&plan).await)?;
        let effect = Effect::Reset { plan: &plan };
        self.notify_change(query.id.id, Operation::Reset, Some(at), effect, &started);
        Ok(encode(&plan))
    }

    /// Closes the gates of a query's rules for `span`; see [`Store::close`](store::Store::close).
    pub async fn close(&self, query: &Query<'_>, span: Span) -> Result<GateClosure, ServiceError> {
        let rules = self.limiter.rules();
        let plan = rules.plan(query, &self.clock)?;
        Ok(self.limiter.close(&plan, span).await?)
    }

    fn start(&self) -> OperationStart {
        OperationStart { at: self.clock.now(), trace: self.tracer.event() }
    }

    /// Returns the time that an operation has taken, its start and its span.
    fn timing<'s>(&self, started: &'s OperationStart) -> (Span, Timestamp, Option<&'s EventTrace>) {
        (self.clock.now().since(started.at), started.at, started.trace.as_ref())
    }

    fn notify_decision(
        &self,
        query: &Query<'_>,
        answer: Answer<'_, '_>,
        operation: Operation,
        claimant: Option<Id>,
        started: &OperationStart,
    ) {
        let (latency, started, trace) = self.timing(started);
        let event = DecisionEvent { query, answer, operation, claimant, started, latency, trace };
        for observer in &self.observers {
            observer.on_decision(&event);
        }
    }

    fn notify_failure(
        &self,
        queries: &[Query<'_>],
        plan: &Plan<'_>,
        operation: Operation,
        error: &store::Error,
        started: &OperationStart,
    ) {
        // The other errors are about the request, not about the store.
        let of_store = matches!(
            error,
            store::Error::Unavailable(_) | store::Error::ClockSkew | store::Error::Full
        );
        let Some(query) = queries.first().filter(|_| of_store) else { return };
        let (latency, started, trace) = self.timing(started);
        let event = FailureEvent { query, plan, operation, started, latency, trace };
        for observer in &self.observers {
            observer.on_failure(&event);
        }
    }

    fn notify_end(
        &self,
        operation: Operation,
        handle: &Handle,
        cost: Option<&Cost>,
        ended: EndResult,
        started: &OperationStart,
    ) {
        let EndResult { at, replayed } = ended;
        let effect = Effect::Ended { replayed, claimant: handle.claimant, cost };
        self.notify_change(handle.id, operation, Some(at), effect, started);
    }

    fn notify_change(
        &self,
        id: Id,
        operation: Operation,
        at: Option<Timestamp>,
        effect: Effect<'_, '_>,
        started: &OperationStart,
    ) {
        let (latency, started, trace) = self.timing(started);
        let event = ChangeEvent { id, operation, at, effect, started, latency, trace };
        for observer in &self.observers {
            observer.on_change(&event);
        }
    }

    /// Starts a store call. If the call is dropped without a known outcome, it notifies the
    /// observers.
    fn start_call<'s, 'p>(
        &'s self,
        id: Id,
        operation: Operation,
        started: &'s OperationStart,
    ) -> StoreCall<'s, 'p> {
        let trace = started.trace.as_ref().filter(|trace| trace.context.sampled);
        StoreCall {
            observers: &self.observers,
            clock: &self.clock,
            id,
            operation,
            started,
            // The start time of the call is needed only for its span.
            span: trace.map(|trace| (trace, self.clock.now())),
            outcome_known: operation == Operation::Peek,
            is_answered: false,
            is_ok: false,
            charges: UnconfirmedCharges::None,
        }
    }

    /// Runs a store operation with the plan of a query.
    pub async fn with_plan<T>(
        &self,
        query: &Query<'_>,
        run: impl AsyncFnOnce(&AnyStore, &Ruleset, &Plan<'_>) -> Result<T, store::Error>,
    ) -> Result<T, ServiceError> {
        let rules = self.limiter.rules();
        let plan = rules.plan(query, &self.clock)?;
        Ok(run(self.limiter.store(), &rules, &plan).await?)
    }
}

/// A store call in flight.
struct StoreCall<'a, 'p> {
    observers: &'a [Box<dyn Observer>],
    clock: &'a dyn Clock,
    id: Id,
    operation: Operation,
    started: &'a OperationStart,
    /// Span of the operation and start of the call, if the call is recorded.
    span: Option<(&'a EventTrace, Timestamp)>,
    /// True if the outcome is known; always true for a call that changes nothing.
    outcome_known: bool,
    is_answered: bool,
    is_ok: bool,
    /// The charges that the store may have made if it does not answer.
    charges: UnconfirmedCharges<'a, 'p>,
}

impl<'a, 'p> StoreCall<'a, 'p> {
    /// Names the plan that the call charges.
    fn charging(mut self, plan: &'a Plan<'p>) -> Self {
        self.charges = UnconfirmedCharges::Plan(plan);
        self
    }

    /// Names the actual cost that the call may charge as a debt.
    fn owing(mut self, cost: &'a Cost) -> Self {
        self.charges = UnconfirmedCharges::Debt(cost);
        self
    }

    /// Records the result and passes it on. After `Unavailable` the outcome is unknown.
    fn finish<T>(mut self, answer: Result<T, store::Error>) -> Result<T, store::Error> {
        self.is_ok = answer.is_ok();
        self.is_answered = !matches!(answer, Err(store::Error::Unavailable(_)));
        self.outcome_known |= self.is_answered;
        answer
    }
}

impl Drop for StoreCall<'_, '_> {
    fn drop(&mut self) {
        let Self { id, operation, is_answered, is_ok, charges, .. } = *self;
        if let Some((trace, started)) = self.span {
            let latency = self.clock.now().since(started);
            let event = StoreCallEvent { operation, started, latency, is_answered, is_ok, trace };
            self.observers.iter().for_each(|observer| observer.on_store_call(&event));
        }
        if !self.outcome_known {
            let latency = self.clock.now().since(self.started.at);
            let trace = self.started.trace.as_ref().map(|trace| trace.context.trace);
            let event = UnansweredEvent { id, operation, charges, latency, trace };
            self.observers.iter().for_each(|observer| observer.on_unanswered(&event));
        }
    }
}

/// Plans all queries of a call as one plan.
fn plan<'a>(
    rules: &'a Ruleset,
    queries: &'a [Query<'_>],
    clock: &impl Clock,
) -> Result<Plan<'a>, PlanError> {
    let (first, rest) = queries.split_first().expect("decoders refuse a call without queries");
    rules.plan_together(first, rest, clock)
}

/// Generator of unique ids. A caller that knows the id of an admission can settle or cancel it. So
/// ids must not be predictable from earlier ones: a counter is hashed with a key that only this
/// process knows.
struct IdGenerator {
    /// The key of SipHash, a pseudorandom function.
    key: RandomState,
    next: AtomicU64,
}

impl IdGenerator {
    fn new() -> Self {
        Self { key: RandomState::new(), next: AtomicU64::new(0) }
    }

    fn next(&self) -> Id {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let [high, low] = [0, 1].map(|half: u8| u128::from(self.key.hash_one((number, half))));
        Id::unguessable(high << 64 | low)
    }
}
