//! Converts a refusal into a gRPC status.

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::refusal::{Kind, Refusal};

impl From<Refusal> for Status {
    /// An invalid field is also in the details as `google.rpc.BadRequest`, for programs.
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.kind {
            Kind::Invalid => Code::InvalidArgument,
            Kind::Conflict => Code::AlreadyExists,
            Kind::Unknown => Code::NotFound,
            Kind::Gone => Code::FailedPrecondition,
            Kind::Unavailable => Code::Unavailable,
            Kind::Internal => Code::Internal,
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
