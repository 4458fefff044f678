//! `GET /v1/jobs/{id}`, `GET /v1/providers` and `GET /v1/queues` of the admin listener: the last known
//! state of a job, the state of the limits of all providers, and the queues of this process, for
//! `sluicegate jobs why`.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use sluicegate_core::time::Clock as _;
use sluicegate_dispatch::{JobRecord, JobTracker, PastEvent, ProviderState};
use sluicegate_queue::WallClock;

use super::DepthPoller;

/// Returns the routes.
pub(crate) fn router(tracker: JobTracker, depths: DepthPoller) -> Router {
    let router = Router::new().route("/v1/jobs/{id}", get(find));
    let router = router.route("/v1/providers", get(providers)).with_state(tracker);
    router.merge(Router::new().route("/v1/queues", get(queues)).with_state(depths))
}

/// Lists the queues of the dispatcher and the workers, and those that clients of the queue API use.
async fn queues(State(depths): State<DepthPoller>) -> Response {
    let known = depths.lock();
    let queues = known.queues.iter().map(|polled| {
        let queue = &polled.queue;
        json!({"queue": queue.name(), "deadLetterQueue": queue.dead_letter_name()})
    });
    Json(json!({ "queues": queues.collect::<Vec<_>>() })).into_response()
}

async fn providers(State(tracker): State<JobTracker>) -> Response {
    let now = WallClock.now();
    let states = tracker.provider_states().await.into_iter().map(|(provider, state)| {
        let (state, wait) = match state {
            ProviderState::Open => ("open", None),
            ProviderState::Limited(wait) => ("limited", Some(wait)),
            ProviderState::Paused(wait) => ("paused", Some(wait)),
            ProviderState::Unknown => ("unknown", None),
        };
        let until = wait.map(|wait| (now + wait).to_string());
        json!({"provider": provider, "state": state, "until": until})
    });
    Json(states.collect::<serde_json::Value>()).into_response()
}

async fn find(State(tracker): State<JobTracker>, Path(id): Path<String>) -> Response {
    match tracker.find(&id) {
        Some(record) => Json(record_json(&id, &record)).into_response(),
        None => {
            let detail = "job not found: this process has not seen it, or it was too long ago";
            let body = json!({"title": "not found", "status": 404, "detail": detail});
            (StatusCode::NOT_FOUND, Json(body)).into_response()
        }
    }
}

fn record_json(id: &str, JobRecord { status: seen, earlier }: &JobRecord) -> serde_json::Value {
    let earlier = earlier.iter().map(|PastEvent { at, event, queue, error }| {
        json!({"event": event.name(), "at": at.to_string(), "queue": queue, "error": error})
    });
    json!({
        "job": id,
        "event": seen.event.name(),
        "at": seen.at.to_string(),
        "queue": seen.queue,
        "provider": seen.provider,
        "until": seen.until.map(|until| until.to_string()),
        "error": seen.error,
        "failed_attempts": seen.attempt,
        "deferrals": seen.deferrals,
        "earlier": earlier.collect::<serde_json::Value>(),
    })
}

#[cfg(test)]
mod tests {
    use sluicegate_server::auth::{AuthScope, ENDPOINTS, Endpoint};

    #[test]
    fn the_route_has_a_scope() {
        let routes = format!(
            "{:?}",
            super::router(super::JobTracker::default(), super::DepthPoller::default())
        );
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
