//! Converts errors of the AMQP client. No message repeats a key or a token.

use fe2o3_amqp::link::{
    DetachError, LinkStateError, ReceiverAttachError, RecvError, SendError, SenderAttachError,
};
use fe2o3_amqp::types::definitions::{self, AmqpError, ErrorCondition};
use fe2o3_amqp_management::error::{AttachError, Error as RequestError};

use super::NAME;
use crate::Error;

/// Remedy for a missing permission.
const RIGHTS: &str = "the key needs the rights Send and Listen on this queue, an Entra identity the \
                      roles Azure Service Bus Data Sender and Data Receiver";

pub(super) fn unavailable(detail: impl Into<String>) -> Error {
    Error::Unavailable { broker: NAME, detail: detail.into() }
}

pub(super) fn refused(detail: impl Into<String>) -> Error {
    Error::Refused { broker: NAME, detail: detail.into() }
}

/// An error of the client, which may contain an error of Service Bus.
pub(super) trait ClientError: std::fmt::Display {
    /// Returns the error that Service Bus sent.
    fn remote(&self) -> Option<&definitions::Error>;
}

impl ClientError for SenderAttachError {
    fn remote(&self) -> Option<&definitions::Error> {
        if let Self::RemoteClosedWithError(error) = self { Some(error) } else { None }
    }
}

impl ClientError for ReceiverAttachError {
    fn remote(&self) -> Option<&definitions::Error> {
        if let Self::RemoteClosedWithError(error) = self { Some(error) } else { None }
    }
}

impl ClientError for AttachError {
    fn remote(&self) -> Option<&definitions::Error> {
        match self {
            Self::Sender(error) => error.remote(),
            Self::Receiver(error) => error.remote(),
        }
    }
}

impl ClientError for LinkStateError {
    fn remote(&self) -> Option<&definitions::Error> {
        match self {
            Self::RemoteClosedWithError(error) | Self::RemoteDetachedWithError(error) => {
                Some(error)
            }
            _ => None,
        }
    }
}

impl ClientError for SendError {
    fn remote(&self) -> Option<&definitions::Error> {
        match self {
            Self::LinkStateError(error) => error.remote(),
            Self::Detached(
                DetachError::RemoteClosedWithError(error)
                | DetachError::RemoteDetachedWithError(error),
            ) => Some(error),
            _ => None,
        }
    }
}

impl ClientError for RecvError {
    fn remote(&self) -> Option<&definitions::Error> {
        if let Self::LinkStateError(error) = self { error.remote() } else { None }
    }
}

impl ClientError for RequestError {
    fn remote(&self) -> Option<&definitions::Error> {
        match self {
            Self::Send(error) => error.remote(),
            Self::Recv(error) => error.remote(),
            _ => None,
        }
    }
}

/// Converts the failure of an operation on a queue.
pub(super) fn of_queue(queue: &str, error: &impl ClientError) -> Error {
    match error.remote() {
        Some(remote) => of_condition(queue, remote),
        None => unavailable(error.to_string()),
    }
}

/// Converts an error of Service Bus.
pub(super) fn of_condition(queue: &str, error: &definitions::Error) -> Error {
    let text = error.description.as_deref().unwrap_or("no description");
    let queue = queue.to_owned();
    match &error.condition {
        ErrorCondition::AmqpError(AmqpError::NotFound) => Error::NoQueue { queue },
        ErrorCondition::AmqpError(AmqpError::UnauthorizedAccess) => {
            refused(format!("{text}; {RIGHTS}"))
        }
        ErrorCondition::AmqpError(AmqpError::NotAllowed) => {
            Error::Unusable { queue, detail: text.to_owned() }
        }
        ErrorCondition::AmqpError(AmqpError::ResourceLimitExceeded) => {
            unavailable(format!("queue {queue} is full: {text}"))
        }
        ErrorCondition::Custom(name) if name.as_str() == "com.microsoft:entity-disabled" => {
            Error::Unusable { queue, detail: format!("{text}; enable it in Azure") }
        }
        condition => unavailable(format!("{condition:?}: {text}")),
    }
}

/// Converts the status of a management request.
pub(super) fn of_status(queue: &str, status: u16, text: &str) -> Error {
    match status {
        401 | 403 => refused(format!("{text}; {RIGHTS}")),
        404 => Error::NoQueue { queue: queue.to_owned() },
        410 => Error::Lost,
        status => unavailable(format!("status {status}: {text}")),
    }
}

/// Converts the rejection of a token.
pub(super) fn of_token(error: &RequestError) -> Error {
    let RequestError::Status(status) = error else { return unavailable(error.to_string()) };
    let text = status.description.as_deref().unwrap_or("no description");
    refused(format!(
        "{text}; check the key in queue.connection_string, or the Entra identity, and that they are \
         for this namespace and not expired"
    ))
}
