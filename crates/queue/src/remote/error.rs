//! [`LeaseError`]: the reason that a client can't use a lease.

use sluicegate_core::Timestamp;

use super::LeaseActionKind;
use crate::Error;

/// The end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// The client settled it.
    Settled(LeaseActionKind),
    /// Its time was over.
    Expired(Timestamp),
    /// The broker had given the message to another consumer, or lost the connection of the lease.
    Lost,
    /// The node stopped and requeued the message.
    Stopped,
}

/// The reason that a lease can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The text is not a handle of ours.
    #[error("not a lease handle: send the handle of a received message as it is")]
    Malformed,
    /// The lease is one of another queue.
    #[error("the lease belongs to queue {queue}: send the request to that queue")]
    OtherQueue {
        /// Queue of the lease.
        queue: String,
    },
    /// Another action has settled the lease.
    #[error("the lease was settled before, by {by}: a lease is settled once")]
    Settled {
        /// The action.
        by: LeaseActionKind,
    },
    /// The time of the lease is over.
    #[error("the lease ended at {at}: the message is delivered again; extend the lease in time")]
    Expired {
        /// End of the lease.
        at: Timestamp,
    },
    /// The lease is lost.
    #[error(
        "the lease is lost: its time was over, or {node} lost its connection to the broker; the message is delivered again"
    )]
    Lost {
        /// Node that received the message.
        node: String,
    },
    /// This node has no such lease any more.
    #[error(
        "node {node} has no such lease: it ended a while ago, or the node was restarted; the message is delivered again, unless it was settled"
    )]
    Unknown {
        /// This node.
        node: String,
    },
    /// The lease belongs to a connection of another node.
    #[error(
        "node {node} holds the lease, and only that node can use it: send the request there; if the node has stopped, the message is delivered again"
    )]
    OtherNode {
        /// The other node.
        node: String,
    },
    /// The action needs the message, which only the node that received it has.
    #[error(
        "node {node} received the message, and with {broker} only that node can defer, retry or dead-letter it, while it runs and until the lease that it granted ends: send the request there (ack, extend and requeue work on every node)"
    )]
    NoMessage {
        /// Node that received the message.
        node: String,
        /// Kind of broker.
        broker: &'static str,
    },
    /// Too many leases are open on this node.
    #[error(
        "{max} leases are open or waited for on this node, which is the maximum: settle some, or raise queue.api.leases_max"
    )]
    TooMany {
        /// Maximum number.
        max: usize,
    },
    /// The queue operation failed. The lease is still open, unless it says that it is lost.
    #[error(transparent)]
    Queue(#[from] Error),
}

impl LeaseError {
    /// Converts the error of settling a lease that a node granted.
    pub(super) fn of(error: Error, node: &str) -> Self {
        match error {
            Error::Lost => Self::Lost { node: node.to_owned() },
            error => Self::Queue(error),
        }
    }
}
