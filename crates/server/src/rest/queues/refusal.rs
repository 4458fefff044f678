//! Maps the errors of queues and leases to problems.

use axum::http::StatusCode;
use sluicegate_queue::Error;
use sluicegate_queue::remote::LeaseError;

use crate::rest::Problem;

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let (status, reason) = match &error {
            Error::NoQueue { .. } => (StatusCode::NOT_FOUND, "NO_QUEUE"),
            Error::Unusable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "QUEUE_UNUSABLE"),
            Error::Refused { .. } => (StatusCode::SERVICE_UNAVAILABLE, "BROKER_REFUSED"),
            Error::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "BROKER_UNAVAILABLE"),
            Error::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "MESSAGE_TOO_LARGE"),
            Error::Lost => (StatusCode::GONE, "LEASE_LOST"),
            Error::Invalid(_) => (StatusCode::BAD_REQUEST, "INVALID"),
        };
        Self::new(status, error.to_string()).because(reason)
    }
}

impl From<LeaseError> for Problem {
    fn from(error: LeaseError) -> Self {
        let (status, reason) = match error {
            LeaseError::Queue(error) => return error.into(),
            LeaseError::Malformed => return Self::field("handle", error.to_string()),
            LeaseError::OtherQueue { .. } => (StatusCode::CONFLICT, "OTHER_QUEUE"),
            LeaseError::Settled { .. } => (StatusCode::CONFLICT, "LEASE_SETTLED"),
            LeaseError::OtherNode { .. } | LeaseError::NoMessage { .. } => {
                (StatusCode::CONFLICT, "OTHER_NODE")
            }
            LeaseError::Expired { .. } => (StatusCode::GONE, "LEASE_EXPIRED"),
            LeaseError::Lost { .. } => (StatusCode::GONE, "LEASE_LOST"),
            LeaseError::Unknown { .. } => (StatusCode::GONE, "LEASE_UNKNOWN"),
            LeaseError::TooMany { .. } => (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_LEASES"),
        };
        Self::new(status, error.to_string()).because(reason)
    }
}
