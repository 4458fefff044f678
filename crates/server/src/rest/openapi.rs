//! The OpenAPI document, and a page that renders it. Both are compiled in.
//!
//! The document is written by hand and tested against the running service: a generator would
//! describe the types of the code, but callers need what the service accepts.

use axum::Router;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use axum::routing::get;

const DOCUMENT: &str = include_str!("openapi.json");
const PAGE: &str = include_str!("docs.html");

pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

/// Returns the route of `/docs`, a page that loads nothing from other servers.
pub(super) fn pages<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
    let page = move || async move { ([(header::CONTENT_SECURITY_POLICY, policy)], Html(PAGE)) };
    Router::new().route("/docs", get(page))
}
