//! [`ForwardError`]: the reason why the upstream gave no response.

use std::error::Error as _;

use sluicegate_http::upstream::SendError;

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
}

impl From<SendError> for ForwardError {
    fn from(error: SendError) -> Self {
        let refusal = match &error {
            SendError::Timeout(_) => Refusal::Timeout,
            SendError::Unreachable(_) => Refusal::Unreachable,
            SendError::Broken(_) => Refusal::Broken,
        };
        let refusal =
            body_too_large(&error).map_or(refusal, |BodyTooLarge(limit)| Refusal::TooLarge(limit));
        let left = !matches!(error, SendError::Unreachable(_));
        Self { refusal, cause: error.to_string(), left }
    }
}

/// Returns the error of a request whose own body exceeded the size limit.
fn body_too_large(error: &SendError) -> Option<BodyTooLarge> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(*found);
        }
        source = error.source();
    }
    None
}
