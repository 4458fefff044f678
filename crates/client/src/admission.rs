//! [`Admission`]: the right to do a piece of work. Dropping it ends the admission.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::task::AbortHandle;
use tracing::warn;

use crate::backend::{AdmissionHandle, AllowedOutcome, EndMode};
use crate::cost::Cost;
use crate::decision::{DecisionSource, Facts};
use crate::error::{Error, ErrorKind};
use crate::limiter::Shared;
use crate::scope::Scope;
use crate::settlement::Settlement;

/// Pause before a renewal is repeated that got no answer.
const AGAIN: Duration = Duration::from_millis(500);

/// An admission: the work may run as long as this value lives.
///
/// | method | concurrency slots | charges |
/// |---|---|---|
/// | drop, [`release`](Self::release) | are freed | stay; an estimate stays as it is |
/// | [`settle`](Self::settle) | are freed | the estimate is replaced by the actual cost |
/// | [`cancel`](Self::cancel) | are freed | are given back |
///
/// While it lives, its leases and its reservation are renewed in the background. That needs a Tokio
/// runtime. If the process dies, they end by themselves.
pub struct Admission {
    facts: Facts,
    replayed: bool,
    open: Option<OpenAdmission>,
}

/// An admission that has to be ended.
struct OpenAdmission {
    shared: Arc<Shared>,
    handle: AdmissionHandle,
    renewal: Option<AbortHandle>,
    /// The runtime that ends it in the background.
    runtime: Option<Runtime>,
}

impl Admission {
    pub(crate) fn new(shared: &Arc<Shared>, outcome: AllowedOutcome) -> Self {
        let AllowedOutcome { facts, replayed, handle, lease } = outcome;
        let open = handle.map(|handle| {
            let runtime = Runtime::try_current().ok();
            let renewal = lease.zip(runtime.as_ref()).map(|(lease, runtime)| {
                let renewal = renew(shared.clone(), handle.clone(), lease);
                runtime.spawn(renewal).abort_handle()
            });
            OpenAdmission { shared: shared.clone(), handle, renewal, runtime }
        });
        Self { facts, replayed, open }
    }

    /// Returns every limit that was checked.
    pub fn scopes(&self) -> &[Scope] {
        &self.facts.scopes
    }

    /// Returns the header fields for an HTTP response.
    pub fn headers(&self) -> &[(&'static str, String)] {
        &self.facts.headers
    }

    /// Returns the origin of the decision.
    pub const fn source(&self) -> DecisionSource {
        self.facts.source
    }

    /// Returns true if the id of the request was admitted before. Nothing was charged again.
    pub const fn is_replayed(&self) -> bool {
        self.replayed
    }

    /// Replaces the estimate with the actual cost, and frees the concurrency slots. After an error
    /// the admission is released.
    pub async fn settle(mut self, cost: Cost) -> Result<Settlement, Error> {
        let Some(open) = &self.open else { return Ok(Settlement::default()) };
        let settled = open.shared.backend.settle(&open.handle, &cost).await?;
        open.shared.counters.count_unsettled_unless(settled.recorded);
        self.forget();
        Ok(settled)
    }

    /// Frees the concurrency slots and keeps the charges. Dropping the admission does the same in
    /// the background.
    pub async fn release(self) -> Result<(), Error> {
        self.end(EndMode::Release).await
    }

    /// Gives back everything, because the work did not run.
    pub async fn cancel(self) -> Result<(), Error> {
        self.end(EndMode::Cancel).await
    }

    async fn end(mut self, how: EndMode) -> Result<(), Error> {
        let Some(open) = &self.open else { return Ok(()) };
        let recorded = open.shared.backend.end(&open.handle, how).await?;
        open.shared.counters.count_unsettled_unless(recorded);
        self.forget();
        Ok(())
    }

    /// Settles or releases the admission in the background.
    #[cfg(feature = "tower")]
    pub(crate) fn finish(mut self, actual: Option<Cost>) {
        if let Some(open) = self.open.take() {
            open.finish(actual);
        }
    }

    pub(crate) const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Drops the handle of an admission that has ended.
    fn forget(&mut self) {
        if let Some(open) = self.open.take() {
            open.stop_renewal();
        }
    }
}

impl OpenAdmission {
    fn stop_renewal(&self) {
        if let Some(renewal) = &self.renewal {
            renewal.abort();
        }
    }

    /// Settles or releases in the background. With a store in this process, it is done when this
    /// returns.
    fn finish(self, actual: Option<Cost>) {
        self.stop_renewal();
        let Self { shared, handle, runtime, .. } = self;
        let ends_at_once = shared.backend.ends_at_once();
        let mut ending = Box::pin(async move {
            let release = || shared.backend.end(&handle, EndMode::Release);
            let ended = match &actual {
                None => release().await,
                Some(cost) => match shared.backend.settle(&handle, cost).await {
                    Ok(settled) => Ok(settled.recorded),
                    Err(error) => {
                        // The estimate stays charged, and the slots must not stay taken.
                        warn!(%error, "an admission could not be settled");
                        release().await.and(Err(error))
                    }
                },
            };
            shared.counters.count_unsettled_unless(matches!(ended, Ok(true)));
        });
        if ends_at_once {
            let _ = ending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        } else if let Some(runtime) = runtime {
            // A runtime that shuts down drops it, and the lease ends by itself.
            runtime.spawn(ending);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.finish(None);
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { facts, replayed, open } = self;
        f.debug_struct("Admission")
            .field("scopes", &facts.scopes)
            .field("replayed", replayed)
            .field("open", &open.is_some())
            .finish()
    }
}

/// Renews an admission until it has ended, each time when half of its time is over.
async fn renew(shared: Arc<Shared>, handle: AdmissionHandle, lease: Duration) {
    let mut wait = lease / 2;
    loop {
        shared.backend.sleep(wait).await;
        wait = match shared.backend.renew(&handle).await {
            Ok(lease) => lease / 2,
            Err(error) if error.kind() == ErrorKind::Unavailable => AGAIN,
            Err(_) => return,
        };
    }
}
