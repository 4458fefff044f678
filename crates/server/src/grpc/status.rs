//! Converts a refusal into a gRPC status.

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::refusal::{Refusal, RefusalKind};

impl From<Refusal> for Status {
    /// An invalid field is also in the details as `google.rpc.BadRequest`, for programs.
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.kind {
            RefusalKind::Invalid => Code::InvalidArgument,
            RefusalKind::Conflict => Code::AlreadyExists,
            RefusalKind::Unknown => Code::NotFound,
            RefusalKind::Gone => Code::FailedPrecondition,
            RefusalKind::Unavailable => Code::Unavailable,
            RefusalKind::Internal => Code::Internal,
        };
        let message = refusal.to_string();
        match refusal.field {
            None => Self::new(code, message),
            Some(field) => {
                let details = ErrorDetails::with_bad_request_violation(field, refusal.detail);
                Self::with_error_details(code, message, details)
            }
        }
    }
}
