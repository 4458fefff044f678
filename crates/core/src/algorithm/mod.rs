//! The counting algorithms, as pure functions of (state, now, amount), and the [`Meter`] that
//! selects one for a charge.
//!
//! Every algorithm implements one operation, `earliest`: it returns the first instant, from a given
//! one on, at which an amount fits. An acquire is a booking that is accepted only if it starts now.
//! A store adds atomicity and decides nothing by itself.
//!
//! | module | state | result of `earliest` |
//! |---|---|---|
//! | [`log`] | one score per request | the time at which the k-th newest entry expires, in O(1) |
//! | [`window`] | sums per hundredth of a window, or per calendar period | the time at which enough sums have expired |
//! | [`bucket`] | the time at which the bucket is empty again | the time at which enough has drained |
//! | [`concurrency`] | leases with their expiry | the time at which enough leases expire |
//!
//! **Why a booking is written at its latest instant.** A booking that starts at `s` may be used
//! until `s + slack`, so its score is `s + slack`. Take any `L + 1` uses, and of these the one that
//! was decided last. At most `L - 1` scores were newer than `s - W`. So one of the others has a
//! score, and therefore a use, at or before `s - W`, while this one is used at or after `s`. No
//! window of length `W` contains both. The argument does not depend on how late the last one is
//! used, so earlier decisions never have to be checked again.

pub mod bucket;
mod cell;
pub mod concurrency;
pub mod log;
pub mod window;

use std::borrow::Cow;

pub use cell::{Cell, CellCharge, CellPosition};

use crate::id::Id;
use crate::time::{Span, Timestamp};

/// The time after its start within which work may begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slack {
    /// Length.
    pub span: Span,
    /// The pacer that begins the work, if it spaces the real starts of all its work by itself.
    /// Token buckets then need no slack between its bookings: see [`bucket`].
    pub owner: Option<Id>,
}

impl Slack {
    /// The slack of work that begins at its start.
    pub const NONE: Self = Self { span: Span::ZERO, owner: None };
}

/// The algorithm that counts a charge, with its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meter<'r> {
    /// An exact log, shared by all windows of a rule.
    Log(Cow<'r, [log::LogQuota]>),
    /// A rolling window, counted in hundredths of its length.
    Windowed(window::WindowQuota),
    /// A calendar period.
    Calendar(window::CalendarQuota),
    /// A token bucket.
    Bucket(bucket::BucketQuota),
    /// Concurrency slots, each held by a lease.
    Leases(concurrency::SlotQuota),
}

impl Meter<'_> {
    /// Returns the number of limits, which is also the number of readings.
    pub fn len(&self) -> usize {
        match self {
            Self::Log(quotas) => quotas.len(),
            _ => 1,
        }
    }

    /// Returns false: a meter always has a limit.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns the amount of the limit at `index`.
    pub fn limit(&self, index: usize) -> u64 {
        match self {
            Self::Log(quotas) => quotas[index].limit,
            Self::Windowed(quota) => quota.limit,
            Self::Calendar(quota) => quota.limit,
            Self::Bucket(quota) => quota.capacity(),
            Self::Leases(quota) => quota.limit,
        }
    }

    /// Returns a number for the algorithm. State of one algorithm can't be read by another.
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Log(_) => 0,
            Self::Windowed(_) => 1,
            Self::Calendar(_) => 2,
            Self::Bucket(_) => 3,
            Self::Leases(_) => 4,
        }
    }

    /// Returns true if a future instant can be booked. A lease can't: it is taken when the work
    /// starts.
    pub const fn is_bookable(&self) -> bool {
        !matches!(self, Self::Leases(_))
    }

    /// Returns the time for which usage counts after it is written.
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

/// Current usage of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Amount in use, including bookings. Debt can raise it above the limit.
    pub used: u64,
    /// Time at which the oldest use expires; now if there is none.
    pub reset: Timestamp,
    /// True if `used` includes the usage of other keys, because the store had no space for a
    /// counter per key.
    pub shared: bool,
}

impl Reading {
    /// Creates the reading of a counter that belongs to one key.
    pub const fn new(used: u64, reset: Timestamp) -> Self {
        Self { used, reset, shared: false }
    }
}

/// The earliest start at which an amount fits, or that it never fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarliestStart {
    /// It fits at `start`, and not earlier because of limit number `limit` of the meter.
    At {
        /// Time at which it fits.
        start: Timestamp,
        /// Index of the limit that causes the wait.
        limit: usize,
    },
    /// It never fits: the amount is larger than limit number `limit`.
    Never {
        /// Index of the limit that is too small.
        limit: usize,
    },
}

impl EarliestStart {
    const fn at(start: Timestamp) -> Self {
        Self::At { start, limit: 0 }
    }

    /// Returns the same result, caused by limit number `index`.
    const fn of_limit(self, index: usize) -> Self {
        match self {
            Self::At { start, .. } => Self::At { start, limit: index },
            Self::Never { .. } => Self::Never { limit: index },
        }
    }
}
