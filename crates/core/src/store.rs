//! [`Store`]: the interface to the storage that keeps usage. The memory store and the Redis store
//! implement it; the reference model defines its behaviour.
//!
//! # States of a record
//!
//! A plan that is [recorded](Plan::needs_record) leaves a record under its id. The effect of an
//! operation depends on the state of the record:
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
//! An acquire or a book under the id of a different plan is a conflict in every state except
//! `cancelled`. A replayed acquire whose lease has ended is lost, because its caller must not
//! assume that it holds a slot. A booking that can't be rebooked lapses; its record then only
//! remembers the claimants that got [`Claim::Go`]. A claim with other dimensions or another cost
//! than its booking is [`Error::Differs`]. A claim that states the same, but whose plan differs
//! because the rules were reloaded, is rebooked under the new rules. Records are kept for as long
//! as a retry, a settlement or a late request can arrive.

use std::fmt;

use crate::backlog::{Backlog, BacklogReport};
use crate::decision::{Allow, Decision, Deny, Never, Readings};
use crate::id::Id;
use crate::plan::{Handle, Plan};
use crate::query::Cost;
use crate::time::{Span, Timestamp};

/// Time for which a cancelled id is refused: longer than any request can be delayed.
pub const TOMBSTONE: Span = Span::from_secs(60);

/// Returns the time until which a record is kept that was written or changed at `now`.
///
/// The time is long enough for a retry (`keep`, for ids that a caller may repeat), for a settlement
/// after its lease or hold has ended (`last`, plus the time for which charges count), and for a
/// delayed request.
pub fn kept_until(
    now: Timestamp,
    keep: Option<Span>,
    last: Option<Timestamp>,
    window: Span,
) -> Timestamp {
    let retry = now + keep.unwrap_or_default().max(TOMBSTONE);
    last.map_or(retry, |last| retry.max(last + window))
}

/// Storage of usage. Every operation is atomic: a plan is admitted as a whole or consumes nothing.
pub trait Store: Send + Sync {
    /// Admits the plan if it can start now.
    fn acquire(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Decision, Error>> + Send;

    /// Returns what [`Store::acquire`] would answer to a new id. Writes nothing.
    fn peek(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Decision, Error>> + Send;

    /// Reserves the first instant at which the plan fits, if it is within the horizon.
    ///
    /// Leases are not booked: the claim takes them.
    fn book(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Decision, Error>> + Send;

    /// Checks a booking immediately before its work starts.
    ///
    /// A booking is valid from its start until its slack is over, and for one `claimant`. A second
    /// claimant, or a late one, gets a new booking. Amounts that an earlier claimant may have used
    /// stay charged. A claimant gets [`Claim::Go`] once, and again if it repeats the claim in time;
    /// later it gets [`Claim::Spent`].
    ///
    /// A claim with other dimensions or another cost than its booking is [`Error::Differs`], and
    /// nothing changes.
    fn claim(
        &self,
        plan: &Plan<'_>,
        claimant: Id,
    ) -> impl Future<Output = Result<Claim, Error>> + Send;

    /// Cancels work that was never started. Everything is given back, and the id is refused from
    /// now on, so that a delayed attempt can't be admitted afterwards.
    ///
    /// A claimed booking is given back only if the handle is that of its claimant. For any other
    /// handle the booking ends, and amounts that the claimant may have used stay charged.
    fn cancel(&self, handle: &Handle) -> impl Future<Output = Result<EndResult, Error>> + Send;

    /// Replaces the estimate by the actual cost and ends the leases.
    ///
    /// An excess is given back at the time of its charge. A shortfall is charged now, in full, as
    /// debt.
    fn settle(
        &self,
        handle: &Handle,
        actual: &Cost,
    ) -> impl Future<Output = Result<EndResult, Error>> + Send;

    /// Ends the leases and keeps the charges. A repetition is a replay.
    fn release(&self, handle: &Handle) -> impl Future<Output = Result<EndResult, Error>> + Send;

    /// Extends leases and hold by their full length from now. Returns the time before which they
    /// have to be renewed again.
    ///
    /// If any of them has expired, none is renewed.
    fn renew(&self, handle: &Handle) -> impl Future<Output = Result<Renewal, Error>> + Send;

    /// Gives back the amounts of the plan, for callers that know the amount but not the admission.
    /// The oldest usage goes first, at most down to zero; leases are kept. Returns the usage after
    /// that.
    ///
    /// The plan has an id of its own, so a store that retries gives back only once. The operation
    /// is not atomic across servers: each counter gets its part, or an error says that one of them
    /// may not have got it.
    fn refund(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Usage, Error>> + Send;

    /// Closes the plan's gates for `wait` from now. Returns the time until which they are closed.
    ///
    /// While a gate is closed, no work of its rule starts: acquires are denied, bookings start
    /// later, and claims are rebooked. A gate is only ever closed for longer: a later, shorter
    /// `wait` does not open it. A plan without a gate has nothing to close.
    fn close(
        &self,
        plan: &Plan<'_>,
        wait: Span,
    ) -> impl Future<Output = Result<GateClosure, Error>> + Send;

    /// Removes all usage of the plan's counters and opens their gates. Returns the time of the
    /// reset.
    fn reset(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Timestamp, Error>> + Send;

    /// Returns the current usage of the plan's limits.
    fn usage(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Usage, Error>> + Send;

    /// Stores the report of a queue beside the counters of the plan, and returns the backlogs of all
    /// other queues whose reports have not expired.
    ///
    /// Backlogs are advice: no decision of the store depends on them.
    fn exchange_backlogs(
        &self,
        plan: &Plan<'_>,
        report: &BacklogReport,
    ) -> impl Future<Output = Result<Vec<Backlog>, Error>> + Send;

    /// Takes back an unanswered attempt to acquire or to book whose work will not start.
    ///
    /// Returns at once; the store retries in the background until it gets an answer. Amounts that
    /// another attempt under the same id relies on stay charged, and the id can be used again. An
    /// attempt that an outage policy has admitted is not given up.
    fn give_up(&self, plan: &Plan<'_>, attempt: Attempt) {
        let _ = (plan, attempt);
    }

    /// Returns the number of nodes that recently used this store, including this one. The share of
    /// each node during an outage depends on it.
    fn nodes(&self) -> u32;
}

/// Answer to a claim. All times are the store's. A client counts from the time of its request, by
/// the difference to `at`, because its own clock may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The work may start before `good_until`. A client that is delayed longer has to claim again.
    Go {
        /// The admission.
        allow: Allow,
        /// Time at which the slack of the booking is over.
        good_until: Timestamp,
    },
    /// This claimant got [`Claim::Go`] before, and its time is over. Nothing has changed: if the
    /// work did not start, another claimant may claim.
    Spent,
    /// The booking has not started yet: claim again at `start`.
    Early {
        /// Time of the answer.
        at: Timestamp,
        /// Start of the booking.
        start: Timestamp,
    },
    /// The claim was late, or the booking was already used, or its gate is closed, or a reload
    /// changed its charges: claim again at `start`.
    Rebooked {
        /// Time of the answer.
        at: Timestamp,
        /// Start of the new booking.
        start: Timestamp,
    },
    /// No lease is free, and the booking is kept; or a new booking would start after the horizon,
    /// and the booking is gone.
    Deny(Deny),
    /// A rule now bans the work. The booking lapses unless the ban ends before.
    Never(Never),
}

/// Result of renewing leases and hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Time of the renewal, by the clock of the store.
    pub at: Timestamp,
    /// Time at which the first of them expires.
    pub until: Timestamp,
}

/// Result of closing gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateClosure {
    /// Time of the operation, by the clock of the store.
    pub at: Timestamp,
    /// Time until which the last of the gates is closed.
    pub until: Timestamp,
}

/// Result of cancelling, settling or releasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndResult {
    /// Time of the operation, by the clock of the store.
    pub at: Timestamp,
    /// True if it was done before. Nothing has changed.
    pub replayed: bool,
}

/// Usage of the limits of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Time of the reading, by the clock of the store.
    pub at: Timestamp,
    /// One reading per limit, in the order of [`Plan::scopes`].
    pub readings: Readings,
}

/// A request to the store that may have been executed although its reply was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// An acquire with this attempt number.
    Acquire(Id),
    /// A booking with this attempt number.
    Book(Id),
}

/// Reason for a missing answer, and the attempt whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFailure {
    /// The reason.
    pub reason: String,
    /// The attempt that may have been charged: see [`Store::give_up`].
    pub attempt: Option<Attempt>,
}

/// A reason with nothing charged.
impl From<String> for StoreFailure {
    fn from(reason: String) -> Self {
        Self { reason, attempt: None }
    }
}

/// A reason with nothing charged.
impl From<&str> for StoreFailure {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Error of a store. Nothing has changed, unless the store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store did not answer. The outage policy of the rule decides.
    #[error("the store did not answer: {0}")]
    Unavailable(StoreFailure),
    /// The clocks of node and store are in different calendar periods.
    #[error("the clocks of this node and of the store are in different calendar periods")]
    ClockSkew,
    /// The id belongs to other work.
    #[error("this id is already used for other work: use a new id")]
    Conflict,
    /// A claim differs from its booking.
    #[error(
        "the dimensions or the cost differ from the booking with this id: repeat those of the \
         booking, or book under a new id"
    )]
    Differs,
    /// There is no record under the id.
    #[error("unknown id: it was never admitted, or its record has expired")]
    Unknown,
    /// The id was cancelled.
    #[error("this id was cancelled: use a new id")]
    Gone,
    /// The booking has to be claimed first.
    #[error("this booking is not claimed: claim it before the work starts")]
    NotClaimed,
    /// A lease was not renewed in time. Another request may hold the slot.
    #[error("the lease has expired: stop, or acquire again")]
    Lost,
    /// The store has reached its maximum number of ids.
    #[error("too many open reservations in the store: settle or release some")]
    Full,
    /// More requests at once than an exact log accepts.
    #[error("requests: an exact limit allows at most 1000 at once")]
    TooMany,
    /// A booking whose counters are on several servers.
    #[error(
        "a booking can't span slots of a Redis Cluster: set `partition` so that its rules share a \
         slot"
    )]
    CrossSlot,
}
