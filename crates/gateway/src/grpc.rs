//! Rejections for gRPC callers: see [`sluicegate_service::grpc`].
//!
//! | rejection | gRPC status |
//! |---|---|
//! | `BAD_REQUEST`, `MISSING_HEADER` | `INVALID_ARGUMENT` |
//! | `UNAUTHORIZED` | `UNAUTHENTICATED` |
//! | `BANNED` | `PERMISSION_DENIED` |
//! | `NO_ROUTE`, `METHOD_NOT_ALLOWED`, `UPGRADE_NOT_ALLOWED` | `UNIMPLEMENTED` |
//! | `TOO_MANY_REQUESTS`, `BODY_TOO_LARGE` | `RESOURCE_EXHAUSTED` |
//! | `UPSTREAM_UNREACHABLE`, `UPSTREAM_BROKEN`, `LOGIN_FAILED`, `STORE_UNAVAILABLE`, `SHUTTING_DOWN` | `UNAVAILABLE` |
//! | `UPSTREAM_TIMEOUT`, `REQUEST_TIMEOUT` | `DEADLINE_EXCEEDED` |
//! | `CLIENT_CLOSED_REQUEST` | `CANCELLED` |
//! | `INTERNAL` | `INTERNAL` |
//!
//! The details contain a `google.rpc.ErrorInfo` with the error code and, if the time is known, a
//! `google.rpc.RetryInfo`. The same time is in `grpc-retry-pushback-ms`, which gRPC libraries with a
//! retry policy respect.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use sluicegate_core::Span;
use sluicegate_service::grpc;

use crate::refusal::Refusal;

const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// Domain of our error codes in `google.rpc.ErrorInfo`.
const DOMAIN: &str = "sluicegate";

/// Returns the response for a gRPC caller.
pub(crate) fn response(refusal: &Refusal, content_type: HeaderValue) -> Response<Body> {
    let (status, message) = (code(refusal), refusal.to_string());
    let retry_after = refusal.retry_after();
    let details = details(status, &message, refusal.code().1, retry_after);
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = grpc::refusal(status, &message, retry_after, content_type);
    if let Ok(details) = HeaderValue::try_from(BASE64_STANDARD_NO_PAD.encode(details)) {
        response.headers_mut().insert(DETAILS, details);
    }
    response
}

/// Returns the gRPC status.
const fn code(refusal: &Refusal) -> u16 {
    match refusal {
        Refusal::ClientClosed => 1,
        Refusal::BadRequest(_) | Refusal::MissingHeader { .. } => 3,
        Refusal::Timeout | Refusal::BodyTimeout => 4,
        Refusal::Banned { .. } => 7,
        Refusal::Limited { .. } | Refusal::TooLarge(_) => 8,
        Refusal::NoRoute | Refusal::Method(_) | Refusal::Upgrade => 12,
        Refusal::Internal => 13,
        Refusal::Unreachable
        | Refusal::Broken
        | Refusal::Login
        | Refusal::StoreUnavailable
        | Refusal::ShuttingDown => 14,
        Refusal::Unauthorized(..) => 16,
    }
}

/// Encodes a `google.rpc.Status`.
fn details(status: u16, message: &str, reason: &str, retry_after: Option<Span>) -> Vec<u8> {
    let mut info = Vec::new();
    write_bytes(&mut info, 1, reason.as_bytes());
    write_bytes(&mut info, 2, DOMAIN.as_bytes());
    let mut encoded = Vec::new();
    write_number(&mut encoded, 1, status.into());
    write_bytes(&mut encoded, 2, message.as_bytes());
    write_bytes(&mut encoded, 3, &any("google.rpc.ErrorInfo", &info));
    if let Some(span) = retry_after {
        let (mut duration, mut retry) = (Vec::new(), Vec::new());
        write_number(&mut duration, 1, span.as_micros() / 1_000_000);
        write_number(&mut duration, 2, span.as_micros() % 1_000_000 * 1_000);
        write_bytes(&mut retry, 1, &duration);
        write_bytes(&mut encoded, 3, &any("google.rpc.RetryInfo", &retry));
    }
    encoded
}

/// Encodes a `google.protobuf.Any`.
fn any(kind: &str, value: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    write_bytes(&mut encoded, 1, format!("type.googleapis.com/{kind}").as_bytes());
    write_bytes(&mut encoded, 2, value);
    encoded
}

/// Writes a protobuf field of variable length.
fn write_bytes(to: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    to.push(field << 3 | 2);
    write_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

/// Writes a protobuf field with a number; zero is the default and not written.
fn write_number(to: &mut Vec<u8>, field: u8, number: u64) {
    if number > 0 {
        to.push(field << 3);
        write_varint(to, number);
    }
}

fn write_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::HitRule;
    use tonic_types::StatusExt as _;

    /// Returns the status as tonic, a gRPC library, reads it.
    fn read(refusal: &Refusal) -> tonic::Status {
        let response = response(refusal, HeaderValue::from_static("application/grpc"));
        assert_eq!(response.status(), 200);
        tonic::Status::from_header_map(response.headers()).expect("a status")
    }

    #[test]
    fn a_grpc_library_reads_the_status_and_the_time_to_wait() {
        let retry_after = Some(Span::from_millis(2_500));
        let status = read(&Refusal::Limited {
            retry_after,
            rule: Some(HitRule::Named("100 % é".to_owned())),
        });
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status.message(), "the limit 100 % é is reached: try again in 3 s");
        let wait = status.get_details_retry_info().expect("a retry info").retry_delay;
        assert_eq!(wait, Some(std::time::Duration::from_millis(2_500)));
        let info = status.get_details_error_info().expect("an error info");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("TOO_MANY_REQUESTS", DOMAIN));

        let status = read(&Refusal::Unreachable);
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(status.get_details_retry_info().is_none());
    }

    #[test]
    fn every_kind_of_rejection_has_its_grpc_status() {
        use tonic::Code;
        for (refusal, expected) in [
            (Refusal::BadRequest("x"), Code::InvalidArgument),
            (Refusal::Unauthorized("x", "y".to_owned()), Code::Unauthenticated),
            (Refusal::Banned { retry_after: None, rule: None }, Code::PermissionDenied),
            (Refusal::NoRoute, Code::Unimplemented),
            (Refusal::TooLarge(1), Code::ResourceExhausted),
            (Refusal::Broken, Code::Unavailable),
            (Refusal::StoreUnavailable, Code::Unavailable),
            (Refusal::ShuttingDown, Code::Unavailable),
            (Refusal::Timeout, Code::DeadlineExceeded),
            (Refusal::BodyTimeout, Code::DeadlineExceeded),
            (Refusal::ClientClosed, Code::Cancelled),
            (Refusal::Internal, Code::Internal),
        ] {
            assert_eq!(read(&refusal).code(), expected, "{refusal:?}");
        }
    }
}
