//! `GET /v1/jobs/{id}` of the admin listener: returns the last known state of a job, for
//! `sluicegate jobs why`.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use sluicegate_dispatch::{JobStatus, JobTracker};

/// Returns the router of `GET /v1/jobs/{id}`.
pub(crate) fn router(tracker: JobTracker) -> Router {
    Router::new().route("/v1/jobs/{id}", get(find)).with_state(tracker)
}

async fn find(State(tracker): State<JobTracker>, Path(id): Path<String>) -> Response {
    match tracker.find(&id) {
        Some(seen) => Json(status_json(&id, &seen)).into_response(),
        None => {
            let detail = "job not found: this process has not seen it, or it was too long ago";
            let body = json!({"title": "not found", "status": 404, "detail": detail});
            (StatusCode::NOT_FOUND, Json(body)).into_response()
        }
    }
}

fn status_json(id: &str, seen: &JobStatus) -> serde_json::Value {
    json!({
        "job": id,
        "event": seen.event.name(),
        "at": seen.at.to_string(),
        "queue": seen.queue,
        "provider": seen.provider,
        "until": seen.until.map(|until| until.to_string()),
        "error": seen.error,
        "attempt": seen.attempt,
        "deferrals": seen.deferrals,
    })
}

#[cfg(test)]
mod tests {
    use sluicegate_server::auth::{AuthScope, ENDPOINTS, Endpoint};

    #[test]
    fn the_route_has_a_scope() {
        let routes = format!("{:?}", super::router(super::JobTracker::default()));
        let of_jobs = Endpoint::of("GET", "/v1/jobs/j1").expect("an endpoint");
        assert_eq!(of_jobs.scope, AuthScope::Queue);
        let routes = routes.split("fallback_router").next().unwrap_or_default();
        let paths: Vec<_> = routes.split('"').filter(|text| text.starts_with('/')).collect();
        assert!(!paths.is_empty(), "{routes}");
        for path in paths {
            assert!(ENDPOINTS.iter().any(|endpoint| endpoint.path == path), "{path} has no scope");
        }
    }
}
