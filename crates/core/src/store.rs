//! The port behind which usage is kept. Memory and Redis implement it; the model defines it.
//!
//! # The life of a record
//!
//! A plan that is [recorded](Plan::recorded) leaves a record under its id. What an operation does
//! depends on the state of the record:
//!
//! | | none, lapsed | booked | open | settled | cancelled |
//! |---|---|---|---|---|---|
//! | acquire | decide → open | conflict | replay, or lost | replay, or lost | gone |
//! | book | decide → booked | replay | conflict | conflict | gone |
//! | claim | unknown | early, go → open, or booked anew | go again, spent, or booked anew → booked (conflict if it was never booked) | conflict | gone |
//! | settle | unknown | not claimed | → settled | replay, or conflict if it differs | gone |
//! | release | unknown | not claimed | leases end | replay | gone |
//! | renew | unknown | not claimed | leases and hold last longer, or lost | conflict | gone |
//! | cancel | → cancelled | give back → cancelled | give back → cancelled | conflict | replay |
//!
//! An acquire or a book under the id of a different plan is a conflict in every state but
//! `cancelled`. An acquire that is replayed after its lease has ended is lost: whoever asks must
//! not think that it holds a slot. A booking that can't be made anew lapses: only who was told to
//! go is remembered. A claim that states other dimensions or another cost than its booking did is
//! [`Error::Differs`]; one whose plan is another although it states the same, because the rules were
//! reloaded in between, is booked anew under the rules of now. Records are kept for as long as a
//! retry, a settlement or a late arrival can come.

use std::fmt;

use crate::decision::{Allow, Decision, Deny, Never, Readings};
use crate::id::Id;
use crate::plan::{Handle, Plan};
use crate::query::Cost;
use crate::time::{Span, Timestamp};

/// How long a cancelled id is refused: longer than any late arrival is on its way.
pub const TOMBSTONE: Span = Span::from_secs(60);

/// Until when a record is kept that was written or changed at `now`.
///
/// Long enough for a retry (`keep`, for ids that a caller may use again), for a settlement after
/// what it holds has ended (`last`, and then as long as the charges count), and for a message that
/// is still on its way.
pub fn kept_until(
    now: Timestamp,
    keep: Option<Span>,
    last: Option<Timestamp>,
    window: Span,
) -> Timestamp {
    let retry = now + keep.unwrap_or_default().max(TOMBSTONE);
    last.map_or(retry, |last| retry.max(last + window))
}

/// Keeps usage. Every operation is atomic: a plan is admitted whole or consumes nothing.
pub trait Store: Send + Sync {
    /// Admits the plan if it can start now.
    fn acquire(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Decision, Error>> + Send;

    /// What [`Store::acquire`] would answer to a new id. Writes nothing.
    fn peek(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Decision, Error>> + Send;

    /// Reserves the first instant at which the plan fits, if it is inside the horizon.
    ///
    /// Leases are not booked: they are taken by the claim.
    fn book(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Decision, Error>> + Send;

    /// Asks, immediately before the work goes, whether its booking is good.
    ///
    /// A booking is good from its start until its slack is over, and for one `claimant`: a second
    /// one, or one that comes late, gets a new booking. What an earlier claimant may have used
    /// stays charged. A claimant is told to go once, and again if it repeats the question in time;
    /// later it is [`Claim::Spent`].
    ///
    /// The claim states what the booking stated: other dimensions or another cost are
    /// [`Error::Differs`], and nothing changes.
    fn claim(
        &self,
        plan: &Plan<'_>,
        claimant: Id,
    ) -> impl Future<Output = Result<Claim, Error>> + Send;

    /// Takes back work that never left: everything is given back, and the id is refused from now
    /// on, so that an attempt which is still on its way can't be admitted afterwards.
    ///
    /// Of a booking that was claimed, only by the handle of its claimant: for anybody else it ends,
    /// and what the claimant may have used stays charged.
    fn cancel(&self, handle: &Handle) -> impl Future<Output = Result<Ended, Error>> + Send;

    /// Replaces the estimate by the actual cost and ends the leases.
    ///
    /// What was too much is given back at its own time; what was too little is charged now, in
    /// full, as debt.
    fn settle(
        &self,
        handle: &Handle,
        actual: &Cost,
    ) -> impl Future<Output = Result<Ended, Error>> + Send;

    /// Ends the leases and leaves the charges as they are. A second time is a replay.
    fn release(&self, handle: &Handle) -> impl Future<Output = Result<Ended, Error>> + Send;

    /// Makes leases and hold last as long again from now; returns when to have renewed again.
    ///
    /// If any of them has expired, none is renewed.
    fn renew(&self, handle: &Handle) -> impl Future<Output = Result<Renewed, Error>> + Send;

    /// Gives back what the plan would take, for callers that know how much but not of which
    /// admission. The oldest goes first, never below nothing; leases stay. Returns what the limits
    /// show then.
    ///
    /// Its id is its own, so that a store which has to ask twice gives back once. It is not all or
    /// nothing: counters that lie in different places get their part each, or an error says that
    /// one of them may not have.
    fn refund(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Usage, Error>> + Send;

    /// Keeps the plan's gates closed for so long from now; returns until when they are.
    ///
    /// While a gate is closed nothing of its rule starts: not by acquire, not by a booking, and a
    /// claim books anew. It only ever extends: a later, shorter hint opens nothing. A plan without
    /// a gate has nothing to close.
    fn close(
        &self,
        plan: &Plan<'_>,
        wait: Span,
    ) -> impl Future<Output = Result<Shut, Error>> + Send;

    /// Forgets all usage of the plan's counters, and that they were closed; returns when.
    fn reset(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Timestamp, Error>> + Send;

    /// What the limits of the plan show now.
    fn usage(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Usage, Error>> + Send;

    /// Takes back an attempt to acquire or to book that was not answered and whose work does not go.
    ///
    /// Returns at once; the store goes on until it is answered. What another attempt under the same
    /// id relies on stays charged, and the id can be used again. An attempt that an outage policy has
    /// admitted is not given up.
    fn give_up(&self, plan: &Plan<'_>, attempt: Attempt) {
        let _ = (plan, attempt);
    }

    /// How many nodes were seen lately that keep usage here, this one included: what each may let
    /// through on its own while the store does not answer depends on it.
    fn nodes(&self) -> u32;
}

/// The answer to a claim. All times are the store's: a holder counts from when it asked, by the
/// difference to `at`, because its own clock may be another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Go, before `good_until`: a holder that is held up longer has to claim again.
    Go {
        /// The admission.
        allow: Allow,
        /// When the slack of the booking is over.
        good_until: Timestamp,
    },
    /// This claimant was told to go, and its time is over. Nothing has changed: if the work did
    /// not go, another claimant may ask.
    Spent,
    /// It has not started yet: claim again at `start`.
    Early {
        /// When this was found.
        at: Timestamp,
        /// The start of the booking.
        start: Timestamp,
    },
    /// It was late, already used, its gate is closed, or a reload changed what it is charged on:
    /// claim again at `start`.
    Rebooked {
        /// When this was decided.
        at: Timestamp,
        /// The start of the new booking.
        start: Timestamp,
    },
    /// A lease is missing, and the booking stands; or a new booking would start past the horizon,
    /// and there is none any more.
    Deny(Deny),
    /// A rule bans the work by now. The booking lapses unless the ban ends before.
    Never(Never),
}

/// Leases and hold last longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// When, by the clock of the store.
    pub at: Timestamp,
    /// Until when the first of them lasts.
    pub until: Timestamp,
}

/// Gates are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shut {
    /// When, by the clock of the store.
    pub at: Timestamp,
    /// Until when the last of them is.
    pub until: Timestamp,
}

/// Something came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When, by the clock of the store.
    pub at: Timestamp,
    /// It had before; nothing changed.
    pub replayed: bool,
}

/// What limits show at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// When, by the clock of the store.
    pub at: Timestamp,
    /// One reading per limit, in the order of [`Plan::scopes`].
    pub readings: Readings,
}

/// One question that the store may have answered without being heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// To acquire, under this number.
    Acquire(Id),
    /// To book, under this number.
    Book(Id),
}

/// Why the store did not answer, and what that leaves open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// Why.
    pub reason: String,
    /// The attempt that may be charged all the same: see [`Store::give_up`].
    pub attempt: Option<Attempt>,
}

/// Nothing was charged.
impl From<String> for Unanswered {
    fn from(reason: String) -> Self {
        Self { reason, attempt: None }
    }
}

/// Nothing was charged.
impl From<&str> for Unanswered {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Why there is no answer. Nothing was changed, unless the store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store did not answer; the outage policy of the rule decides.
    #[error("the store did not answer: {0}")]
    Unavailable(Unanswered),
    /// The clocks of node and store are in different calendar periods.
    #[error("the clocks of this node and of the store are in different calendar periods")]
    ClockSkew,
    /// The id stands for something else.
    #[error("this id was used for something else: take a new one for new work")]
    Conflict,
    /// A claim states something else than its booking.
    #[error(
        "the claim states other dimensions or another cost than the booking under this id: claim \
         what was booked, or book it under a new id"
    )]
    Differs,
    /// Nothing is known under the id.
    #[error("nothing is held under this id: it was never admitted, or it ended too long ago")]
    Unknown,
    /// The id was cancelled.
    #[error("this id was cancelled: take a new one")]
    Gone,
    /// A booking has to be claimed first.
    #[error("this booking was not claimed: claim it before its work goes")]
    NotClaimed,
    /// A lease was not renewed in time; somebody else may have the slot.
    #[error("the lease has expired: stop, or acquire again")]
    Lost,
    /// The store keeps as many ids as it may.
    #[error("the store keeps as many open reservations as it may: settle or release some")]
    Full,
    /// More requests than an exact log takes at once.
    #[error("requests: an exact log takes at most 1000 at once")]
    TooMany,
    /// A booking whose counters the store keeps on several servers.
    #[error(
        "a booking can't be made across slots of a Redis Cluster: let its rules count by one \
         `partition`"
    )]
    Spread,
}
