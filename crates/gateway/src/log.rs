//! One line per request, when it has come to its end.

use axum::http::HeaderMap;
use sluicegate_core::Span;
use sluicegate_core::time::Timestamp;
use tracing::info;

use crate::metrics::RouteMetrics;

/// What is told of a request.
pub(crate) struct Line {
    pub(crate) event: String,
    pub(crate) gateway: String,
    pub(crate) route: String,
    pub(crate) trace_id: String,
    pub(crate) caller: String,
    pub(crate) method: String,
    /// The name of the GraphQL operation.
    pub(crate) operation: Option<String>,
    /// How many waited when it came.
    pub(crate) queue_depth: usize,
    pub(crate) waited: Span,
    /// How long the limiter took to decide, without waiting.
    pub(crate) decided: Span,
    pub(crate) allowed: bool,
    pub(crate) remaining: Option<u64>,
    /// Whether the store decided, and not a policy in its place.
    pub(crate) store_up: bool,
    pub(crate) status: u16,
    /// The word of a refusal of ours.
    pub(crate) code: Option<&'static str>,
    /// What went wrong on the way to the upstream.
    pub(crate) cause: Option<String>,
    pub(crate) began: Timestamp,
    pub(crate) metrics: Option<RouteMetrics>,
}

impl Line {
    /// Writes it down, and counts it.
    pub(crate) fn write(&self, now: Timestamp) {
        let took = now.since(self.began);
        info!(
            event = self.event,
            gateway = self.gateway,
            route = self.route,
            trace_id = self.trace_id,
            caller = self.caller,
            method = self.method,
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
        if let Some(metrics) = &self.metrics {
            metrics.ended(self.status, took);
        }
    }
}

fn millis(span: Span) -> f64 {
    span.as_micros() as f64 / 1_000.0
}

/// The id by which others know the request: of its `traceparent`, or its `x-request-id`.
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let traced = text("traceparent").and_then(|value| {
        let id = value.split('-').nth(1)?;
        let hex = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        hex.then(|| id.to_owned())
    });
    let plain =
        |id: &&str| (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    traced.or_else(|| text("x-request-id").filter(plain).map(str::to_owned))
}

/// The name of the operation in a GraphQL request, if it has one.
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
            assert_eq!(trace_id(&headers).as_deref(), expected, "{name}: {value}");
        }
    }
}
