//! [`LeaseTable`]: the deliveries that clients of this node have leased, by the ids of their leases.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sluicegate_core::time::Clock;
use sluicegate_core::{Span, Timestamp};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::{LeaseAction, LeaseEnd, LeaseError, LeaseHandle, LeasedMessage, MessageMark};
use crate::{Delivery, Error, Unsettled};

/// Maximum number of ended leases whose outcome is remembered, for repeated requests.
const ENDED_MAX: usize = 10_000;
/// Longest time between two looks at the clock, which may be set.
const CHECK: Duration = Duration::from_secs(1);

/// The leases of a node.
pub(super) struct LeaseTable {
    node: String,
    leases_max: usize,
    permits: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    leases: Mutex<Leases>,
    /// Wakes the task that ends leases, when the first lease is added.
    added: Arc<Notify>,
}

#[derive(Default)]
struct Leases {
    by_id: HashMap<Uuid, Arc<Lease>>,
    /// Ended leases, the oldest first.
    ended: VecDeque<Uuid>,
}

/// A lease, open or ended.
pub(super) struct Lease {
    queue: String,
    /// The message; `None` if another node granted the lease.
    mark: Option<MessageMark>,
    until: Mutex<Timestamp>,
    /// Locked while a request uses the delivery; the same request again waits for its outcome.
    state: tokio::sync::Mutex<LeaseState>,
}

enum LeaseState {
    Open(Box<Delivery>, OwnedSemaphorePermit),
    Ended(LeaseEnd),
}

/// The place from which a leased delivery can be settled.
pub(super) enum LeaseLocation {
    /// This node has the delivery, or knows how its lease ended.
    Here(Arc<Lease>),
    /// The broker can return it by this token.
    Elsewhere(String),
}

/// Permits for the leases that a receive may add. A waiting receive has one permit, so that idle
/// clients leave the rest to others.
pub(super) struct LeasePermits(OwnedSemaphorePermit);

impl LeasePermits {
    /// Acquires permits for up to `wanted` leases, as far as there are any. Returns the number.
    pub(super) fn grow(&mut self, wanted: usize) -> usize {
        loop {
            let free = self.0.semaphore().available_permits();
            let missing = wanted.saturating_sub(self.0.num_permits()).min(free);
            if missing == 0 {
                return self.0.num_permits();
            }
            let count = u32::try_from(missing).unwrap_or(u32::MAX);
            // Others may have taken some in between.
            if let Ok(more) = self.0.semaphore().clone().try_acquire_many_owned(count) {
                self.0.merge(more);
            }
        }
    }

    /// Returns the room for one lease.
    pub(super) fn take_one(&mut self) -> OwnedSemaphorePermit {
        self.0.split(1).unwrap_or_else(|| unreachable!("a receive returns what there is room for"))
    }
}

impl LeaseTable {
    /// Creates an empty table and starts the task that ends leases.
    pub(super) fn start(node: String, leases_max: usize, clock: Arc<dyn Clock>) -> Arc<Self> {
        let leases_max = leases_max.clamp(1, Semaphore::MAX_PERMITS);
        let table = Arc::new(Self {
            node,
            leases_max,
            permits: Arc::new(Semaphore::new(leases_max)),
            clock,
            leases: Mutex::default(),
            added: Arc::default(),
        });
        tokio::spawn(end_leases(Arc::downgrade(&table), table.added.clone()));
        table
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Returns the number of open leases.
    pub(super) fn open(&self) -> usize {
        let leases = self.lock();
        leases.by_id.len().saturating_sub(leases.ended.len())
    }

    /// Returns the number of open leases of a queue.
    pub(super) fn open_of(&self, queue: &str) -> usize {
        let of_queue = |lease: &&Arc<Lease>| lease.queue == queue && !lease.has_ended();
        self.lock().by_id.values().filter(of_queue).count()
    }

    /// Reserves room for one lease.
    pub(super) fn reserve(&self) -> Result<LeasePermits, LeaseError> {
        let permit = self.permits.clone().try_acquire_owned();
        permit.map(LeasePermits).map_err(|_| LeaseError::TooMany { max: self.leases_max })
    }

    /// Returns the number of leases for which there is room that no receive has reserved.
    pub(super) fn room(&self) -> usize {
        self.permits.available_permits()
    }

    /// Adds a lease.
    pub(super) fn add(
        &self,
        queue: &str,
        delivery: Delivery,
        until: Timestamp,
        permit: OwnedSemaphorePermit,
    ) -> LeasedMessage {
        let handle = LeaseHandle::new(&self.node, delivery.token());
        let (message, redeliveries) = (delivery.message().clone(), delivery.redeliveries());
        let state = LeaseState::Open(Box::new(delivery), permit);
        let mark = Some(MessageMark::of(&message));
        let lease = Lease { mark, ..Lease::new(queue, until, state) };
        self.lock().by_id.insert(handle.lease(), Arc::new(lease));
        self.added.notify_one();
        LeasedMessage { handle, message, redeliveries, until }
    }

    /// Finds a lease.
    pub(super) fn find(
        &self,
        queue: &str,
        handle: &LeaseHandle,
    ) -> Result<LeaseLocation, LeaseError> {
        let lease = self.lock().by_id.get(&handle.lease()).cloned();
        match (lease, handle.token()) {
            (Some(lease), _) if lease.queue != queue => {
                Err(LeaseError::OtherQueue { queue: lease.queue.clone() })
            }
            (Some(lease), _) => Ok(LeaseLocation::Here(lease)),
            (None, Some(token)) => Ok(LeaseLocation::Elsewhere(token.to_owned())),
            (None, None) if handle.node() == self.node => {
                Err(LeaseError::Unknown { node: self.node.clone() })
            }
            (None, None) => Err(LeaseError::OtherNode { node: handle.node().to_owned() }),
        }
    }

    /// Remembers the end of a lease that another node granted.
    pub(super) fn remember(&self, queue: &str, handle: &LeaseHandle, end: LeaseEnd) {
        let lease = Lease::new(queue, Timestamp::ZERO, LeaseState::Ended(end));
        let mut leases = self.lock();
        if leases.by_id.insert(handle.lease(), Arc::new(lease)).is_none() {
            leases.push_ended(handle.lease());
        }
    }

    /// Ends all leases and returns their deliveries.
    pub(super) fn end_all(&self) -> Vec<Delivery> {
        let open: Vec<_> =
            self.lock().by_id.iter().map(|(id, lease)| (*id, lease.clone())).collect();
        let mut deliveries = Vec::new();
        for (id, lease) in open {
            // A lease that is being settled needs no requeueing.
            if let Some(delivery) = lease.end(LeaseEnd::Stopped) {
                self.mark_ended(id);
                deliveries.push(delivery);
            }
        }
        deliveries
    }

    /// Ends the leases whose time is over. Returns the time at which the next one ends.
    fn end_due(&self) -> Option<Timestamp> {
        let now = self.clock.now();
        let mut next = None;
        let open: Vec<_> = {
            let leases = self.lock();
            let open = leases.by_id.iter().filter(|(_, lease)| !lease.has_ended());
            open.map(|(id, lease)| (*id, lease.clone())).collect()
        };
        for (id, lease) in open {
            let until = lease.until();
            if until > now {
                next = Some(next.map_or(until, |next: Timestamp| next.min(until)));
                continue;
            }
            match lease.end(LeaseEnd::Expired(until)) {
                // A request is using it.
                None => next = Some(now),
                Some(delivery) if delivery.token().is_some() => {
                    // Another node may have extended the lease, so only the broker knows when it
                    // ends.
                    self.forget(id);
                    delivery.detach();
                }
                Some(delivery) => {
                    self.mark_ended(id);
                    delivery.abandon();
                }
            }
        }
        next
    }

    fn mark_ended(&self, id: Uuid) {
        self.lock().push_ended(id);
    }

    /// Removes an open lease; later requests go to the broker.
    fn forget(&self, id: Uuid) {
        self.lock().by_id.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leases {
    fn push_ended(&mut self, id: Uuid) {
        self.ended.push_back(id);
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }
}

impl Lease {
    fn new(queue: &str, until: Timestamp, state: LeaseState) -> Self {
        let (queue, until) = (queue.to_owned(), Mutex::new(until));
        Self { queue, mark: None, until, state: tokio::sync::Mutex::new(state) }
    }

    /// Returns the message, if this node granted the lease.
    pub(super) const fn mark(&self) -> Option<&MessageMark> {
        self.mark.as_ref()
    }

    fn until(&self) -> Timestamp {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if it has ended; a lease that is in use has not.
    fn has_ended(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| matches!(*state, LeaseState::Ended(_)))
    }

    /// Ends the lease and returns its delivery, unless it has ended or is in use.
    fn end(&self, end: LeaseEnd) -> Option<Delivery> {
        let mut state = self.state.try_lock().ok()?;
        match std::mem::replace(&mut *state, LeaseState::Ended(end)) {
            LeaseState::Open(delivery, _) => Some(*delivery),
            ended @ LeaseState::Ended(_) => {
                *state = ended;
                None
            }
        }
    }

    /// Settles the delivery. Returns true if the same action has settled it before.
    pub(super) async fn settle(
        &self,
        table: &LeaseTable,
        handle: &LeaseHandle,
        action: LeaseAction,
    ) -> Result<bool, LeaseError> {
        let mut state = self.state.lock().await;
        let (kind, id) = (action.kind(), handle.lease());
        let lost = LeaseState::Ended(LeaseEnd::Lost);
        let (delivery, permit) = match std::mem::replace(&mut *state, lost) {
            LeaseState::Open(delivery, permit) => (delivery, permit),
            LeaseState::Ended(end) => {
                *state = LeaseState::Ended(end);
                return match end {
                    LeaseEnd::Settled(by) if by == kind => Ok(true),
                    end => Err(ended(end, table)),
                };
            }
        };
        match action.run(*delivery).await {
            Ok(()) => {
                *state = LeaseState::Ended(LeaseEnd::Settled(kind));
                table.mark_ended(id);
                Ok(false)
            }
            Err(Unsettled { error, delivery: Some(delivery) }) => {
                *state = LeaseState::Open(delivery, permit);
                Err(error.into())
            }
            Err(Unsettled { error, delivery: None }) => {
                if error != Error::Lost && handle.token().is_some() {
                    // The same request may succeed at the broker.
                    table.forget(id);
                } else {
                    table.mark_ended(id);
                }
                Err(LeaseError::of(error, &table.node))
            }
        }
    }

    /// Extends the lease.
    pub(super) async fn extend(
        &self,
        table: &LeaseTable,
        handle: &LeaseHandle,
        length: Span,
        until: Timestamp,
    ) -> Result<(), LeaseError> {
        let mut state = self.state.lock().await;
        let delivery = match &*state {
            LeaseState::Open(delivery, _) => delivery,
            LeaseState::Ended(end) => return Err(ended(*end, table)),
        };
        match delivery.extend_for(length).await {
            Ok(()) => {
                *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
                // The lease may now end before the time for which the task sleeps.
                table.added.notify_one();
                Ok(())
            }
            Err(Error::Lost) => {
                *state = LeaseState::Ended(LeaseEnd::Lost);
                table.mark_ended(handle.lease());
                Err(ended(LeaseEnd::Lost, table))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the error for a lease that has ended.
fn ended(end: LeaseEnd, table: &LeaseTable) -> LeaseError {
    match end {
        LeaseEnd::Settled(by) => LeaseError::Settled { by },
        LeaseEnd::Expired(at) => LeaseError::Expired { at },
        LeaseEnd::Lost | LeaseEnd::Stopped => LeaseError::Lost { node: table.node.clone() },
    }
}

impl Drop for LeaseTable {
    fn drop(&mut self) {
        // Ends the task.
        self.added.notify_one();
    }
}

/// Ends leases when their time is over, as long as the table exists.
async fn end_leases(table: Weak<LeaseTable>, added: Arc<Notify>) {
    loop {
        let wait = {
            let Some(table) = table.upgrade() else { return };
            let next = table.end_due();
            next.map(|next| Duration::from(next.since(table.clock.now())))
        };
        match wait {
            None => added.notified().await,
            Some(wait) => {
                // At least some milliseconds, for a lease that is in use.
                let wait = wait.clamp(Duration::from_millis(10), CHECK);
                let _ = tokio::time::timeout(wait, added.notified()).await;
            }
        }
    }
}
