//! [`PendingRequeues`]: dropped receipts whose messages are being requeued.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::Error;

/// Maximum number of dropped receipts that a process waits for before it ends.
const REQUEUES_MAX: u32 = 1 << 20;

/// A counter of requeues that run in the background. Clones share the counter.
#[derive(Clone, Debug)]
pub(crate) struct PendingRequeues {
    /// A permit is taken for each requeue.
    permits: Arc<Semaphore>,
}

impl PendingRequeues {
    pub(crate) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(REQUEUES_MAX as usize)) }
    }

    /// Runs a requeue in the background. If it fails, the lease of the message ends.
    pub(crate) fn start(&self, requeue: impl Future<Output = Result<(), Error>> + Send + 'static) {
        if let Ok(permit) = self.permits.clone().try_acquire_owned()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                let _ = requeue.await;
                drop(permit);
            });
        }
    }

    /// Waits until all requeues are done.
    pub(crate) async fn flush(&self) {
        drop(self.permits.acquire_many(REQUEUES_MAX).await);
    }
}
