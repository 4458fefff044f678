//! The right to send one request, now. It is given back by itself unless the request left.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::plan::Handle;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_service::Service;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::debug;

/// Permission for one request.
pub(crate) struct Pass {
    service: Arc<Service>,
    /// What it was charged under, where that can be given back.
    handles: Vec<Handle>,
    /// The turn that was booked for it, if it had to wait.
    turn: Option<Turn>,
    /// What the tightest limit has left.
    pub(crate) remaining: Option<u64>,
    /// The policy that decided, if the store did not answer.
    pub(crate) outage: Option<OutagePolicy>,
    /// How long its leases last without renewal.
    pub(crate) lease: Option<Span>,
    left: bool,
    renewal: Option<AbortHandle>,
}

/// A booking that was claimed. It is good for a moment: the store spaces turns by no more.
struct Turn {
    handle: Handle,
    good_until: Timestamp,
}

impl Pass {
    pub(crate) fn new(service: &Arc<Service>) -> Self {
        Self {
            service: service.clone(),
            handles: Vec::new(),
            turn: None,
            remaining: None,
            outage: None,
            lease: None,
            left: false,
            renewal: None,
        }
    }

    /// Also gives this back if the request never leaves.
    #[must_use]
    pub(crate) fn with(mut self, handle: Option<Handle>) -> Self {
        self.handles.extend(handle);
        self
    }

    /// It is for a turn that was booked, and good until then by the clock of this node.
    #[must_use]
    pub(crate) fn booked(mut self, handle: Handle, good_until: Timestamp) -> Self {
        self.turn = Some(Turn { handle, good_until });
        self
    }

    /// Whether its turn is over, so that sending now could break the limit.
    pub(crate) fn is_late(&self, now: Timestamp) -> bool {
        self.turn.as_ref().is_some_and(|turn| now > turn.good_until)
    }

    /// Gives the turn back, and keeps what else it was charged.
    pub(crate) async fn give_turn_back(&mut self) {
        if let Some(Turn { handle, .. }) = self.turn.take() {
            cancel(&self.service, &handle).await;
        }
    }

    /// Also gives back what another pass, which has no turn, would.
    #[must_use]
    pub(crate) fn joined(mut self, mut other: Self) -> Self {
        debug_assert!(other.turn.is_none());
        self.handles.append(&mut other.handles);
        self.lease = self.lease.into_iter().chain(other.lease).min();
        self
    }

    /// The request is on its way: from here on it counts, whatever becomes of it. Its leases are
    /// renewed until the pass is dropped.
    pub(crate) fn left(&mut self) {
        self.left = true;
        if let Some(lease) = self.lease {
            let turn = self.turn.iter().map(|turn| &turn.handle);
            let handles: Vec<_> = turn.chain(&self.handles).cloned().collect();
            let service = self.service.clone();
            let renewing = async move {
                loop {
                    sleep(Duration::from(lease) / 3).await;
                    for handle in &handles {
                        if let Err(error) = service.renew(handle).await {
                            debug!(%error, "a lease could not be renewed");
                        }
                    }
                }
            };
            self.renewal = Some(tokio::spawn(renewing).abort_handle());
        }
    }

    /// Gives back what it was charged.
    pub(crate) async fn give_back(mut self) {
        let handles = self.end();
        for handle in handles {
            cancel(&self.service, &handle).await;
        }
    }

    /// Nothing is left to be done when it is dropped.
    fn end(&mut self) -> Vec<Handle> {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        let turn = self.turn.take().map(|turn| turn.handle);
        turn.into_iter().chain(std::mem::take(&mut self.handles)).collect()
    }
}

async fn cancel(service: &Service, handle: &Handle) {
    if let Err(error) = service.cancel(handle).await {
        debug!(%error, "a turn could not be given back");
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let (handles, service) = (self.end(), self.service.clone());
        let leased = self.lease.is_some();
        let left = self.left;
        if handles.is_empty() || left && !leased {
            return;
        }
        let ending = async move {
            for handle in handles {
                let ended = match left {
                    true => service.release(&handle).await,
                    false => service.cancel(&handle).await,
                };
                if let Err(error) = ended {
                    debug!(%error, "what a request held was not given back; it expires");
                }
            }
        };
        // Outside of a runtime the process ends, and what nobody gives back expires.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(ending);
        }
    }
}
