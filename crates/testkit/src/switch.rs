//! A store that can be cut off, or whose answers are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Claim, EndResult, Error, GateClosure, Renewal, Usage};
use sluicegate_core::{Decision, Id, Plan, Span, Store, Timestamp};

/// A store behind a switch: while it is off, nothing answers and nothing is changed. Answers can
/// also be lost one by one, after the store has done what was asked. A clone is another way to the
/// same store, by the same switch.
#[derive(Debug)]
pub struct Switch<S>(Arc<Inner<S>>);

#[derive(Debug)]
struct Inner<S> {
    store: S,
    on: AtomicBool,
    nodes: AtomicU32,
    /// Every so manieth answer is lost; none if it is 0.
    lost: AtomicU32,
    answers: AtomicU32,
}

impl<S> Clone for Switch<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> Switch<S> {
    /// Switched on.
    pub fn new(store: S) -> Self {
        let (on, nodes) = (AtomicBool::new(true), AtomicU32::new(1));
        let (lost, answers) = (AtomicU32::new(0), AtomicU32::new(0));
        Self(Arc::new(Inner { store, on, nodes, lost, answers }))
    }

    /// So many nodes were seen lately.
    pub fn see(&self, nodes: u32) {
        self.0.nodes.store(nodes, Ordering::SeqCst);
    }

    /// Switches it on or off.
    pub fn turn(&self, on: bool) {
        self.0.on.store(on, Ordering::SeqCst);
    }

    /// Loses every `nth` answer from now on to who wants to go: to acquire, book and claim.
    pub fn lose_every(&self, nth: u32) {
        self.0.lost.store(nth, Ordering::SeqCst);
    }

    fn on_its_way<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        let number = self.0.answers.fetch_add(1, Ordering::SeqCst) + 1;
        match number.checked_rem(self.0.lost.load(Ordering::SeqCst)) {
            Some(0) => Err(Error::Unavailable("the answer was lost".into())),
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

impl<S: Store> Store for Switch<S> {
    async fn acquire(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.on_its_way(self.store()?.acquire(plan).await)
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.store()?.peek(plan).await
    }

    async fn book(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.on_its_way(self.store()?.book(plan).await)
    }

    async fn claim(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        self.on_its_way(self.store()?.claim(plan, claimant).await)
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

    fn nodes(&self) -> u32 {
        self.0.nodes.load(Ordering::SeqCst)
    }
}
