//! Traces of the protocol servers: each request is a span, with the context that its client sent.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use sluicegate_service::Service;
use sluicegate_service::trace::{SpanKind, TraceContext, Tracer};

/// Prefixes of paths that end with a text of the client, and the placeholder that replaces this
/// text in the name of a span.
const PARAMETERS: [(&str, &str); 5] = [
    ("/v1/queues/", "{queue}"),
    ("/v1/users/", "{id}"),
    ("/v1/tenants/", "{id}"),
    ("/v1/models/", "{id}"),
    ("/v1/overrides/", "{id}"),
];

/// Adds spans to the requests of a router; returns it unchanged if the tracer is off.
pub fn router(router: Router, service: &Arc<Service>) -> Router {
    match service.tracer().is_on() {
        true => router.layer(from_fn_with_state(service.tracer().clone(), trace)),
        false => router,
    }
}

async fn trace(State(tracer): State<Tracer>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let span = tracer.root("request", SpanKind::Server, || {
        TraceContext::of_fields(|name| headers.get_all(name).iter().map(HeaderValue::as_bytes))
    });
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let response = span.run(next.run(request)).await;
    let status = response.status();
    span.set("http.response.status_code", || status.as_u16());
    let grpc = response.headers().get("grpc-status").and_then(|code| code.to_str().ok());
    if let Some(code) = grpc {
        span.set("rpc.grpc.status_code", || code.to_owned());
    }
    if status.is_server_error() {
        span.fail(|| status.to_string());
    }
    // The path of an unknown route is a text of the client, so it does not become the name of the
    // span. 12 is the gRPC status of an unknown method.
    if status != StatusCode::NOT_FOUND && grpc != Some("12") {
        drop(span.renamed(|| name(&method, &uri, is_grpc)));
    }
    response
}

/// Returns the name of a request to a known route.
fn name(method: &Method, uri: &Uri, is_grpc: bool) -> String {
    let path = uri.path();
    if is_grpc {
        return path.trim_start_matches('/').to_owned();
    }
    let parameter = PARAMETERS.iter().find(|(before, _)| path.starts_with(before));
    let Some((before, parameter)) = parameter else { return format!("{method} {path}") };
    match path[before.len()..].split_once('/') {
        None => format!("{method} {before}{parameter}"),
        Some((_, after)) => format!("{method} {before}{parameter}/{after}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_contains_no_text_of_a_client() {
        for (path, is_grpc, expected) in [
            ("/v1/acquire?a=b", false, "POST /v1/acquire"),
            ("/v1/queues/jobs", false, "POST /v1/queues/{queue}"),
            ("/v1/users/ann/usage", false, "POST /v1/users/{id}/usage"),
            ("/v1/queues/jobs/send", false, "POST /v1/queues/{queue}/send"),
            (
                "/sluicegate.v1.RateLimiterService/Book",
                true,
                "sluicegate.v1.RateLimiterService/Book",
            ),
        ] {
            assert_eq!(name(&Method::POST, &path.parse().unwrap(), is_grpc), expected);
        }
    }
}
