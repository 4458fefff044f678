//! The record of one admission: what the store needs to settle, release, renew or cancel it.

use serde::{Deserialize, Serialize};
use sluicegate_core::algorithm::{CellCharge, CellPosition};
use sluicegate_core::limit::Unit;
use sluicegate_core::query::Cost;
use sluicegate_core::store::kept_until;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Id, Plan};
use smallvec::SmallVec;

use super::locked::CounterAddress;

/// The record of one id. The table in [`sluicegate_core::store`] defines what each state allows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) state: RecordState,
    pub(super) fingerprint: u64,
    /// Hash of the dimensions and the cost that the caller stated in its booking. A snapshot stores
    /// it separately: see [`super::snapshot`].
    #[serde(skip)]
    pub(super) stated: Option<u64>,
    /// Time of the admission or of the booking.
    pub(super) at: Timestamp,
    pub(super) start: Timestamp,
    pub(super) slack: Span,
    pub(super) keep: Option<Span>,
    pub(super) hold: Option<Hold>,
    pub(super) released: bool,
    /// Set if the admission was given leases. A replay then checks that it still has them.
    pub(super) leased: bool,
    /// Claimants that were allowed to start the work.
    pub(super) started_claimants: SmallVec<[Id; 1]>,
    /// The longest time for which any of its charges counts.
    pub(super) window: Span,
    pub(super) charges: SmallVec<[RecordedCharge; 1]>,
}

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RecordState {
    Booked,
    /// Admitted. Holds the claimant if the work was booked first.
    Open(Option<Id>),
    Settled(Cost),
    Cancelled,
    /// A booking that expired and could not be booked again. The record stays only because of its
    /// claimants.
    Lapsed,
}

/// An estimate that is to be settled before `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) ttl: Span,
    pub(super) until: Timestamp,
}

/// One charge as it was written to its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedCharge {
    pub(super) address: CounterAddress,
    /// Time of the write.
    pub(super) at: Timestamp,
    pub(super) unit: Unit,
    /// Time for which the charge counts; for a lease, its duration.
    pub(super) window: Span,
    pub(super) used: CellCharge,
    /// Set if the rule refunds the charge when a hold ends unsettled.
    pub(super) refunds: bool,
}

impl RecordedCharge {
    /// Returns the end of the lease, or `None` if the charge is not a lease.
    pub(super) const fn lease(&self) -> Option<Timestamp> {
        match self.used.position {
            CellPosition::Lease(until) => Some(until),
            _ => None,
        }
    }
}

impl Record {
    pub(super) fn new(
        plan: &Plan<'_>,
        state: RecordState,
        at: Timestamp,
        start: Timestamp,
    ) -> Self {
        let held_from = match state {
            RecordState::Booked => None,
            _ => plan.hold,
        };
        Self {
            state,
            fingerprint: plan.fingerprint(),
            stated: (state == RecordState::Booked).then(|| plan.statement_fingerprint()),
            at,
            start,
            slack: plan.slack,
            keep: plan.id.keep,
            hold: held_from.map(|ttl| Hold { ttl, until: at + ttl }),
            released: false,
            leased: false,
            started_claimants: SmallVec::new(),
            window: plan.window(),
            charges: SmallVec::new(),
        }
    }

    /// Returns a record that refuses its id from `at` on.
    pub(super) fn tombstone(at: Timestamp) -> Self {
        Self {
            state: RecordState::Cancelled,
            fingerprint: 0,
            stated: None,
            at,
            start: at,
            slack: Span::ZERO,
            keep: None,
            hold: None,
            released: false,
            leased: false,
            started_claimants: SmallVec::new(),
            window: Span::ZERO,
            charges: SmallVec::new(),
        }
    }

    /// Adds the charges that the admission wrote.
    pub(super) fn with_charges(mut self, charges: SmallVec<[RecordedCharge; 1]>) -> Self {
        self.leased = charges.iter().any(|charge| charge.lease().is_some());
        self.charges = charges;
        self
    }

    /// Returns the time at which a charge is refunded automatically, if it is.
    pub(super) fn refunded_at(&self, charge: &RecordedCharge) -> Option<Timestamp> {
        self.hold.filter(|_| charge.refunds).map(|hold| hold.until)
    }

    /// Returns the end of each lease.
    fn leases(&self) -> impl Iterator<Item = Timestamp> {
        self.charges.iter().filter_map(RecordedCharge::lease)
    }

    /// Returns the first instant at which a lease or the hold ends.
    pub(super) fn until(&self) -> Option<Timestamp> {
        self.leases().chain(self.hold.map(|hold| hold.until)).min()
    }

    /// Returns the time until which a record that changes at `now` is kept.
    pub(super) fn kept_until(&self, now: Timestamp) -> Timestamp {
        let booked = (self.state == RecordState::Booked).then_some(self.start + self.slack);
        let last = self.leases().chain(self.hold.map(|hold| hold.until)).chain(booked).max();
        kept_until(now, self.keep, last, self.window)
    }

    /// Returns true if dropping the record loses nothing but the replay of its id.
    pub(super) fn droppable(&self) -> bool {
        match self.state {
            RecordState::Booked => false,
            RecordState::Open(_) => self.until().is_none(),
            RecordState::Settled(_) | RecordState::Cancelled | RecordState::Lapsed => true,
        }
    }
}
