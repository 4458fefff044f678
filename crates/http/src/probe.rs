//! The health endpoints `/health` and `/ready` of every listener.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Ability of the process to make decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Everything works.
    Ready,
    /// A component has failed, but an outage policy can still decide.
    Degraded(&'static str),
    /// A component that every decision needs has failed.
    Unhealthy(&'static str),
}

/// Function that returns the readiness; called for each request.
pub type Probe = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// Returns the routes of the health endpoints.
pub fn router(ready: Probe) -> Router {
    let health = || async { respond(StatusCode::OK, "healthy", None) };
    let ready = move || async move {
        match ready() {
            Readiness::Ready => respond(StatusCode::OK, "ready", None),
            Readiness::Degraded(reason) => respond(StatusCode::OK, "degraded", Some(reason)),
            Readiness::Unhealthy(reason) => {
                respond(StatusCode::SERVICE_UNAVAILABLE, "unhealthy", Some(reason))
            }
        }
    };
    Router::new().route("/health", get(health)).route("/ready", get(ready))
}

fn respond(status: StatusCode, word: &str, reason: Option<&str>) -> Response {
    let body = match reason {
        None => format!("{{\"status\":\"{word}\"}}"),
        Some(reason) => format!("{{\"status\":\"{word}\",\"reason\":\"{reason}\"}}"),
    };
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
