//! Refusals for gRPC callers, without a gRPC library. A gRPC client ignores the HTTP status and body
//! of a response, so it gets a response that consists only of a gRPC status ("trailers-only").

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use sluicegate_core::Span;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Time after which gRPC libraries with a retry policy try again.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// Characters of a message that gRPC wants encoded: all but printable ASCII, and the percent sign.
const ENCODED: AsciiSet = CONTROLS.add(b'%');
const GRPC: &str = "application/grpc";

/// Returns the media type of a gRPC request without its parameters, or `None` if the request is not
/// gRPC. gRPC-Web counts, because it reads a status in the header like gRPC.
pub fn content_type(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(CONTENT_TYPE)?;
    let essence = value.to_str().ok()?.split(';').next()?.trim();
    let (start, rest) = essence.split_at_checked(GRPC.len())?;
    let is_grpc = start.eq_ignore_ascii_case(GRPC)
        && (rest.is_empty() || rest.starts_with('+') || rest.starts_with("-web"));
    HeaderValue::from_str(essence).ok().filter(|_| is_grpc)
}

/// Returns the header fields of a refusal, whose HTTP status is 200 and whose body is empty.
pub fn refusal(
    status: u16,
    message: &str,
    retry_after: Option<Span>,
    content_type: HeaderValue,
) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(5);
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(STATUS, HeaderValue::from(status));
    let message = utf8_percent_encode(message, &ENCODED).to_string();
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(MESSAGE, message);
    }
    if let Some(span) = retry_after {
        headers.insert(PUSHBACK, HeaderValue::from(span.as_micros().div_ceil(1_000)));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_grpc_requests_get_a_grpc_status() {
        for (sent, expected) in [
            ("application/grpc", Some("application/grpc")),
            ("application/grpc+proto", Some("application/grpc+proto")),
            ("Application/gRPC; charset=utf-8", Some("Application/gRPC")),
            ("application/grpc-web+proto", Some("application/grpc-web+proto")),
            ("application/grpcish", None),
            ("application/json", None),
            ("application/gr", None),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, sent.parse().expect(sent))]);
            let found = content_type(&headers);
            let found = found.as_ref().map(|value| value.to_str().expect("text"));
            assert_eq!(found, expected, "{sent}");
        }
        assert_eq!(content_type(&HeaderMap::new()), None);
    }

    #[test]
    fn a_refusal_has_its_status_its_encoded_message_and_the_time_to_wait() {
        let grpc = HeaderValue::from_static("application/grpc");
        let headers = refusal(8, "100 % é", Some(Span::from_micros(2_400)), grpc.clone());
        assert_eq!(headers[STATUS], "8");
        assert_eq!(headers[MESSAGE], "100 %25 %C3%A9");
        assert_eq!(headers[PUSHBACK], "3");
        assert_eq!(headers[CONTENT_TYPE], grpc);
        assert!(!refusal(14, "", None, grpc).contains_key(PUSHBACK));
    }
}
