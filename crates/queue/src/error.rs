//! [`Error`]: the errors of a queue, by the reaction that they call for.

/// The reason that a queue operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The queue does not exist.
    #[error("queue {queue} does not exist: create it, or use `--create`")]
    NoQueue {
        /// Name of the queue.
        queue: String,
    },
    /// The queue exists, but can't be used.
    #[error("queue {queue} can't be used: {detail}")]
    Unusable {
        /// Name of the queue.
        queue: String,
        /// Problem and remedy.
        detail: String,
    },
    /// The broker rejected our login or our permissions.
    #[error("{broker} refused access: {detail}")]
    Refused {
        /// Kind of broker.
        broker: &'static str,
        /// Text of the broker, and the remedy.
        detail: String,
    },
    /// The message is larger than the broker allows.
    #[error(
        "the message has {size} bytes with its metadata, and the maximum of {broker} is {max}: store the data elsewhere and send a reference to it"
    )]
    TooLarge {
        /// Kind of broker.
        broker: &'static str,
        /// Size of the message with its metadata.
        size: usize,
        /// Maximum size.
        max: usize,
    },
    /// The lease ended before the delivery was settled: another consumer has the message, or will
    /// get it.
    #[error("the lease of the delivery has ended: the message is delivered again")]
    Lost,
    /// The broker did not answer in time. The operation may have been executed.
    #[error("{broker} is unavailable: {detail}")]
    Unavailable {
        /// Kind of broker.
        broker: &'static str,
        /// Description of the failure.
        detail: String,
    },
    /// The caller passed an invalid argument.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Creates the error of an operation that the end of the process interrupts.
    pub(crate) fn stopping() -> Self {
        Self::Unavailable { broker: "the queue", detail: "the process is stopping".to_owned() }
    }

    /// Returns true if the same request may succeed later without any change by an operator.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Returns true if the same message can never be published, whatever an operator changes.
    pub const fn is_permanent(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::Invalid(_))
    }
}
