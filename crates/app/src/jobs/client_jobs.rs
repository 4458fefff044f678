//! [`ClientJobs`]: makes the queues and messages of clients of the queue API known to the dashboard and
//! to `sluicegate jobs why`.

use sluicegate_core::time::Clock as _;
use sluicegate_dispatch::{JobEvent, JobStatus, JobTracker};
use sluicegate_queue::remote::{ClientEvent, ClientEventKind, ClientObserver, LeaseActionKind};
use sluicegate_queue::{Queue, WallClock};

use super::DepthPoller;

/// Observes the clients of the queue API.
pub(crate) struct ClientJobs {
    pub(crate) depths: DepthPoller,
    pub(crate) tracker: JobTracker,
}

impl ClientObserver for ClientJobs {
    fn on_queue(&self, queue: &Queue) {
        self.depths.add_of_clients(queue);
    }

    fn on_event(&self, event: &ClientEvent<'_>) {
        let (kind, until, error) = match &event.kind {
            ClientEventKind::Sent(until) => (JobEvent::Sent, *until, None),
            ClientEventKind::Leased(until) => (JobEvent::Leased, Some(*until), None),
            ClientEventKind::Settled { action, until, error } => {
                let kind = match action {
                    LeaseActionKind::Ack => JobEvent::Done,
                    LeaseActionKind::Defer | LeaseActionKind::Requeue => JobEvent::Deferred,
                    LeaseActionKind::Retry => JobEvent::Retried,
                    LeaseActionKind::DeadLetter => JobEvent::Dead,
                };
                (kind, *until, error.clone())
            }
        };
        let message = event.message;
        let status = JobStatus {
            at: WallClock.now(),
            event: kind,
            queue: event.queue.to_owned(),
            provider: None,
            until,
            error,
            attempt: message.attempt + u32::from(kind == JobEvent::Retried),
            deferrals: message.deferrals + u32::from(kind == JobEvent::Deferred),
        };
        self.tracker.record(&message.job, status);
    }
}
