//! Polls the depth of queues in the background, so that reading metrics does not call the broker.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluicegate_queue::{Depth, Queue};
use tokio_util::sync::CancellationToken;
use tracing::debug;

const EVERY: Duration = Duration::from_secs(2);
/// Maximum number of queues with those of clients.
const QUEUES_MAX: usize = 100;

/// Poller of queue depths. Clones share the state.
#[derive(Clone, Default)]
pub(crate) struct DepthPoller(Arc<Mutex<Vec<PolledQueue>>>);

/// A queue and its depth when it was last polled.
pub(crate) struct PolledQueue {
    pub(crate) queue: Queue,
    pub(crate) depth: Option<Depth>,
    /// Number of dead letters.
    pub(crate) dead: Option<u64>,
}

impl DepthPoller {
    /// Adds queues to poll.
    pub(crate) fn add(&self, queues: impl Iterator<Item = Queue>) {
        let polled = queues.map(|queue| PolledQueue { queue, depth: None, dead: None });
        self.lock().extend(polled);
    }

    /// Adds a queue that a client uses, unless it is known or there are too many.
    pub(crate) fn add_of_clients(&self, queue: &Queue) {
        let mut queues = self.lock();
        let is_known = queues.iter().any(|polled| polled.queue.name() == queue.name());
        if !is_known && queues.len() < QUEUES_MAX {
            queues.push(PolledQueue { queue: queue.clone(), depth: None, dead: None });
        }
    }

    /// Polls the broker every two seconds until it is stopped.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            if stop.run_until_cancelled(self.poll()).await.is_none() {
                return;
            }
        }
    }

    /// Polls the broker once.
    pub(crate) async fn poll(&self) {
        let queues: Vec<_> = self.lock().iter().map(|polled| polled.queue.clone()).collect();
        for (number, queue) in queues.into_iter().enumerate() {
            if !queue.capabilities().depth {
                continue;
            }
            let (depth, dead) = tokio::join!(queue.depth(), queue.dead_depth());
            if let Err(error) = &depth {
                debug!(queue = queue.name(), %error, "can't read queue depth");
            }
            if let Some(polled) = self.lock().get_mut(number) {
                polled.depth = depth.ok();
                polled.dead = dead.ok().map(|dead| dead.ready);
            }
        }
    }

    /// Returns the depth and the number of dead letters of each queue that was polled successfully.
    pub(crate) fn depths(&self) -> Vec<(String, Depth, u64)> {
        let known = |polled: &PolledQueue| {
            let name = polled.queue.name().to_owned();
            Some((name, polled.depth?, polled.dead.unwrap_or_default()))
        };
        self.lock().iter().filter_map(known).collect()
    }

    /// Returns all queues.
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, Vec<PolledQueue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
