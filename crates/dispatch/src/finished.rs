//! [`FinishedJobs`]: jobs whose work is done, but whose message could not be acknowledged. The
//! broker delivers it again, and the work must not be repeated.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use sluicegate_queue::{Message, MessageId, Queue};

/// Maximum number of jobs that are remembered; the oldest is forgotten first.
const JOBS_MAX: usize = 10_000;
/// Maximum size of their unpublished messages, in bytes.
const BYTES_MAX: usize = 64 << 20;

/// The messages of a finished job that are not published yet, by queue.
pub(crate) type Outbox = Vec<(Queue, Vec<Message>)>;

/// Finished jobs by the id of their message.
#[derive(Default)]
pub(crate) struct FinishedJobs(Mutex<Jobs>);

#[derive(Default)]
struct Jobs {
    outboxes: HashMap<MessageId, Outbox>,
    /// Ids in the order in which they were added; some may have been taken since.
    order: VecDeque<MessageId>,
    bytes: usize,
}

impl FinishedJobs {
    /// Remembers a finished job, with the messages that it has yet to publish.
    pub(crate) fn insert(&self, id: MessageId, outbox: Outbox) {
        let mut jobs = self.lock();
        jobs.remove(&id);
        jobs.bytes += size(&outbox);
        jobs.order.push_back(id.clone());
        jobs.outboxes.insert(id, outbox);
        while (jobs.order.len() > JOBS_MAX || jobs.bytes > BYTES_MAX)
            && let Some(first) = jobs.order.pop_front()
        {
            jobs.remove(&first);
        }
    }

    /// Returns the messages that a finished job has yet to publish, and forgets the job.
    pub(crate) fn take(&self, id: &MessageId) -> Option<Outbox> {
        self.lock().remove(id)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Jobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Jobs {
    fn remove(&mut self, id: &MessageId) -> Option<Outbox> {
        let outbox = self.outboxes.remove(id)?;
        self.bytes -= size(&outbox);
        Some(outbox)
    }
}

fn size(outbox: &Outbox) -> usize {
    outbox.iter().flat_map(|(_, batch)| batch).map(|message| message.body.len()).sum()
}
