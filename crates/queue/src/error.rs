//! What can go wrong, by what its reader can do about it.

/// Why a queue did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such queue.
    #[error("queue {queue} does not exist: create it, or let `--create` do it")]
    NoQueue {
        /// What it was called.
        queue: String,
    },
    /// There is one, and it is not what was asked for.
    #[error("queue {queue} can't be used: {detail}")]
    Unusable {
        /// What it is called.
        queue: String,
        /// What is wrong with it, and what to do.
        detail: String,
    },
    /// The broker knows us and says no, or does not know us.
    #[error("{broker} refuses us: {detail}")]
    Refused {
        /// Which kind of broker.
        broker: &'static str,
        /// Its words, and what to do.
        detail: String,
    },
    /// A message is larger than the broker takes.
    #[error(
        "the message has {size} bytes with its metadata, and {broker} takes {max}: send a reference to where the rest is"
    )]
    TooLarge {
        /// Which kind of broker.
        broker: &'static str,
        /// Its size as it would be sent.
        size: usize,
        /// The most there may be.
        max: usize,
    },
    /// The lease of a delivery ended before it was settled: somebody else has it, or will.
    #[error("the delivery is no longer ours: its lease ended, and it is delivered again")]
    Lost,
    /// The broker did not answer, or not in time. What was asked may have been done.
    #[error("{broker} does not answer: {detail}")]
    Unavailable {
        /// Which kind of broker.
        broker: &'static str,
        /// What happened.
        detail: String,
    },
    /// The caller asked for what can't be.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Whether the same request may succeed later without anybody doing something about it.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}
