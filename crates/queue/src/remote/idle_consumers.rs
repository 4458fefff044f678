//! [`IdleConsumers`]: consumers between two receives of a client. A broker that is polled may have a
//! poll in flight when a receive ends; the next receive gets its messages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_core::{Span, Timestamp};

use crate::Consumer;

/// Time after which an unused consumer is closed, which returns its messages.
const KEEP: Duration = Duration::from_secs(2);
/// Maximum number of idle consumers.
const COUNT_MAX: usize = 256;

/// Time that one poll waits, and length of the leases.
type ConsumerTimes = (Span, Span);
type ConsumerKey = (String, ConsumerTimes);

/// Unused consumers of queues.
#[derive(Clone, Default)]
pub(super) struct IdleConsumers(Arc<Mutex<ConsumerLists>>);

#[derive(Default)]
struct ConsumerLists {
    lists: HashMap<ConsumerKey, Vec<(u64, Consumer, Timestamp)>>,
    count: usize,
    next: u64,
}

impl IdleConsumers {
    /// Returns an unused consumer, and the time at which its last receive ended.
    pub(super) fn take(&self, queue: &str, times: ConsumerTimes) -> Option<(Consumer, Timestamp)> {
        let mut idle = self.lock();
        let key = (queue.to_owned(), times);
        let (_, consumer, since) = idle.lists.get_mut(&key)?.pop()?;
        idle.count -= 1;
        Some((consumer, since))
    }

    /// Keeps a consumer for a while.
    pub(super) fn put(
        &self,
        queue: &str,
        times: ConsumerTimes,
        consumer: Consumer,
        now: Timestamp,
    ) {
        let key = (queue.to_owned(), times);
        let mut idle = self.lock();
        if idle.count >= COUNT_MAX {
            drop(idle);
            // Dropping it would count as a redelivery of its messages.
            tokio::spawn(consumer.close());
            return;
        }
        let id = idle.next;
        idle.next += 1;
        idle.count += 1;
        idle.lists.entry(key.clone()).or_default().push((id, consumer, now));
        drop(idle);
        let all = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(KEEP).await;
            join_all(all.remove(&key, id).into_iter().map(Consumer::close)).await;
        });
    }

    fn remove(&self, key: &ConsumerKey, id: u64) -> Vec<Consumer> {
        let mut idle = self.lock();
        let Some(list) = idle.lists.get_mut(key) else { return Vec::new() };
        let removed: Vec<_> = list.extract_if(.., |(other, ..)| *other == id).collect();
        if list.is_empty() {
            idle.lists.remove(key);
        }
        idle.count -= removed.len();
        removed.into_iter().map(|(_, consumer, _)| consumer).collect()
    }

    /// Removes all consumers and returns them.
    pub(super) fn clear(&self) -> Vec<Consumer> {
        let all = std::mem::take(&mut *self.lock());
        all.lists.into_values().flatten().map(|(_, consumer, _)| consumer).collect()
    }

    fn lock(&self) -> MutexGuard<'_, ConsumerLists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
