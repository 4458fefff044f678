//! [`ReservationStore`]: the port for the list of reservations that are not settled yet.
//!
//! Nodes report reservations here in the background, a moment after they were made, so that those of
//! a crashed caller or node can be found, settled and cancelled. No decision depends on the list. To
//! the store a reservation is an opaque text.

use std::pin::Pin;

use crate::id::Id;
use crate::store::Error;
use crate::time::{Span, Timestamp};

/// Maximum number of reservations in a list.
pub const RESERVATIONS_MAX: usize = 10_000;

/// Maximum number of changes in one call.
pub const CHANGES_MAX: usize = 500;

/// Time for which the end of an unknown reservation is remembered: the node that made it may report
/// it after the node that settled it.
pub const END_REMEMBERED: Span = Span::from_secs(20);

/// The future that an operation returns.
pub type ReservationFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Keeps open reservations, each until it ends or nothing of it is left to settle.
pub trait ReservationStore: Send + Sync {
    /// Applies changes, at most [`CHANGES_MAX`]. Returns the number of reservations that were not
    /// added because the list is full.
    fn apply<'a>(&'a self, changes: &'a ReservationChanges) -> ReservationFuture<'a, u64>;

    /// Returns the reservations whose hold is over, those with the earliest end first, at most `max`.
    fn unsettled(&self, max: usize) -> ReservationFuture<'_, UnsettledReservations>;

    /// Returns one reservation.
    fn find(&self, id: Id) -> ReservationFuture<'_, Option<String>>;
}

/// Changes of the list. Times are those of the store's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationChanges {
    /// New reservations.
    pub opened: Vec<OpenReservation>,
    /// Reservations whose hold was extended, and its new end.
    pub renewed: Vec<(Id, Timestamp)>,
    /// Reservations that were settled, released or cancelled.
    pub ended: Vec<Id>,
}

impl ReservationChanges {
    /// Returns the number of changes.
    pub fn len(&self) -> usize {
        self.opened.len() + self.renewed.len() + self.ended.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A reservation that is not settled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenReservation {
    /// Id of the admission.
    pub id: Id,
    /// End of the hold: from then on it should have been settled.
    pub due: Timestamp,
    /// Time from which on nothing of it is charged any more.
    pub ends: Timestamp,
    /// Description, for people and for settling it.
    pub text: String,
}

/// The reservations whose hold is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsettledReservations {
    /// Time of the read, by the clock of the store.
    pub at: Timestamp,
    /// Number of all of them.
    pub count: u64,
    /// Number of reservations in the list, including those whose hold is not over.
    pub open: u64,
    /// Reservations with the earliest end of their hold.
    pub texts: Vec<String>,
}
