//! [`InFlight`]: the requests that a listener works on, and its state at shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The number of requests without a complete response. Requests that arrive while the listener
/// drains are not counted, so that the number only falls.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    requests: AtomicUsize,
    draining: AtomicBool,
    finished: Notify,
}

impl InFlight {
    /// Counts a request until the guard is dropped.
    pub(super) fn start(self: &Arc<Self>) -> Option<InFlightRequest> {
        if self.is_draining() {
            return None;
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        Some(InFlightRequest(Arc::clone(self)))
    }

    /// Returns true once the listener drains.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Begins to drain, and returns when all counted requests have their response.
    pub(super) async fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        loop {
            let finished = self.finished.notified();
            if self.requests.load(Ordering::SeqCst) == 0 {
                return;
            }
            finished.await;
        }
    }
}

/// Guard of a request that is counted.
pub(super) struct InFlightRequest(Arc<InFlight>);

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        // There is one waiter at most; a permit that is stored too early does no harm.
        if self.0.requests.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_draining() {
            self.0.finished.notify_one();
        }
    }
}
