//! [`Admission`]: the right to do a piece of work. Dropping it ends the admission.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// Pause before a call is repeated that got no answer; the end of an admission is sent again after
/// pauses that grow to the maximum.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// Time for which the end of an admission is sent again if it has no lease.
const RETRY_TIME: Duration = Duration::from_secs(60);
/// Maximum number of admissions of a limiter whose end is sent again.
const RETRIES_MAX: usize = 10_000;

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
///
/// If the store or the service does not answer at its end, the end is sent again in the background,
/// until the lease or the reservation would have ended.
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
    /// Time after which it ends by itself.
    lease: Option<Duration>,
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
            OpenAdmission { shared: shared.clone(), handle, renewal, lease, runtime }
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
        self.ended(settled.recorded, Ending::Settle(cost));
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
        self.ended(recorded, Ending::Mode(how));
        Ok(())
    }

    /// Settles or releases the admission in the background.
    #[cfg(feature = "tower")]
    pub(crate) fn finish(mut self, actual: Option<Cost>) {
        if let Some(open) = self.open.take() {
            open.finish(
                actual.map_or(Ending::Mode(EndMode::Release), Ending::Settle),
                Duration::ZERO,
            );
        }
    }

    pub(crate) const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Drops the handle of an admission whose end is recorded; otherwise sends the end again.
    fn ended(&mut self, recorded: bool, ending: Ending) {
        if let Some(open) = self.open.take() {
            if recorded {
                open.stop_renewal();
            } else {
                open.finish(ending, AGAIN);
            }
        }
    }
}

impl OpenAdmission {
    fn stop_renewal(&self) {
        if let Some(renewal) = &self.renewal {
            renewal.abort();
        }
    }

    /// Ends the admission in the background, after a pause. With a store in this process and without a
    /// pause, it is done when this returns.
    fn finish(self, ending: Ending, pause: Duration) {
        self.stop_renewal();
        let Self { shared, handle, lease, runtime, .. } = self;
        let ends_at_once = shared.backend.ends_at_once();
        let mut ending = Box::pin(async move {
            let recorded = match pause.is_zero() {
                true => match end(&shared, &handle, &ending).await {
                    None if !ends_at_once => end_again(&shared, &handle, &ending, lease).await,
                    recorded => recorded == Some(true),
                },
                false => end_again(&shared, &handle, &ending, lease).await,
            };
            shared.counters.count_unsettled_unless(recorded);
        });
        if ends_at_once {
            let _ = ending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        } else if let Some(runtime) = runtime {
            // A runtime that shuts down drops it, and the lease ends by itself.
            runtime.spawn(ending);
        }
    }
}

/// The end of an admission.
enum Ending {
    Mode(EndMode),
    Settle(Cost),
}

/// Ends an admission. Returns true if that is recorded, false if it can't be, and `None` if nothing
/// answered.
async fn end(shared: &Shared, handle: &AdmissionHandle, ending: &Ending) -> Option<bool> {
    let ended = match ending {
        Ending::Mode(mode) => shared.backend.end(handle, *mode).await,
        Ending::Settle(cost) => {
            shared.backend.settle(handle, cost).await.map(|settled| settled.recorded)
        }
    };
    match ended {
        Ok(recorded) => recorded.then_some(true),
        Err(error) if error.kind() == ErrorKind::Unavailable => None,
        Err(error) => {
            if matches!(ending, Ending::Settle(_)) {
                // The estimate stays charged, and the slots must not stay taken.
                warn!(%error, "an admission could not be settled");
                let _ = shared.backend.end(handle, EndMode::Release).await;
            }
            Some(false)
        }
    }
}

/// Sends the end of an admission again until it is recorded or the admission has ended by itself.
/// Returns true if it is recorded.
async fn end_again(
    shared: &Shared,
    handle: &AdmissionHandle,
    ending: &Ending,
    lease: Option<Duration>,
) -> bool {
    // While the service is down, every request of a busy program may leave an admission behind.
    let Some(_place) = RetryPlace::take(&shared.retries) else { return false };
    let mut left = lease.unwrap_or(RETRY_TIME);
    let mut pause = AGAIN;
    while left > Duration::ZERO {
        shared.backend.sleep(pause.min(left)).await;
        left = left.saturating_sub(pause);
        if let Some(recorded) = end(shared, handle, ending).await {
            return recorded;
        }
        pause = (pause * 2).min(AGAIN_MAX);
    }
    false
}

/// A place among the admissions whose end is sent again.
struct RetryPlace<'a>(&'a AtomicUsize);

impl<'a> RetryPlace<'a> {
    fn take(taken: &'a AtomicUsize) -> Option<Self> {
        let place = Self(taken);
        // Over the maximum, the place is given back at once.
        (taken.fetch_add(1, Ordering::Relaxed) < RETRIES_MAX).then_some(place)
    }
}

impl Drop for RetryPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.finish(Ending::Mode(EndMode::Release), Duration::ZERO);
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
