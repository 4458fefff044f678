//! The queue suite for the embedded queue.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Timestamp};
use sluicegate_queue::{Broker, Embedded};
use sluicegate_testkit::{ManualClock, QueueSubject, queue_suite};

struct Subject {
    broker: Arc<Embedded>,
    clock: Arc<ManualClock>,
    _folder: tempfile::TempDir,
}

impl QueueSubject for Subject {
    const VISIBILITY: Span = Span::from_millis(300);
    const DELAY: Span = Span::from_secs(40_000);
    const FENCES: bool = true;
    const DELIVERS_COPIES: bool = false;

    fn fresh() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_800_000_000)));
        let broker = Embedded::with_clock(&folder.path().join("queue.db"), clock.clone());
        Self { broker: Arc::new(broker.expect("a file")), clock, _folder: folder }
    }

    fn broker(&self) -> Arc<dyn Broker> {
        self.broker.clone()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    async fn pass(&self, span: Span) {
        // After all waiting tasks have checked once, so that an early delivery would be noticed.
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.clock.advance(span);
    }

    async fn end_leases(&self) {
        self.pass(Self::VISIBILITY).await;
    }

    async fn restart(&self) {
        // There is no server to restart: `processes.rs` covers several processes.
    }
}

queue_suite!(Subject);
