//! Responses to requests that are not admitted.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use sluicegate_core::Span;
use sluicegate_service::grpc;

use crate::decision::Denial;
use crate::error::{Error, ErrorKind};

/// Returns the response to a denied request, without its rate-limit header fields.
pub(super) fn denied(denial: &Denial, grpc: Option<HeaderValue>) -> Response<Bytes> {
    let Some(content_type) = grpc else {
        return json(denial.status(), denial.body());
    };
    let code = match denial.status() {
        403 => 7,
        503 => 14,
        _ => 8,
    };
    grpc_response(code, denial.detail(), denial.retry_after().map(Span::from), content_type)
}

/// Returns the response to a request that got no decision.
pub(super) fn failed(error: &Error, grpc: Option<HeaderValue>) -> Response<Bytes> {
    let (status, code) = match error.kind() {
        ErrorKind::Unavailable => (503, 14),
        ErrorKind::InvalidRequest => (400, 3),
        // The configuration of this program is wrong. The client can't do anything about it.
        ErrorKind::Configuration | ErrorKind::Conflict | ErrorKind::Ended => (500, 13),
    };
    if status == 500 {
        tracing::error!(%error, "the limiter can't decide");
    }
    // Only errors of the request are shown to its sender.
    let detail = match status {
        400 => error.to_string(),
        503 => "the rate limiter does not answer: retry later".to_owned(),
        _ => "the rate limiter is not configured correctly".to_owned(),
    };
    if let Some(content_type) = grpc {
        return grpc_response(code, &detail, None, content_type);
    }
    let mut response = json(status, serde_json::json!({ "detail": detail }).to_string());
    if status == 503 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1));
    }
    response
}

fn json(status: u16, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn grpc_response(
    code: u16,
    message: &str,
    retry_after: Option<Span>,
    content_type: HeaderValue,
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.headers_mut() = grpc::refusal(code, message, retry_after, content_type);
    response
}
