//! Polls the depth of queues in the background, so that reading metrics does not call the broker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluicegate_queue::{Depth, Queue};
use tokio_util::sync::CancellationToken;
use tracing::debug;

const EVERY: Duration = Duration::from_secs(2);
/// Maximum number of queues, including those of clients.
const QUEUES_MAX: usize = 100;

/// Poller of queue depths. Clones share the state.
#[derive(Clone, Default)]
pub(crate) struct DepthPoller(Arc<Mutex<PolledQueues>>);

/// The queues of a process and their dead-letter queues.
#[derive(Default)]
pub(crate) struct PolledQueues {
    pub(crate) queues: Vec<PolledQueue>,
    /// Dead-letter queues by name, each once, however many queues share it.
    pub(crate) dead_letters: BTreeMap<String, PolledDeadLetters>,
}

/// A queue and its depth when it was last polled.
pub(crate) struct PolledQueue {
    pub(crate) queue: Queue,
    pub(crate) depth: Option<Depth>,
}

/// A dead-letter queue and the number of its letters when it was last polled.
pub(crate) struct PolledDeadLetters {
    /// The first queue that uses it.
    pub(crate) queue: Queue,
    /// True if it may contain letters of other queues.
    pub(crate) is_shared: bool,
    count: Option<u64>,
}

impl PolledQueues {
    fn add(&mut self, queue: Queue) {
        let is_shared = queue.shared_dead_letters().is_some();
        let name = queue.dead_letter_name().to_owned();
        self.dead_letters
            .entry(name)
            .and_modify(|known| known.is_shared = true)
            .or_insert_with(|| PolledDeadLetters { queue: queue.clone(), is_shared, count: None });
        self.queues.push(PolledQueue { queue, depth: None });
    }

    /// Returns the known numbers of dead letters: by queue, or by dead-letter queue if several queues
    /// may share it. Brokers do not count the letters of one queue among those of others.
    pub(crate) fn dead_counts(&self) -> BTreeMap<&str, u64> {
        let mut counts = BTreeMap::new();
        for polled in self.dead_letters.values() {
            if let Some(count) = polled.count {
                *counts.entry(polled.name()).or_default() += count;
            }
        }
        counts
    }
}

impl PolledDeadLetters {
    /// Returns the name under which the letters are counted.
    pub(crate) fn name(&self) -> &str {
        if self.is_shared { self.queue.dead_letter_name() } else { self.queue.name() }
    }
}

impl DepthPoller {
    /// Adds queues to poll.
    pub(crate) fn add(&self, queues: impl Iterator<Item = Queue>) {
        let mut polled = self.lock();
        queues.for_each(|queue| polled.add(queue));
    }

    /// Adds a queue that a client uses, unless it is known or there are too many.
    pub(crate) fn add_of_clients(&self, queue: &Queue) {
        let mut polled = self.lock();
        let is_known = polled.queues.iter().any(|known| known.queue.name() == queue.name());
        if !is_known && polled.queues.len() < QUEUES_MAX {
            polled.add(queue.clone());
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
        tokio::join!(self.poll_queues(), self.poll_dead_letters());
    }

    async fn poll_queues(&self) {
        let queues: Vec<_> = self.lock().queues.iter().map(|polled| polled.queue.clone()).collect();
        for (number, queue) in queues.into_iter().enumerate() {
            if !queue.capabilities().depth {
                continue;
            }
            let depth = queue.depth().await;
            if let Err(error) = &depth {
                debug!(queue = queue.name(), %error, "can't read queue depth");
            }
            if let Some(polled) = self.lock().queues.get_mut(number) {
                polled.depth = depth.ok();
            }
        }
    }

    async fn poll_dead_letters(&self) {
        let queues: Vec<_> =
            self.lock().dead_letters.values().map(|polled| polled.queue.clone()).collect();
        for queue in queues {
            if !queue.capabilities().depth {
                continue;
            }
            let depth = queue.dead_depth().await;
            if let Some(polled) = self.lock().dead_letters.get_mut(queue.dead_letter_name()) {
                polled.count = depth.ok().map(|depth| depth.ready);
            }
        }
    }

    /// Returns the depth of each queue that was polled successfully.
    pub(crate) fn depths(&self) -> Vec<(String, Depth)> {
        let known = |polled: &PolledQueue| Some((polled.queue.name().to_owned(), polled.depth?));
        self.lock().queues.iter().filter_map(known).collect()
    }

    /// Returns all queues.
    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, PolledQueues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
