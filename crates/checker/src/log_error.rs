//! [`LogError`]: errors in a log that prevent checking it.

use sluicegate_core::id::Id;
use sluicegate_core::limit::Unit;
use sluicegate_core::time::{Span, Timestamp};

/// Error in a log that prevents checking it. It does not mean that a limit was exceeded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// An event of a key without a scope.
    #[error("{key}: no limit is known for this key: give its scopes before its events")]
    UnknownKey {
        /// The key.
        key: Box<str>,
    },
    /// An admission on a key with only concurrent limits.
    #[error(
        "{key}: an admission, but the only limits of this key are concurrent: record starts and ends"
    )]
    NotRated {
        /// The key.
        key: Box<str>,
    },
    /// A lease on a key without a concurrent limit.
    #[error("{key}: a lease, but no limit of this key is concurrent: record admissions")]
    NotConcurrent {
        /// The key.
        key: Box<str>,
    },
    /// Limits of different units on one key.
    #[error("{key}: counts {known}, so it can't count {other} too: give {other} a key of its own")]
    Units {
        /// The key.
        key: Box<str>,
        /// Its unit.
        known: Unit,
        /// The other unit.
        other: Unit,
    },
    /// A spread that is at least as long as the window.
    #[error(
        "{key}: a spread of {spread} leaves nothing of the window of {limit}: use a spread shorter than the window"
    )]
    Spread {
        /// The key.
        key: Box<str>,
        /// The limit.
        limit: String,
        /// The spread.
        spread: Span,
    },
    /// A spread on a limit that needs exact times.
    #[error("{key}: {limit} can't be proven with a spread: use the times of the store")]
    NoSpread {
        /// The key.
        key: Box<str>,
        /// The limit.
        limit: String,
    },
    /// A time that can't be represented.
    #[error("{key}: time {micros} µs is after the maximum, 2255-06-05T23:47:34Z")]
    Time {
        /// The key.
        key: Box<str>,
        /// The instant, in microseconds since the epoch.
        micros: u64,
    },
    /// The calendar has no period at a time.
    #[error("{key}: {limit} has no period at {at}")]
    NoPeriod {
        /// The key.
        key: Box<str>,
        /// The limit.
        limit: String,
        /// The instant.
        at: Timestamp,
    },
    /// Two starts under one id.
    #[error("{key}: lease {id} starts twice: give each lease an id of its own")]
    StartedTwice {
        /// The key.
        key: Box<str>,
        /// The lease.
        id: Id,
    },
    /// Two ends under one id.
    #[error("{key}: lease {id} ends twice: one of them freed a slot of another lease")]
    EndedTwice {
        /// The key.
        key: Box<str>,
        /// The lease.
        id: Id,
    },
    /// A renewal or an end without a start.
    #[error("{key}: lease {id} is renewed or ends, but never starts: a part of the log is missing")]
    Unstarted {
        /// The key.
        key: Box<str>,
        /// The lease.
        id: Id,
    },
    /// A lease that ends or expires before it starts.
    #[error("{key}: lease {id} ends at {end}, before it starts at {start}")]
    Backwards {
        /// The key.
        key: Box<str>,
        /// The lease.
        id: Id,
        /// Start of the lease.
        start: Timestamp,
        /// End or expiry of the lease.
        end: Timestamp,
    },
}
