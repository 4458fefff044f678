//! [`ForwardError`]: the reason why the upstream gave no response.

use std::error::Error as _;

use sluicegate_http::upstream::{ConnectError, ExchangeError};

use super::buffered_body::BodyTooLarge;
use crate::refusal::Refusal;

/// The reason why the upstream gave no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForwardError {
    /// Error response for the caller.
    pub(crate) refusal: Refusal,
    /// Cause, for the log.
    pub(crate) cause: String,
    /// True if the request may have been sent.
    pub(crate) left: bool,
    /// True if the upstream had probably closed the connection before the request reached it.
    pub(crate) stale: bool,
    /// True if nothing was sent, because the turn was over when the connection wrote the request.
    pub(crate) late: bool,
}

impl ForwardError {
    /// Returns the error of a request that was sent and took too long, for the reason in `refusal`.
    pub(crate) fn timed_out(refusal: Refusal) -> Self {
        Self { cause: refusal.to_string(), refusal, left: true, stale: false, late: false }
    }
}

impl From<ConnectError> for ForwardError {
    fn from(error: ConnectError) -> Self {
        let refusal = match &error {
            ConnectError::Deadline(_) => Refusal::Timeout,
            ConnectError::Timeout(_) | ConnectError::Failed(_) => Refusal::Unreachable,
        };
        Self { refusal, cause: error.to_string(), left: false, stale: false, late: false }
    }
}

impl From<ExchangeError> for ForwardError {
    fn from(error: ExchangeError) -> Self {
        let left = error.unsent.is_none() && !error.late;
        let refusal = match body_too_large(&error) {
            Some(BodyTooLarge(limit)) => Refusal::TooLarge(limit),
            None if left => Refusal::Broken,
            None => Refusal::Unreachable,
        };
        let stale = left && error.stale;
        Self { refusal, cause: error.to_string(), left, stale, late: error.late }
    }
}

/// Returns the error of a request whose own body exceeded the size limit.
fn body_too_large(error: &ExchangeError) -> Option<BodyTooLarge> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(*found);
        }
        source = error.source();
    }
    None
}
