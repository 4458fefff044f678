//! A store that can be cut off.

use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Claim, Ended, Error, Renewed, Shut, Usage};
use sluicegate_core::{Decision, Id, Plan, Span, Store, Timestamp};

/// A store behind a switch: while it is off, nothing answers and nothing is changed.
#[derive(Debug)]
pub struct Switch<S> {
    store: S,
    on: AtomicBool,
}

impl<S> Switch<S> {
    /// Switched on.
    pub const fn new(store: S) -> Self {
        Self { store, on: AtomicBool::new(true) }
    }

    /// Switches it on or off.
    pub fn turn(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }

    fn store(&self) -> Result<&S, Error> {
        if self.on.load(Ordering::SeqCst) {
            Ok(&self.store)
        } else {
            Err(Error::Unavailable("switched off".to_owned()))
        }
    }
}

impl<S: Store> Store for Switch<S> {
    async fn acquire(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.store()?.acquire(plan).await
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.store()?.peek(plan).await
    }

    async fn book(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.store()?.book(plan).await
    }

    async fn claim(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        self.store()?.claim(plan, claimant).await
    }

    async fn cancel(&self, handle: &Handle) -> Result<Ended, Error> {
        self.store()?.cancel(handle).await
    }

    async fn settle(&self, handle: &Handle, actual: &Cost) -> Result<Ended, Error> {
        self.store()?.settle(handle, actual).await
    }

    async fn release(&self, handle: &Handle) -> Result<Ended, Error> {
        self.store()?.release(handle).await
    }

    async fn renew(&self, handle: &Handle) -> Result<Renewed, Error> {
        self.store()?.renew(handle).await
    }

    async fn close(&self, plan: &Plan<'_>, wait: Span) -> Result<Shut, Error> {
        self.store()?.close(plan, wait).await
    }

    async fn reset(&self, plan: &Plan<'_>) -> Result<Timestamp, Error> {
        self.store()?.reset(plan).await
    }

    async fn usage(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.store()?.usage(plan).await
    }
}
