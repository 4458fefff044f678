//! [`MemoryReservationStore`]: the reservations of a single process that are not settled yet.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_core::reservation_store::{
    OpenReservation, RESERVATIONS_MAX, ReservationChanges, ReservationFuture, ReservationStore,
    UnsettledReservations,
};
use sluicegate_core::time::Clock;
use sluicegate_core::{Id, Timestamp};

use crate::clock::MonotonicClock;

/// Keeps the open reservations of this process in memory.
#[derive(Debug)]
pub struct MemoryReservationStore<C = MonotonicClock> {
    state: Mutex<ReservationTable>,
    clock: C,
}

/// The reservations, also in the orders in which they are read and expire.
#[derive(Debug, Default)]
struct ReservationTable {
    entries: HashMap<Id, OpenReservation>,
    by_due: BTreeSet<(Timestamp, Id)>,
    by_end: BTreeSet<(Timestamp, Id)>,
}

impl MemoryReservationStore {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self::with_clock(MonotonicClock::new())
    }
}

impl Default for MemoryReservationStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> MemoryReservationStore<C> {
    /// Returns an empty list that reads `clock`.
    pub fn with_clock(clock: C) -> Self {
        Self { state: Mutex::default(), clock }
    }

    /// Locks the list and removes reservations of which nothing is left.
    fn lock(&self) -> (MutexGuard<'_, ReservationTable>, Timestamp) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        while let Some(&(ends, id)) = state.by_end.first()
            && ends <= now
        {
            state.remove(id);
        }
        (state, now)
    }
}

impl ReservationTable {
    fn remove(&mut self, id: Id) -> Option<OpenReservation> {
        let removed = self.entries.remove(&id)?;
        self.by_due.remove(&(removed.due, id));
        self.by_end.remove(&(removed.ends, id));
        Some(removed)
    }

    fn insert(&mut self, reservation: OpenReservation) {
        self.remove(reservation.id);
        self.by_due.insert((reservation.due, reservation.id));
        self.by_end.insert((reservation.ends, reservation.id));
        self.entries.insert(reservation.id, reservation);
    }
}

impl<C: Clock> ReservationStore for MemoryReservationStore<C> {
    fn apply<'a>(&'a self, changes: &'a ReservationChanges) -> ReservationFuture<'a, u64> {
        Box::pin(async move {
            let (mut state, _) = self.lock();
            let mut rejected = 0;
            for reservation in &changes.opened {
                let is_known = state.entries.contains_key(&reservation.id);
                if is_known || state.entries.len() < RESERVATIONS_MAX {
                    state.insert(reservation.clone());
                } else {
                    rejected += 1;
                }
            }
            for &(id, due) in &changes.renewed {
                if let Some(known) = state.remove(id) {
                    let due = known.due.max(due);
                    state.insert(OpenReservation { due, ..known });
                }
            }
            // Ends come last, because a reservation is made before it ends.
            for &id in &changes.ended {
                state.remove(id);
            }
            Ok(rejected)
        })
    }

    fn unsettled(&self, max: usize) -> ReservationFuture<'_, UnsettledReservations> {
        Box::pin(async move {
            let (state, now) = self.lock();
            let due = || state.by_due.iter().take_while(|(due, _)| *due <= now);
            let text =
                |(_, id): &(Timestamp, Id)| state.entries.get(id).map(|one| one.text.clone());
            Ok(UnsettledReservations {
                at: now,
                count: due().count() as u64,
                open: state.entries.len() as u64,
                texts: due().take(max).filter_map(text).collect(),
            })
        })
    }

    fn find(&self, id: Id) -> ReservationFuture<'_, Option<String>> {
        Box::pin(async move { Ok(self.lock().0.entries.get(&id).map(|one| one.text.clone())) })
    }
}
