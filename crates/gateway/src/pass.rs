//! The right to send one request, now. It is given back by itself unless the request left.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::Store;
use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::plan::Handle;
use sluicegate_core::time::{Clock, Span};
use sluicegate_door::service::Service;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::debug;

/// Permission for one request.
pub(crate) struct Pass<S: Store + 'static, C: Clock + 'static> {
    service: Arc<Service<S, C>>,
    /// What it was charged under, where that can be given back.
    handles: Vec<Handle>,
    /// What the tightest limit has left.
    pub(crate) remaining: Option<u64>,
    /// The policy that decided, if the store did not answer.
    pub(crate) outage: Option<OutagePolicy>,
    /// How long its leases last without renewal.
    pub(crate) lease: Option<Span>,
    left: bool,
    renewal: Option<AbortHandle>,
}

impl<S: Store + 'static, C: Clock + 'static> Pass<S, C> {
    pub(crate) fn new(service: &Arc<Service<S, C>>) -> Self {
        Self {
            service: service.clone(),
            handles: Vec::new(),
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

    /// Also gives back what another pass would.
    #[must_use]
    pub(crate) fn joined(mut self, mut other: Self) -> Self {
        self.handles.append(&mut other.handles);
        self.lease = self.lease.into_iter().chain(other.lease).min();
        self
    }

    /// The request is on its way: from here on it counts, whatever becomes of it. Its leases are
    /// renewed until the pass is dropped.
    pub(crate) fn left(&mut self) {
        self.left = true;
        if let Some(lease) = self.lease {
            let (service, handles) = (self.service.clone(), self.handles.clone());
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
            if let Err(error) = self.service.cancel(&handle).await {
                debug!(%error, "a turn could not be given back");
            }
        }
    }

    /// Nothing is left to be done when it is dropped.
    fn end(&mut self) -> Vec<Handle> {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        std::mem::take(&mut self.handles)
    }
}

impl<S: Store + 'static, C: Clock + 'static> Drop for Pass<S, C> {
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
