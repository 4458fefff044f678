//! [`Limiter`]: the entry point of every service. It combines the current rules with the store that
//! keeps their usage, and decides by the outage policies while the store does not answer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;

use crate::decision::{Allow, Closed, Decision, Readings};
use crate::outage::{self, OutageAdmission, OutagePolicy};
use crate::overrides::Override;
use crate::plan::{Handle, Plan};
use crate::query::Cost;
use crate::ruleset::{FormerLimit, Ruleset};
use crate::store::{EndResult, Error, GateClosure, Renewal, Store, StoreFailure, TOMBSTONE, Usage};
use crate::time::{Clock, Span, Timestamp};

/// Decides about plans: replaceable rules over one store.
///
/// A decision loads the rules once and uses them to its end, even if they are replaced meanwhile.
/// Replacing them blocks no request.
///
/// The fallback counts what this node admits by itself while the store does not answer. It is never
/// reset when the store is back, so a store that is available now and then admits no more than one
/// that stays down.
pub struct Limiter<S> {
    rules: ArcSwap<Ruleset>,
    store: S,
    fallback: Option<Fallback<S>>,
    fallback_records: FallbackRecords,
}

/// A store in this process that always answers, and its clock.
struct Fallback<S> {
    store: S,
    clock: Box<dyn Clock>,
}

/// Time until which the fallback may hold records that a handle or a reset refers to. After that,
/// it does not have to be called any more.
#[derive(Debug, Default)]
struct FallbackRecords {
    /// The time, in microseconds of the fallback's clock.
    until: AtomicU64,
    /// The longest time for which the fallback keeps a record that is not touched, in microseconds.
    longest: AtomicU64,
}

impl FallbackRecords {
    /// Notes that the fallback is asked to admit a plan.
    fn note_admission(&self, plan: &Plan<'_>, now: Timestamp) {
        let keep = plan.id.keep.unwrap_or_default().max(TOMBSTONE);
        let held = keep + plan.hold.unwrap_or_default() + plan.window();
        self.longest.fetch_max(held.as_micros(), Ordering::AcqRel);
        self.note_use(now);
    }

    /// Notes that a record of the fallback was used, which keeps it for longer.
    fn note_use(&self, now: Timestamp) {
        let longest = Span::from_micros(self.longest.load(Ordering::Acquire));
        self.until.fetch_max((now + longest).as_micros(), Ordering::AcqRel);
    }

    fn may_exist(&self, now: Timestamp) -> bool {
        let until = self.until.load(Ordering::Acquire);
        until > 0 && now.as_micros() < until
    }
}

/// Mode in which the fallback decides.
#[derive(Clone, Copy)]
enum FallbackMode {
    Acquire,
    Peek,
}

/// A decision and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The decision.
    pub decision: Decision,
    /// The outage policy that made it, if the store did not answer.
    pub outage: Option<OutagePolicy>,
    /// Number of nodes that the policy divided the limits by; 0 if the store answered.
    pub nodes: u32,
}

impl<S> Limiter<S> {
    /// Creates a limiter with its first rules.
    pub fn new(rules: Ruleset, store: S) -> Self {
        let (fallback, fallback_records) = (None, FallbackRecords::default());
        Self { rules: ArcSwap::from_pointee(rules), store, fallback, fallback_records }
    }

    /// Decides by the outage policies while the store does not answer. Without a fallback, an
    /// outage is an error. The fallback is a memory store, and `clock` is the clock that it reads.
    #[must_use]
    pub fn with_fallback(self, store: S, clock: impl Clock + 'static) -> Self {
        Self { fallback: Some(Fallback { store, clock: Box::new(clock) }), ..self }
    }

    /// Returns the current rules.
    pub fn rules(&self) -> Guard<Arc<Ruleset>> {
        self.rules.load()
    }

    /// Replaces the rules, keeps the current overrides, and returns the previous rules.
    ///
    /// Usage is kept, because counters are found by their keys. Usage until `now` also counts under
    /// a limit that has changed its shape.
    pub fn replace(&self, rules: &Ruleset, now: Timestamp) -> Arc<Ruleset> {
        self.rules.rcu(|before| {
            rules.with_overrides(before.overrides()).with_formers(&before.limits_until(now), now)
        })
    }

    /// Counts usage under these former limits of the rules, too.
    pub fn carry_over(&self, formers: &[FormerLimit], now: Timestamp) {
        self.rules.rcu(|before| before.with_formers(formers, now));
    }

    /// Replaces all overrides. Overrides without a rule that they fit have no effect until there
    /// is one: see [`Ruleset::ineffective_overrides`].
    pub fn set_overrides(&self, overrides: &[Override], now: Timestamp) {
        self.rules.rcu(|before| {
            before.with_overrides(overrides).with_formers(&before.limits_until(now), now)
        });
    }

    /// Returns the store.
    pub const fn store(&self) -> &S {
        &self.store
    }
}

impl<S: Store> Limiter<S> {
    /// Admits the plan if it can start now; see [`Store::acquire`].
    pub async fn acquire(&self, plan: &Plan<'_>) -> Result<Verdict, Error> {
        let unanswered = match self.store.acquire(plan).await {
            Err(Error::Unavailable(unanswered)) => unanswered,
            answer => return answer.map(Verdict::of_store),
        };
        let attempt = unanswered.attempt;
        let verdict = match &self.fallback {
            None => Err(Error::Unavailable(unanswered)),
            Some(fallback) => {
                // Before the caller gets the answer, because it may settle at once.
                self.fallback_records.note_admission(plan, fallback.clock.now());
                Box::pin(self.decide_alone(plan, &fallback.store, FallbackMode::Acquire)).await
            }
        };
        let admitted = verdict.as_ref().is_ok_and(|verdict| verdict.decision.is_allowed());
        if let Some(attempt) = attempt.filter(|_| !admitted) {
            self.store.give_up(plan, attempt);
        }
        verdict
    }

    /// Returns what [`Limiter::acquire`] would answer to a new id. Writes nothing.
    pub async fn peek(&self, plan: &Plan<'_>) -> Result<Verdict, Error> {
        match (self.store.peek(plan).await, &self.fallback) {
            (Err(Error::Unavailable(_)), Some(fallback)) => {
                Box::pin(self.decide_alone(plan, &fallback.store, FallbackMode::Peek)).await
            }
            (answer, _) => answer.map(Verdict::of_store),
        }
    }

    /// Reserves the first instant at which the plan fits; see [`Store::book`].
    ///
    /// Only the store books, because other nodes could not see a booking of this node.
    pub async fn book(&self, plan: &Plan<'_>) -> Result<Verdict, Error> {
        let booked = self.store.book(plan).await;
        if let Err(Error::Unavailable(StoreFailure { attempt: Some(attempt), .. })) = &booked {
            self.store.give_up(plan, *attempt);
        }
        booked.map(Verdict::of_store)
    }

    /// Cancels work that was never started; see [`Store::cancel`].
    pub async fn cancel(&self, handle: &Handle) -> Result<EndResult, Error> {
        if let Some(fallback) = self.active_fallback() {
            // The result does not matter, because the store answers in any case.
            let _ = fallback.store.cancel(handle).await;
        }
        self.store.cancel(handle).await
    }

    /// Replaces the estimate by the actual cost; see [`Store::settle`].
    pub async fn settle(&self, handle: &Handle, actual: &Cost) -> Result<EndResult, Error> {
        match self.ask_fallback(async |fallback| fallback.settle(handle, actual).await).await {
            None => self.store.settle(handle, actual).await,
            Some(answer) => answer,
        }
    }

    /// Ends the leases; see [`Store::release`].
    pub async fn release(&self, handle: &Handle) -> Result<EndResult, Error> {
        match self.ask_fallback(async |fallback| fallback.release(handle).await).await {
            None => self.store.release(handle).await,
            Some(answer) => answer,
        }
    }

    /// Extends leases and hold by their full length from now; see [`Store::renew`].
    pub async fn renew(&self, handle: &Handle) -> Result<Renewal, Error> {
        match self.ask_fallback(async |fallback| fallback.renew(handle).await).await {
            None => self.store.renew(handle).await,
            Some(answer) => answer,
        }
    }

    /// Closes the plan's gates for `wait`, in the store and on this node; see [`Store::close`].
    ///
    /// While the store does not answer, the gates are closed at least on this node.
    pub async fn close(&self, plan: &Plan<'_>, wait: Span) -> Result<GateClosure, Error> {
        let own = match &self.fallback {
            Some(fallback) => fallback.store.close(plan, wait).await.ok(),
            None => None,
        };
        match (self.store.close(plan, wait).await, own) {
            (Err(Error::Unavailable(_)), Some(own)) => Ok(own),
            (answer, _) => answer,
        }
    }

    /// Removes all usage of the plan's counters, in the store and on this node.
    pub async fn reset(&self, plan: &Plan<'_>) -> Result<Timestamp, Error> {
        if let Some(fallback) = self.active_fallback() {
            fallback.store.reset(plan).await?;
        }
        self.store.reset(plan).await
    }

    /// Returns the fallback if it may still hold records.
    fn active_fallback(&self) -> Option<&Fallback<S>> {
        self.fallback
            .as_ref()
            .filter(|fallback| self.fallback_records.may_exist(fallback.clock.now()))
    }

    /// Returns the fallback's answer about a record, or `None` if it has no such record.
    async fn ask_fallback<T>(
        &self,
        ask: impl AsyncFnOnce(&S) -> Result<T, Error>,
    ) -> Option<Result<T, Error>> {
        let fallback = self.active_fallback()?;
        let answer = ask(&fallback.store).await;
        if matches!(answer, Err(Error::Unknown)) {
            return None;
        }
        self.fallback_records.note_use(fallback.clock.now());
        Some(answer)
    }

    /// Decides by the outage policy; the fallback counts this node's share. Boxed by its callers, because
    /// it is large and seldom runs.
    async fn decide_alone(
        &self,
        plan: &Plan<'_>,
        fallback: &S,
        mode: FallbackMode,
    ) -> Result<Verdict, Error> {
        let Usage { at, readings } = fallback.usage(plan).await?;
        let count = async |part: &Plan<'_>| match mode {
            FallbackMode::Acquire => fallback.acquire(part).await,
            FallbackMode::Peek => fallback.peek(part).await,
        };
        let closed = || Decision::Closed(Closed { at, until: None, readings: Readings::new() });
        // The larger number, so that no node's share is too large.
        let nodes = self.rules().outage().nodes_max.max(self.store.nodes());
        let decision = match outage::outage_admission(plan, nodes) {
            OutageAdmission::Closed => closed(),
            OutageAdmission::Counted(part) => match count(&part).await? {
                // The share may be too small for an amount that fits the whole limit.
                Decision::Never(_) => closed(),
                decision => decision,
            },
            OutageAdmission::Uncounted => {
                // A record without charges, so that the admission can be settled or released.
                let recorded = match plan.needs_record() {
                    true => count(&plan.uncharged()).await.ok(),
                    false => None,
                };
                let (until, replayed) = match recorded {
                    Some(Decision::Allow(allow)) => (allow.until, allow.replayed),
                    _ => (None, false),
                };
                let (shadowed, charged_at) = (SmallVec::new(), Vec::new());
                let start = at;
                let allow = Allow { at, start, until, replayed, shadowed, readings, charged_at };
                Decision::Allow(allow)
            }
        };
        Ok(Verdict { decision, outage: Some(plan.outage), nodes })
    }
}

impl<S: fmt::Debug> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Verdict {
    /// Creates the verdict of a store that answered.
    pub const fn of_store(decision: Decision) -> Self {
        Self { decision, outage: None, nodes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_that_holds_nothing_any_more_is_not_asked() {
        let at = Timestamp::from_secs;
        let fallback_records = FallbackRecords::default();
        assert!(
            !fallback_records.may_exist(at(0)),
            "it was never note_admission to admit anything"
        );
        fallback_records.longest.store(Span::from_secs(60).as_micros(), Ordering::Release);
        fallback_records.note_use(at(100));
        assert_eq!(
            [100, 159, 160].map(|now| fallback_records.may_exist(at(now))),
            [true, true, false]
        );
        fallback_records.note_use(at(150));
        assert_eq!(
            [160, 209, 210].map(|now| fallback_records.may_exist(at(now))),
            [true, true, false]
        );
    }
}
