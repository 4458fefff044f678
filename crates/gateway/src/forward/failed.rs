//! Why there is no answer, as a caller is told.

use std::error::Error as _;

use sluicegate_http::upstream::SendError;

use super::parked::TooLong;
use crate::refusal::Refusal;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// What the caller is told.
    pub(crate) refusal: Refusal,
    /// What went wrong, for the log.
    pub(crate) cause: String,
    /// Whether anything was sent.
    pub(crate) left: bool,
}

impl From<SendError> for Failed {
    fn from(error: SendError) -> Self {
        let refusal = match &error {
            SendError::Timeout(_) => Refusal::Timeout,
            SendError::Unreachable(_) => Refusal::Unreachable,
            SendError::Broken(_) => Refusal::Broken,
        };
        let refusal = too_long(&error).map_or(refusal, |TooLong(limit)| Refusal::TooLarge(limit));
        let left = !matches!(error, SendError::Unreachable(_));
        Self { refusal, cause: error.to_string(), left }
    }
}

/// The request broke off because its own body was longer than it may be.
fn too_long(error: &SendError) -> Option<TooLong> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(*found);
        }
        source = error.source();
    }
    None
}
