//! [`Pass`]: the permission to send one request now. Dropping it refunds the charge unless the
//! request was sent.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::outage::OutagePolicy;
use sluicegate_core::plan::Handle;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_service::Service;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::debug;

/// A permission to send one request.
pub(crate) struct Pass {
    service: Arc<Service>,
    /// Handles of the charges that can be refunded.
    handles: Vec<Handle>,
    /// Booked slot, if the request had to wait.
    slot: Option<BookedSlot>,
    /// Remaining amount of the tightest limit.
    pub(crate) remaining: Option<u64>,
    /// Outage policy that decided, if the store was unavailable.
    pub(crate) outage: Option<OutagePolicy>,
    /// Time until its leases expire without renewal.
    pub(crate) lease: Option<Span>,
    left: bool,
    renewal: Option<AbortHandle>,
}

/// A claimed booking. It is valid only for a moment, because the store spaces slots without a
/// margin.
struct BookedSlot {
    handle: Handle,
    good_until: Timestamp,
}

impl Pass {
    pub(crate) fn new(service: &Arc<Service>) -> Self {
        Self {
            service: service.clone(),
            handles: Vec::new(),
            slot: None,
            remaining: None,
            outage: None,
            lease: None,
            left: false,
            renewal: None,
        }
    }

    /// Adds a charge that is refunded if the request is never sent.
    #[must_use]
    pub(crate) fn with(mut self, handle: Option<Handle>) -> Self {
        self.handles.extend(handle);
        self
    }

    /// Sets the booked slot, which is valid until `good_until` by the clock of this node.
    #[must_use]
    pub(crate) fn booked(mut self, handle: Handle, good_until: Timestamp) -> Self {
        self.slot = Some(BookedSlot { handle, good_until });
        self
    }

    /// Returns true if the slot has expired, so that sending now could break the limit.
    pub(crate) fn is_late(&self, now: Timestamp) -> bool {
        self.slot.as_ref().is_some_and(|slot| now > slot.good_until)
    }

    /// Cancels the booked slot and keeps all other charges.
    pub(crate) async fn cancel_slot(&mut self) {
        if let Some(BookedSlot { handle, .. }) = self.slot.take() {
            cancel(&self.service, &handle).await;
        }
    }

    /// Takes over the charges of another pass, which has no slot.
    #[must_use]
    pub(crate) fn joined(mut self, mut other: Self) -> Self {
        debug_assert!(other.slot.is_none());
        self.handles.append(&mut other.handles);
        self.lease = self.lease.into_iter().chain(other.lease).min();
        self
    }

    /// Marks the request as sent: from now on it counts, whatever its result. Renews its leases
    /// until the pass is dropped.
    pub(crate) fn left(&mut self) {
        self.left = true;
        if let Some(lease) = self.lease {
            let slot = self.slot.iter().map(|slot| &slot.handle);
            let handles: Vec<_> = slot.chain(&self.handles).cloned().collect();
            let service = self.service.clone();
            let renewing = async move {
                loop {
                    sleep(Duration::from(lease) / 3).await;
                    for handle in &handles {
                        if let Err(error) = service.renew(handle).await {
                            debug!(%error, "lease renewal failed");
                        }
                    }
                }
            };
            self.renewal = Some(tokio::spawn(renewing).abort_handle());
        }
    }

    /// Refunds all charges.
    pub(crate) async fn give_back(mut self) {
        let handles = self.end();
        for handle in handles {
            cancel(&self.service, &handle).await;
        }
    }

    /// Stops the renewal and takes the handles, so that dropping the pass does nothing more.
    fn end(&mut self) -> Vec<Handle> {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        let slot = self.slot.take().map(|slot| slot.handle);
        slot.into_iter().chain(std::mem::take(&mut self.handles)).collect()
    }
}

async fn cancel(service: &Service, handle: &Handle) {
    if let Err(error) = service.cancel(handle).await {
        debug!(%error, "booking refund failed");
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
                    debug!(%error, "release failed: the reservation expires by itself");
                }
            }
        };
        // Outside of a runtime the process is ending; what is not refunded expires.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(ending);
        }
    }
}
