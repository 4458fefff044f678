//! [`Error`]: the reason why there is no decision. A denial is not an error.

use std::fmt;

use sluicegate_core::query::QueryError;
use sluicegate_core::store;
use sluicegate_service::ServiceError;
use sluicegate_service::cost::CostError;

/// A call that got no answer, because it was invalid or nothing could answer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// Kinds of errors, by what a program can do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The configuration of the limiter is wrong.
    Configuration,
    /// The request is invalid: a dimension that the rules need is missing, for instance.
    InvalidRequest,
    /// The id of the request belongs to other work.
    Conflict,
    /// The admission has ended before: its lease expired, or it was settled or cancelled.
    Ended,
    /// The store or the service did not answer.
    Unavailable,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn configuration(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Configuration, message.to_string())
    }

    pub(crate) fn invalid(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::InvalidRequest, message.to_string())
    }

    /// Returns the kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Self {
        Self::invalid(error)
    }
}

impl From<CostError> for Error {
    fn from(error: CostError) -> Self {
        Self::invalid(format!("cost.{error}"))
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        use store::Error as E;
        let kind = match error {
            E::Unavailable(_) | E::ClockSkew | E::Full => ErrorKind::Unavailable,
            E::Conflict | E::Differs | E::NotClaimed => ErrorKind::Conflict,
            E::Unknown | E::Gone | E::Lost => ErrorKind::Ended,
            E::TooMany | E::CrossSlot => ErrorKind::InvalidRequest,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<ServiceError> for Error {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::Plan(error) => Self::invalid(error),
            ServiceError::Store(error) => error.into(),
        }
    }
}
