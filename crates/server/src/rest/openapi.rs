//! The description of the API, and a page that shows it. Both are compiled in.
//!
//! The document is written by hand and tested against the running service: a generator would
//! describe the types that the code has, and what callers need is what the service accepts.

use axum::Router;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use axum::routing::get;

const DOCUMENT: &str = include_str!("openapi.json");
const PAGE: &str = include_str!("docs.html");

pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

/// `/docs`, with nothing that is fetched from elsewhere.
pub(super) fn pages<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
    let page = move || async move { ([(header::CONTENT_SECURITY_POLICY, policy)], Html(PAGE)) };
    Router::new().route("/docs", get(page))
}
