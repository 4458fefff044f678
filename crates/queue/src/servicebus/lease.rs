//! [`Leases`]: the locks that this process holds on the messages of a queue. A task renews them until
//! their visibility timeout ends, and then returns the messages.
//!
//! The lock duration is a property of the queue and at most five minutes, so the visibility timeout of
//! a consumer can't be the lock duration.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sluicegate_core::time::Clock as _;
use sluicegate_core::{Span, Timestamp};
use tokio::sync::Notify;
use tracing::warn;
use uuid::Uuid;

use super::management::{Disposition, ManagementRequest};
use super::queue_handle::BusQueue;
use crate::{Error, WallClock};

/// Shortest time between two renewals of a lock, also after a failure.
const RENEWAL_MIN: Span = Span::from_millis(500);
/// Maximum number of locks in a request.
const BATCH_MAX: usize = 100;

pub(super) struct Leases {
    held: Lock<HashMap<Uuid, Lease>>,
    /// Wakes the task.
    changed: Notify,
}

/// A lock.
#[derive(Clone, Copy)]
struct Lease {
    /// End of the visibility timeout.
    ends: Timestamp,
    /// Time of the next renewal.
    renewal: Timestamp,
}

impl Lease {
    /// Returns the time of the next action: the renewal, or the end.
    fn due(self) -> Timestamp {
        self.ends.min(self.renewal)
    }
}

impl Leases {
    /// Starts the task. It ends when this is dropped.
    pub(super) fn start(queue: &Arc<BusQueue>) -> Arc<Self> {
        let leases = Arc::new(Self { held: Lock::default(), changed: Notify::new() });
        tokio::spawn(keep(Arc::downgrade(&leases), queue.clone()));
        leases
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Uuid, Lease>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of locks.
    pub(super) fn count(&self) -> u64 {
        self.held().len() as u64
    }

    /// Holds a lock for a visibility timeout from now.
    pub(super) fn hold(&self, lock: Uuid, locked_until: Timestamp, visibility: Span) {
        let now = WallClock.now();
        let lease = Lease { ends: now + visibility, renewal: renewal(now, locked_until) };
        self.held().insert(lock, lease);
        self.changed.notify_one();
    }

    /// Extends a visibility timeout. Returns false if the lock is not held any more.
    pub(super) fn extend(&self, lock: Uuid, visibility: Span) -> bool {
        let mut held = self.held();
        let Some(lease) = held.get_mut(&lock) else { return false };
        lease.ends = WallClock.now() + visibility;
        drop(held);
        self.changed.notify_one();
        true
    }

    /// Stops renewing a lock.
    pub(super) fn forget(&self, lock: Uuid) {
        self.held().remove(&lock);
    }

    /// Renews locks. Those that are lost are not held any more.
    pub(super) async fn renew(&self, queue: &BusQueue, locks: &[Uuid]) -> Result<(), Error> {
        let asked = WallClock.now();
        let renewed = queue.request(ManagementRequest::renew(locks)).await;
        match renewed {
            Ok(response) => {
                let (mut held, ends) = (self.held(), response.expirations());
                for (place, lock) in locks.iter().enumerate() {
                    if let Some(lease) = held.get_mut(lock) {
                        let until = ends.get(place).copied().unwrap_or(asked);
                        lease.renewal = renewal(asked, until);
                    }
                }
                Ok(())
            }
            Err(Error::Lost) => {
                if let [lock] = locks {
                    self.forget(*lock);
                }
                Err(Error::Lost)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the time at which a lock is renewed: after a third of what is left of it, so that two more
/// renewals are possible if one fails.
fn renewal(now: Timestamp, locked_until: Timestamp) -> Timestamp {
    let left = Span::from_micros(locked_until.since(now).as_micros() / 3);
    now + left.max(RENEWAL_MIN)
}

/// Renews locks, and returns messages whose visibility timeout is over.
async fn keep(leases: Weak<Leases>, queue: Arc<BusQueue>) {
    loop {
        let Some(held) = leases.upgrade() else { return };
        let now = WallClock.now();
        let due: Vec<_> = held
            .held()
            .iter()
            .filter(|(_, lease)| lease.due() <= now)
            .map(|(lock, lease)| (*lock, lease.ends <= now))
            .collect();
        let (ended, kept): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(_, has_ended)| *has_ended);
        let locks =
            |all: Vec<(Uuid, bool)>| all.into_iter().map(|(lock, _)| lock).collect::<Vec<_>>();
        let (ended, kept) = (locks(ended), locks(kept));
        for lock in &ended {
            held.forget(*lock);
            // If it fails, the lock ends by itself.
            let _ =
                queue.request(ManagementRequest::settle(&[*lock], &Disposition::Abandoned)).await;
        }
        for batch in kept.chunks(BATCH_MAX) {
            renew_all(&held, &queue, batch).await;
        }
        if !ended.is_empty() || !kept.is_empty() {
            continue;
        }
        let next = held.held().values().map(|lease| lease.due()).min();
        // Waits at most a second: the task holds a strong reference meanwhile, and ends only after
        // the last other one is gone.
        let wait = next.map_or(Duration::from_secs(1), |next| next.since(WallClock.now()).into());
        let changed = held.changed.notified();
        let _ = tokio::time::timeout(wait.min(Duration::from_secs(1)), changed).await;
    }
}

/// Renews locks together, or one by one if one of them is lost.
async fn renew_all(leases: &Leases, queue: &BusQueue, locks: &[Uuid]) {
    let mut renewed = leases.renew(queue, locks).await;
    if renewed == Err(Error::Lost) && locks.len() > 1 {
        renewed = Ok(());
        for lock in locks {
            let one = leases.renew(queue, &[*lock]).await;
            renewed = renewed.and(one.or_else(|error| match error {
                Error::Lost => Ok(()),
                error => Err(error),
            }));
        }
    }
    if let Err(error) = renewed
        && error != Error::Lost
    {
        warn!(queue = queue.address(), %error, "locks not renewed");
        let later = WallClock.now() + RENEWAL_MIN;
        for (lock, lease) in leases.held().iter_mut() {
            if locks.contains(lock) {
                lease.renewal = later;
            }
        }
    }
}
