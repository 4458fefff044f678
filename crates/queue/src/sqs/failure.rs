//! What an error of AWS means to our callers.

use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};

use super::NAME;
use crate::Error;
use crate::broker::Place;

/// Beginnings of the codes by which AWS says that it does not know us, or does not want to.
const REFUSED: [&str; 8] = [
    "AccessDenied",
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "SignatureDoesNotMatch",
    "UnrecognizedClient",
];
/// What a receipt is told when the lease has ended. Some come as a bad parameter.
const LOST: [&str; 4] =
    ["InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid", "InvalidIdFormat"];

/// A question about a queue that was not answered.
pub(super) fn of_queue<E>(place: &Place, error: &SdkError<E>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let SdkError::ServiceError(service) = error else { return unanswered(error) };
    let status = service.raw().status().as_u16();
    let code = match service.err().code() {
        Some(code) => code,
        // Whoever stands before AWS has other words for it, if any.
        None if matches!(status, 401 | 403) => "AccessDenied",
        None => "an answer without a reason",
    };
    let words = service.err().message().unwrap_or(code);
    of_code(place, code, words)
}

/// The same, of one message of a batch.
pub(super) fn of_code(place: &Place, code: &str, words: &str) -> Error {
    let code = code.rsplit('.').next().unwrap_or_default();
    let queue = || place.name().to_owned();
    if code.starts_with("QueueDoesNotExist") || code.starts_with("NonExistentQueue") {
        return Error::NoQueue { queue: queue() };
    }
    if REFUSED.iter().any(|refused| code.starts_with(refused)) {
        let detail =
            format!("{code}: {words}; check the credentials, and what their policy allows");
        return Error::Refused { broker: NAME, detail };
    }
    Error::Unavailable { broker: NAME, detail: format!("{code}: {words}") }
}

/// Settling one message that did not succeed.
pub(super) fn of_receipt(place: &Place, code: &str, words: &str) -> Error {
    let last = code.rsplit('.').next().unwrap_or_default();
    if LOST.iter().any(|lost| last.starts_with(lost)) {
        return Error::Lost;
    }
    of_code(place, code, words)
}

/// No answer at all, or none that can be read.
fn unanswered<E: std::error::Error + 'static>(error: &SdkError<E>) -> Error {
    let detail = DisplayErrorContext(error).to_string();
    if detail.contains("credentials") {
        let detail = "found no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
                      AWS_PROFILE, or a role";
        return Error::Refused { broker: NAME, detail: detail.to_owned() };
    }
    let detail = format!("{detail}: is queue.endpoint right, and is the network there?");
    Error::Unavailable { broker: NAME, detail }
}
