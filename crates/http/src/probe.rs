//! `/health` and `/ready`, on every listener.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Whether decisions can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// All is well.
    Ready,
    /// Something is missing, and some policy can still answer.
    Degraded(&'static str),
    /// Something is missing without which every answer would be no.
    Unhealthy(&'static str),
}

/// Whoever knows whether decisions can be made, asked each time.
pub type Probe = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// The probes.
pub fn router(ready: Probe) -> Router {
    let health = || async { told(StatusCode::OK, "healthy", None) };
    let ready = move || async move {
        match ready() {
            Readiness::Ready => told(StatusCode::OK, "ready", None),
            Readiness::Degraded(reason) => told(StatusCode::OK, "degraded", Some(reason)),
            Readiness::Unhealthy(reason) => {
                told(StatusCode::SERVICE_UNAVAILABLE, "unhealthy", Some(reason))
            }
        }
    };
    Router::new().route("/health", get(health)).route("/ready", get(ready))
}

fn told(status: StatusCode, word: &str, reason: Option<&str>) -> Response {
    let body = match reason {
        None => format!("{{\"status\":\"{word}\"}}"),
        Some(reason) => format!("{{\"status\":\"{word}\",\"reason\":\"{reason}\"}}"),
    };
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
