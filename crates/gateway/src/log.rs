//! The request log: one line per request, written when the request ends.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use sluicegate_core::Span;
use sluicegate_core::time::Timestamp;
use sluicegate_http::tokens::Caller;
use sluicegate_service::Service;
use sluicegate_service::trace::TraceSpan;
use tracing::info;

use crate::metrics::RouteMetrics;
use crate::refusal::Refusal;

/// Header field that contains the id of a request.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Fields that are the same in all log lines of a gateway.
pub(crate) struct LogContext {
    /// Value of the `event` field.
    pub(crate) event: String,
    pub(crate) gateway: String,
}

/// The log line of one request.
#[derive(Clone)]
pub(crate) struct LogLine {
    pub(crate) context: Arc<LogContext>,
    /// Matched route.
    pub(crate) route: Option<RouteMetrics>,
    pub(crate) trace_id: HeaderValue,
    /// Span of the request. It ends with the line: with the last copy of it.
    pub(crate) span: TraceSpan,
    pub(crate) caller: Option<Caller>,
    pub(crate) method: Method,
    /// Name of the GraphQL operation.
    pub(crate) operation: Option<String>,
    /// Number of waiting requests when this one arrived.
    pub(crate) queue_depth: usize,
    pub(crate) waited: Span,
    /// Time the limiter took to decide, without queueing.
    pub(crate) decided: Span,
    pub(crate) allowed: bool,
    pub(crate) remaining: Option<u64>,
    /// True if the store decided, false if an outage policy did.
    pub(crate) store_up: bool,
    pub(crate) status: u16,
    /// Error code, if the gateway rejected the request, or if the response broke off.
    pub(crate) code: Option<&'static str>,
    /// Error on the way to the upstream.
    pub(crate) cause: Option<String>,
    pub(crate) began: Timestamp,
}

impl LogLine {
    /// Creates the line of a request that just arrived.
    pub(crate) fn new(
        context: Arc<LogContext>,
        (trace_id, span): (HeaderValue, TraceSpan),
        method: Method,
        began: Timestamp,
    ) -> Self {
        Self {
            context,
            route: None,
            trace_id,
            span,
            caller: None,
            method,
            operation: None,
            queue_depth: 0,
            waited: Span::ZERO,
            decided: Span::ZERO,
            allowed: false,
            remaining: None,
            store_up: true,
            status: 0,
            code: None,
            cause: None,
            began,
        }
    }

    /// Writes the line to the log and counts the request in the metrics.
    pub(crate) fn write(&self, now: Timestamp) {
        let took = now.since(self.began);
        info!(
            event = self.context.event,
            gateway = self.context.gateway,
            route = self.route.as_ref().map_or("", RouteMetrics::name),
            trace_id = self.trace_id.to_str().unwrap_or_default(),
            caller = self.caller.as_ref().map_or("", Caller::name),
            method = self.method.as_str(),
            operation = self.operation,
            queue_depth = self.queue_depth,
            waited_ms = millis(self.waited),
            decision_ms = millis(self.decided),
            duration_ms = millis(took),
            status = self.status,
            code = self.code,
            cause = self.cause,
            allowed = self.allowed,
            remaining = self.remaining,
            store = if self.store_up { "up" } else { "down" },
            "request"
        );
        if let Some(route) = &self.route {
            route.ended(self.status, took);
        }
        self.describe();
    }

    /// Sets the attributes of the span.
    fn describe(&self) {
        let Self { span, context, .. } = self;
        span.set("sluicegate.gateway", || context.gateway.clone());
        if let Some(route) = &self.route {
            span.set("http.route", || route.name().to_owned());
        }
        span.set("http.request.method", || self.method.as_str().to_owned());
        span.set("http.response.status_code", || self.status);
        if let Some(code) = self.code {
            span.set("error.type", || code);
        }
        // A refusal such as 429 is an answer, not a failure of the gateway.
        if self.status >= 500 || self.cause.is_some() {
            let cause = self.cause.as_deref().or(self.code).unwrap_or("the upstream failed");
            span.fail(|| cause.to_owned());
        }
    }
}

/// The log line of a request that has no response yet. If it is dropped, its caller disconnected
/// before the response, and it is logged with the status 499.
pub(crate) struct PendingLine {
    line: LogLine,
    service: Arc<Service>,
    done: bool,
}

impl PendingLine {
    pub(crate) fn new(line: LogLine, service: Arc<Service>) -> Self {
        Self { line, service, done: false }
    }

    /// Writes the line of a request that was rejected.
    pub(crate) fn reject(mut self, refusal: &Refusal) {
        self.write(refusal);
    }

    /// Discards the line without writing it: the end of the response writes a copy.
    pub(crate) fn discard(mut self) {
        self.done = true;
    }

    fn write(&mut self, refusal: &Refusal) {
        self.done = true;
        let (status, code) = refusal.code();
        (self.line.status, self.line.code) = (status.as_u16(), Some(code));
        self.line.store_up &= *refusal != Refusal::StoreUnavailable;
        self.line.write(self.service.now());
    }
}

impl Deref for PendingLine {
    type Target = LogLine;

    fn deref(&self) -> &LogLine {
        &self.line
    }
}

impl DerefMut for PendingLine {
    fn deref_mut(&mut self) -> &mut LogLine {
        &mut self.line
    }
}

impl Drop for PendingLine {
    fn drop(&mut self) {
        if !self.done {
            self.write(&Refusal::ClientClosed);
        }
    }
}

fn millis(span: Span) -> f64 {
    span.as_micros() as f64 / 1_000.0
}

/// Returns the request id that the caller sent, in `traceparent` or in `x-request-id`.
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let traced = headers.get("traceparent").and_then(|value| {
        let id = value.to_str().ok()?.split('-').nth(1)?;
        let hex = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        HeaderValue::from_str(id).ok().filter(|_| hex)
    });
    let plain = |id: &&HeaderValue| {
        (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    traced.or_else(|| headers.get(REQUEST_ID).filter(plain).cloned())
}

/// Returns the name of the operation in a GraphQL request, if it has one.
pub(crate) fn operation(body: &[u8]) -> Option<String> {
    let request: serde_json::Value = serde_json::from_slice(body).ok()?;
    let given = request.get("operationName").and_then(serde_json::Value::as_str);
    let named = given.filter(|name| !name.is_empty()).or_else(|| {
        let query = request.get("query")?.as_str()?.trim_start();
        let words = ["query", "mutation", "subscription"];
        let rest = words.iter().find_map(|word| query.strip_prefix(word))?;
        let name = rest.strip_prefix(char::is_whitespace)?.trim_start();
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        Some(&name[..end]).filter(|name| !name.is_empty())
    });
    named.map(|name| name.chars().take(128).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graphql_operation_is_named() {
        for (body, expected) in [
            (r#"{"operationName":"Diamonds","query":"query X { a }"}"#, Some("Diamonds")),
            (r#"{"query":"query Diamonds($a: Int) { a }"}"#, Some("Diamonds")),
            (r#"{"query":"\n mutation  Hold{ a }"}"#, Some("Hold")),
            (r#"{"query":"{ a }"}"#, None),
            (r#"{"query":"query { a }"}"#, None),
            (r#"{"operationName":null,"query":"queryX { a }"}"#, None),
            (r#"{"query":7}"#, None),
            ("[]", None),
            ("{", None),
        ] {
            assert_eq!(operation(body.as_bytes()).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn a_request_keeps_the_id_that_it_came_with() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (name, value, expected) in [
            ("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"), Some(trace)),
            ("traceparent", "00-xyz-1-01".to_owned(), None),
            ("x-request-id", "job-7".to_owned(), Some("job-7")),
            ("x-request-id", "a b".to_owned(), None),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            let id = trace_id(&headers);
            assert_eq!(id.as_ref().map(|id| id.to_str().unwrap()), expected, "{name}: {value}");
        }
    }
}
