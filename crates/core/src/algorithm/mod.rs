//! The algorithms: pure functions of (state, now, amount).
//!
//! Each has one question, *earliest*: the first instant, not before a given one, at which so much
//! fits. An acquire is a booking that is accepted only if it starts now. A store adds nothing to
//! this but atomicity, and knows no other way to decide.
//!
//! | module | keeps | `earliest` |
//! |---|---|---|
//! | [`log`] | a score for each request | when the k-th newest leaves, in O(1) |
//! | [`window`] | sums in hundredths of a window, or of a calendar period | when enough sums have left |
//! | [`bucket`] | the instant at which the bucket is empty again | when enough has drained |
//! | [`concurrency`] | leases with their expiry | when enough leases expire |
//!
//! **Why a booking is written at its latest instant.** A booking that starts at `s` may be used
//! until `s + slack`, so its score is `s + slack`. Take any `L + 1` uses and of them the one that
//! was decided last: at most `L - 1` scores were newer than `s - W`, so one of the others has a
//! score, and therefore a use, at or before `s - W`, while this one is used at or after `s`. No
//! window of length `W` holds both. The argument never asks how late the last one is used, which
//! is why nothing that was decided before has to be looked at again.

pub mod bucket;
mod cell;
pub mod concurrency;
pub mod log;
pub mod window;

use std::borrow::Cow;

pub use cell::{Cell, Mark, Use};

use crate::time::{Span, Timestamp};

/// How a charge is measured: which algorithm, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meter<'r> {
    /// An exact log; all windows of a rule share it.
    Log(Cow<'r, [log::Quota]>),
    /// A window in hundredths.
    Windowed(window::Quota),
    /// A calendar period.
    Calendar(window::CalendarQuota),
    /// A token bucket.
    Bucket(bucket::Quota),
    /// Leases.
    Leases(concurrency::Quota),
}

impl Meter<'_> {
    /// How many limits it holds: as many readings does it give.
    pub fn len(&self) -> usize {
        match self {
            Self::Log(quotas) => quotas.len(),
            _ => 1,
        }
    }

    /// A meter always holds a limit.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The amount of its limit number `index`.
    pub fn limit(&self, index: usize) -> u64 {
        match self {
            Self::Log(quotas) => quotas[index].limit,
            Self::Windowed(quota) => quota.limit,
            Self::Calendar(quota) => quota.limit,
            Self::Bucket(quota) => quota.capacity(),
            Self::Leases(quota) => quota.limit,
        }
    }

    /// A number for the kind of algorithm: state of one kind is of no use to another.
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Log(_) => 0,
            Self::Windowed(_) => 1,
            Self::Calendar(_) => 2,
            Self::Bucket(_) => 3,
            Self::Leases(_) => 4,
        }
    }

    /// Whether a future instant can be booked: a lease is taken when the work starts.
    pub const fn bookable(&self) -> bool {
        !matches!(self, Self::Leases(_))
    }

    /// How long usage counts after the instant at which it is written.
    pub fn window(&self) -> Span {
        match self {
            Self::Log(quotas) => quotas.iter().map(|q| q.window).max().unwrap_or_default(),
            Self::Windowed(quota) => quota.window,
            Self::Calendar(quota) => {
                let [first, .., last] = quota.boundaries.0;
                last.since(first)
            }
            Self::Bucket(quota) => quota.drained_in(),
            Self::Leases(quota) => quota.lease,
        }
    }
}

/// What one limit shows: how much of it is used, and when the oldest part of that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// In use, bookings included. Debt can make it more than the limit.
    pub used: u64,
    /// When the oldest use leaves; now if there is none.
    pub reset: Timestamp,
    /// The usage of other keys is in it, because the store had no room for a counter of each.
    pub shared: bool,
}

impl Reading {
    /// What a counter of one key shows.
    pub const fn new(used: u64, reset: Timestamp) -> Self {
        Self { used, reset, shared: false }
    }
}

/// When so much fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earliest {
    /// At this instant, and limit number `limit` of the meter is why not before.
    At {
        /// The instant.
        start: Timestamp,
        /// The limit that binds.
        limit: usize,
    },
    /// It is more than limit number `limit` ever gives.
    Never {
        /// The limit that is too small.
        limit: usize,
    },
}

impl Earliest {
    const fn at(start: Timestamp) -> Self {
        Self::At { start, limit: 0 }
    }

    /// The same, because of limit number `index`.
    const fn of_limit(self, index: usize) -> Self {
        match self {
            Self::At { start, .. } => Self::At { start, limit: index },
            Self::Never { .. } => Self::Never { limit: index },
        }
    }
}
