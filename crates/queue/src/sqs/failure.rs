//! Converts errors of AWS.

use aws_sdk_sqs::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};

use super::NAME;
use crate::Error;
use crate::broker::QueueName;

/// Prefixes of the error codes for rejected credentials or permissions.
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
/// Error codes of a receipt whose lease has ended. Some servers report it as an invalid parameter.
const LOST: [&str; 4] =
    ["InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid", "InvalidIdFormat"];

/// Converts the failure of a request to a queue.
pub(super) fn of_queue<E>(queue_name: &QueueName, error: &SdkError<E>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let SdkError::ServiceError(service) = error else { return unanswered(error) };
    let status = service.raw().status().as_u16();
    let code = match service.err().code() {
        Some(code) => code,
        // A proxy in front of AWS sends other errors, or none.
        None if matches!(status, 401 | 403) => "AccessDenied",
        None => "an error without a code",
    };
    let words = service.err().message().unwrap_or(code);
    of_code(queue_name, code, words)
}

/// Converts the failure of one message of a batch.
pub(super) fn of_code(queue_name: &QueueName, code: &str, words: &str) -> Error {
    let code = code.rsplit('.').next().unwrap_or_default();
    let queue = || queue_name.name().to_owned();
    if code.starts_with("QueueDoesNotExist") || code.starts_with("NonExistentQueue") {
        return Error::NoQueue { queue: queue() };
    }
    if REFUSED.iter().any(|refused| code.starts_with(refused)) {
        let detail = format!("{code}: {words}; check the credentials and their policy");
        return Error::Refused { broker: NAME, detail };
    }
    Error::Unavailable { broker: NAME, detail: format!("{code}: {words}") }
}

/// Converts the failure of settling one message.
pub(super) fn of_receipt(queue_name: &QueueName, code: &str, words: &str) -> Error {
    let last = code.rsplit('.').next().unwrap_or_default();
    if LOST.iter().any(|lost| last.starts_with(lost)) {
        return Error::Lost;
    }
    of_code(queue_name, code, words)
}

/// Converts a request without a valid response.
fn unanswered<E: std::error::Error + 'static>(error: &SdkError<E>) -> Error {
    let detail = DisplayErrorContext(error).to_string();
    if detail.contains("credentials") {
        let detail = "no credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
                      AWS_PROFILE, or a role";
        return Error::Refused { broker: NAME, detail: detail.to_owned() };
    }
    let detail = format!("{detail}: check queue.endpoint and the network");
    Error::Unavailable { broker: NAME, detail }
}
