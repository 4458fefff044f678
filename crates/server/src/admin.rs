//! The admin endpoints: metrics, and reloading the configuration.

use std::pin::Pin;
use std::sync::Arc;

use axum::extract::Query as Parameters;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;

use crate::auth::Caller;
use crate::rest::{Problem, only, reason};

/// The operations of the process behind the admin endpoints.
pub trait AdminOperations: Send + Sync {
    /// Returns all metrics in the text format of Prometheus.
    fn metrics(&self) -> String;

    /// Reloads the configuration for a caller, who may give a reason. Returns the changes, or the errors
    /// in it.
    fn reload<'a>(&'a self, by: &'a str, reason: &'a str) -> ReloadFuture<'a>;
}

/// The query parameters of `/reload`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReloadRequest {
    /// Reason for the audit log.
    #[serde(default)]
    reason: String,
}

/// The outcome of a reload: the changes, one per line, or the errors.
pub type ReloadFuture<'a> = Pin<Box<dyn Future<Output = Result<String, String>> + Send + 'a>>;

/// Returns the routes of the admin listener.
pub fn router(operations: Arc<dyn AdminOperations>) -> Router {
    let metrics = {
        let operations = operations.clone();
        move || async move {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], operations.metrics()).into_response()
        }
    };
    let reload =
        async move |Extension(caller): Extension<Caller>,
                    headers: HeaderMap,
                    parameters: Result<Parameters<ReloadRequest>, QueryRejection>| {
            let Parameters(ReloadRequest { reason }) =
                parameters.map_err(|error| Problem::bad_request(error.body_text()))?;
            let reason = reason::of_action(&headers, &reason)?;
            Ok::<_, Problem>(reloaded(operations.reload(caller.name(), &reason).await))
        };
    Router::new().route("/metrics", only(get(metrics))).route("/reload", only(post(reload)))
}

/// Answers a request for a path that the admin listener does not have.
pub async fn unknown_path() -> Problem {
    let detail = "unknown path: the dashboard is at /, metrics are at /metrics";
    Problem::new(StatusCode::NOT_FOUND, detail)
}

fn reloaded(outcome: Result<String, String>) -> Response {
    match outcome {
        Ok(changes) => {
            let body = serde_json::json!({ "reloaded": true, "changes": changes.lines().collect::<Vec<_>>() });
            (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body.to_string())
                .into_response()
        }
        Err(errors) => Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("the configuration is rejected and the old one stays in force:\n{errors}"),
        )
        .into_response(),
    }
}
