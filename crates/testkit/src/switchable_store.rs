//! [`SwitchableStore`]: a store that tests can disconnect, or whose replies they can drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Claim, EndResult, Error, GateClosure, Renewal, Usage};
use sluicegate_core::{Decision, Id, Plan, Span, Store, Timestamp};

/// A store behind a switch: while it is off, all calls fail and nothing changes. It can also drop
/// single replies after the store has executed the call. Clones share the store and the switch.
#[derive(Debug)]
pub struct SwitchableStore<S>(Arc<Inner<S>>);

#[derive(Debug)]
struct Inner<S> {
    store: S,
    on: AtomicBool,
    nodes: AtomicU32,
    /// Drops every nth reply; 0 drops none.
    drop_every: AtomicU32,
    answers: AtomicU32,
}

impl<S> Clone for SwitchableStore<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> SwitchableStore<S> {
    /// Creates a switch that is on.
    pub fn new(store: S) -> Self {
        let (on, nodes) = (AtomicBool::new(true), AtomicU32::new(1));
        let (drop_every, answers) = (AtomicU32::new(0), AtomicU32::new(0));
        Self(Arc::new(Inner { store, on, nodes, drop_every, answers }))
    }

    /// Sets the number of nodes that the store reports.
    pub fn set_nodes(&self, nodes: u32) {
        self.0.nodes.store(nodes, Ordering::SeqCst);
    }

    /// Turns the store on or off.
    pub fn set_on(&self, on: bool) {
        self.0.on.store(on, Ordering::SeqCst);
    }

    /// Drops every `nth` reply to acquire, book and claim from now on.
    pub fn drop_every_nth(&self, nth: u32) {
        self.0.drop_every.store(nth, Ordering::SeqCst);
    }

    fn maybe_drop<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        let number = self.0.answers.fetch_add(1, Ordering::SeqCst) + 1;
        match number.checked_rem(self.0.drop_every.load(Ordering::SeqCst)) {
            Some(0) => Err(Error::Unavailable("the reply was lost".into())),
            _ => answer,
        }
    }

    fn store(&self) -> Result<&S, Error> {
        if self.0.on.load(Ordering::SeqCst) {
            Ok(&self.0.store)
        } else {
            Err(Error::Unavailable("switched off".into()))
        }
    }
}

impl<S: Store> Store for SwitchableStore<S> {
    async fn acquire(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.maybe_drop(self.store()?.acquire(plan).await)
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.store()?.peek(plan).await
    }

    async fn book(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.maybe_drop(self.store()?.book(plan).await)
    }

    async fn claim(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        self.maybe_drop(self.store()?.claim(plan, claimant).await)
    }

    async fn cancel(&self, handle: &Handle) -> Result<EndResult, Error> {
        self.store()?.cancel(handle).await
    }

    async fn settle(&self, handle: &Handle, actual: &Cost) -> Result<EndResult, Error> {
        self.store()?.settle(handle, actual).await
    }

    async fn release(&self, handle: &Handle) -> Result<EndResult, Error> {
        self.store()?.release(handle).await
    }

    async fn renew(&self, handle: &Handle) -> Result<Renewal, Error> {
        self.store()?.renew(handle).await
    }

    async fn refund(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.store()?.refund(plan).await
    }

    async fn close(&self, plan: &Plan<'_>, wait: Span) -> Result<GateClosure, Error> {
        self.store()?.close(plan, wait).await
    }

    async fn reset(&self, plan: &Plan<'_>) -> Result<Timestamp, Error> {
        self.store()?.reset(plan).await
    }

    async fn usage(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.store()?.usage(plan).await
    }

    async fn exchange_backlogs(
        &self,
        plan: &Plan<'_>,
        report: &BacklogReport,
    ) -> Result<Vec<Backlog>, Error> {
        self.store()?.exchange_backlogs(plan, report).await
    }

    fn nodes(&self) -> u32 {
        self.0.nodes.load(Ordering::SeqCst)
    }
}
