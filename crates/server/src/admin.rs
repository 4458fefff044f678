//! The admin endpoints: metrics, and reloading the configuration.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::rest::Problem;

/// The operations of the process behind the admin endpoints.
pub trait AdminOperations: Send + Sync {
    /// Returns all metrics in the text format of Prometheus.
    fn metrics(&self) -> String;

    /// Reloads the configuration. Returns the changes, or the errors in it.
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send + '_>>;
}

/// Returns the routes of the admin listener.
pub fn router(operations: Arc<dyn AdminOperations>) -> Router {
    let metrics = {
        let operations = operations.clone();
        move || async move {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], operations.metrics()).into_response()
        }
    };
    let reload = move || async move { reloaded(operations.reload().await) };
    Router::new().route("/metrics", get(metrics)).route("/reload", post(reload))
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
            format!("the configuration is invalid and the old one stays in force:\n{errors}"),
        )
        .into_response(),
    }
}
