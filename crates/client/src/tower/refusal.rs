//! Responses to requests that are not admitted. A gRPC client ignores the HTTP status and body, so it
//! gets a response that consists only of a gRPC status ("trailers-only").

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::decision::Denial;
use crate::error::{Error, ErrorKind};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Time after which gRPC libraries with a retry policy try again.
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// Characters of a message that gRPC wants encoded: all but printable ASCII, and the percent sign.
const ENCODED: AsciiSet = CONTROLS.add(b'%');

/// Returns the media type of a gRPC request, or `None` if the request is not gRPC.
pub(super) fn grpc_content_type(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(CONTENT_TYPE)?;
    let rest = value.as_bytes().strip_prefix(b"application/grpc")?;
    // Also gRPC-Web, which reads a status in the header like gRPC.
    let is_grpc = rest.is_empty()
        || rest.starts_with(b"+")
        || rest.starts_with(b"-web")
        || rest.starts_with(b";");
    is_grpc.then(|| value.clone())
}

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
    let mut response = grpc_response(code, denial.detail(), content_type);
    if let Some(wait) = denial.retry_after() {
        let ms = u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        response.headers_mut().insert(GRPC_PUSHBACK, HeaderValue::from(ms));
    }
    response
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
        return grpc_response(code, &detail, content_type);
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

fn grpc_response(code: u16, message: &str, content_type: HeaderValue) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    let message = utf8_percent_encode(message, &ENCODED).to_string();
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}
