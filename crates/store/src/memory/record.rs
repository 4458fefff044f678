//! What is remembered of an admission: what it takes to settle, release, renew or cancel it.

use serde::{Deserialize, Serialize};
use sluicegate_core::algorithm::{Mark, Use};
use sluicegate_core::limit::Unit;
use sluicegate_core::query::Cost;
use sluicegate_core::store::kept_until;
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_core::{Id, Plan};
use smallvec::SmallVec;

use super::locked::Address;

/// The record of one id; see [`sluicegate_core::store`] for what its states mean.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) state: State,
    pub(super) fingerprint: u64,
    /// What the caller stated when it booked. A snapshot keeps it apart: see [`super::snapshot`].
    #[serde(skip)]
    pub(super) stated: Option<u64>,
    /// When it was admitted or booked.
    pub(super) at: Timestamp,
    pub(super) start: Timestamp,
    pub(super) slack: Span,
    pub(super) keep: Option<Span>,
    pub(super) hold: Option<Hold>,
    pub(super) released: bool,
    /// It was given leases, so a replay has to look whether it still has them.
    pub(super) leased: bool,
    /// The claimants that were told to go.
    pub(super) told: SmallVec<[Id; 1]>,
    /// The longest time that any of its charges counts.
    pub(super) window: Span,
    pub(super) uses: SmallVec<[Held; 1]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    Booked,
    /// With the claimant, if it was booked before.
    Open(Option<Id>),
    Settled(Cost),
    Cancelled,
    /// It was booked, but could not be booked anew: only who was told to go is of interest.
    Lapsed,
}

/// An estimate that wants to be settled before `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) ttl: Span,
    pub(super) until: Timestamp,
}

/// One charge as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) address: Address,
    /// When it was written.
    pub(super) at: Timestamp,
    pub(super) unit: Unit,
    /// How long it counts; for a lease, how long it lasts.
    pub(super) window: Span,
    pub(super) used: Use,
    /// Its rule wants it given back when a hold ends and nobody has settled it.
    pub(super) refunds: bool,
}

impl Held {
    /// The end of the lease, if it is one.
    pub(super) const fn lease(&self) -> Option<Timestamp> {
        match self.used.mark {
            Mark::Lease(until) => Some(until),
            _ => None,
        }
    }
}

impl Record {
    pub(super) fn new(plan: &Plan<'_>, state: State, at: Timestamp, start: Timestamp) -> Self {
        let held_from = match state {
            State::Booked => None,
            _ => plan.hold,
        };
        Self {
            state,
            fingerprint: plan.fingerprint(),
            stated: (state == State::Booked).then(|| plan.stated()),
            at,
            start,
            slack: plan.slack,
            keep: plan.id.keep,
            hold: held_from.map(|ttl| Hold { ttl, until: at + ttl }),
            released: false,
            leased: false,
            told: SmallVec::new(),
            window: plan.window(),
            uses: SmallVec::new(),
        }
    }

    /// Refuses its id from `at` on.
    pub(super) fn tombstone(at: Timestamp) -> Self {
        Self {
            state: State::Cancelled,
            fingerprint: 0,
            stated: None,
            at,
            start: at,
            slack: Span::ZERO,
            keep: None,
            hold: None,
            released: false,
            leased: false,
            told: SmallVec::new(),
            window: Span::ZERO,
            uses: SmallVec::new(),
        }
    }

    /// What it has charged.
    pub(super) fn with_uses(mut self, uses: SmallVec<[Held; 1]>) -> Self {
        self.leased = uses.iter().any(|held| held.lease().is_some());
        self.uses = uses;
        self
    }

    /// When a use is given back by itself, if it is.
    pub(super) fn refunded_at(&self, held: &Held) -> Option<Timestamp> {
        self.hold.filter(|_| held.refunds).map(|hold| hold.until)
    }

    /// The end of each lease.
    fn leases(&self) -> impl Iterator<Item = Timestamp> {
        self.uses.iter().filter_map(Held::lease)
    }

    /// The first instant at which something that it holds ends.
    pub(super) fn until(&self) -> Option<Timestamp> {
        self.leases().chain(self.hold.map(|hold| hold.until)).min()
    }

    /// Until when it is kept, if it was changed at `now`.
    pub(super) fn kept_until(&self, now: Timestamp) -> Timestamp {
        let booked = (self.state == State::Booked).then_some(self.start + self.slack);
        let last = self.leases().chain(self.hold.map(|hold| hold.until)).chain(booked).max();
        kept_until(now, self.keep, last, self.window)
    }

    /// Whether nothing but a repetition of its id is lost with it.
    pub(super) fn droppable(&self) -> bool {
        match self.state {
            State::Booked => false,
            State::Open(_) => self.until().is_none(),
            State::Settled(_) | State::Cancelled | State::Lapsed => true,
        }
    }
}
