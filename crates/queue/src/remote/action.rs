//! [`LeaseAction`]: the ways in which a client settles a lease.

use std::fmt;

use crate::{DeadLetterReason, Delivery, DeliveryTime, Unsettled};

/// A way to settle a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// The work is done.
    Ack,
    /// Deliver the message later; nothing has failed.
    Defer(DeliveryTime),
    /// Deliver the message later as the next attempt, because this one has failed.
    Retry(DeliveryTime),
    /// Deliver the message to another consumer at once.
    Requeue,
    /// Move the message to the dead-letter queue.
    DeadLetter(DeadLetterReason),
}

/// The kind of a [`LeaseAction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseActionKind {
    /// [`LeaseAction::Ack`]
    Ack,
    /// [`LeaseAction::Defer`]
    Defer,
    /// [`LeaseAction::Retry`]
    Retry,
    /// [`LeaseAction::Requeue`]
    Requeue,
    /// [`LeaseAction::DeadLetter`]
    DeadLetter,
}

impl LeaseAction {
    /// Returns the kind of action.
    pub const fn kind(&self) -> LeaseActionKind {
        match self {
            Self::Ack => LeaseActionKind::Ack,
            Self::Defer(_) => LeaseActionKind::Defer,
            Self::Retry(_) => LeaseActionKind::Retry,
            Self::Requeue => LeaseActionKind::Requeue,
            Self::DeadLetter(_) => LeaseActionKind::DeadLetter,
        }
    }

    /// Returns the time of the next delivery, if the client chose one.
    pub(super) const fn delivery_time(&self) -> Option<DeliveryTime> {
        match self {
            Self::Defer(at) | Self::Retry(at) => Some(*at),
            Self::Ack | Self::Requeue | Self::DeadLetter(_) => None,
        }
    }

    /// Returns the error that the client stated.
    pub(super) fn error(&self) -> Option<&str> {
        match self {
            Self::DeadLetter(reason) => Some(&reason.message),
            _ => None,
        }
    }

    /// Settles a delivery.
    pub(super) async fn run(self, delivery: Delivery) -> Result<(), Unsettled> {
        let lost = |error| Unsettled { error, delivery: None };
        match self {
            Self::Ack => delivery.ack().await.map_err(lost),
            Self::Defer(when) => delivery.defer(when).await,
            Self::Retry(when) => delivery.retry(when).await,
            Self::Requeue => delivery.requeue().await.map_err(lost),
            Self::DeadLetter(reason) => delivery.dead_letter(reason).await,
        }
    }
}

impl LeaseActionKind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Ack, Self::Defer, Self::Retry, Self::Requeue, Self::DeadLetter];

    /// Returns its name in paths and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Defer => "defer",
            Self::Retry => "retry",
            Self::Requeue => "requeue",
            Self::DeadLetter => "dead-letter",
        }
    }
}

impl fmt::Display for LeaseActionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
