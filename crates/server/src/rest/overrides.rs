//! `/v1/overrides`: lists, sets and removes overrides.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRef, Path, Query as Parameters, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{delete, get};
use axum::{Extension, Router};

use super::decode::{self, BodyLimit, JsonBody};
use super::{HandlerResult, Problem, json, only, reason};
use crate::auth::Caller;
use crate::overrides::Overrides;

/// Returns the routes.
pub fn router(overrides: Arc<Overrides>, body_limit: usize) -> Router {
    Router::new()
        .route("/v1/overrides", only(get(list).post(set)))
        .route("/v1/overrides/{id}", only(delete(remove)))
        .with_state(OverridesState { overrides, body_limit })
}

#[derive(Clone)]
struct OverridesState {
    overrides: Arc<Overrides>,
    body_limit: usize,
}

impl FromRef<OverridesState> for Arc<Overrides> {
    fn from_ref(state: &OverridesState) -> Self {
        state.overrides.clone()
    }
}

impl BodyLimit for OverridesState {
    fn body_limit(&self) -> usize {
        self.body_limit
    }
}

type Shared = State<Arc<Overrides>>;

async fn list(State(overrides): Shared) -> HandlerResult {
    let shown = overrides.list().await;
    Ok(json(serde_json::json!({ "overrides": shown }).to_string()))
}

async fn set(
    State(overrides): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    let set = overrides.set(decode::shaped(&body)?, caller.name()).await?;
    let mut response = json(serde_json::to_vec(&set).unwrap_or_default());
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// The query parameters of a removal.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Removal {
    /// Reason for the audit log.
    #[serde(default)]
    reason: String,
}

async fn remove(
    State(overrides): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    id: Result<Path<String>, axum::extract::rejection::PathRejection>,
    parameters: Result<Parameters<Removal>, QueryRejection>,
) -> HandlerResult {
    let Parameters(Removal { reason }) =
        parameters.map_err(|error| Problem::bad_request(error.body_text()))?;
    let Ok(Path(id)) = id else {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            "unknown override id: `sluicegate override list` shows all",
        ));
    };
    let reason = reason::of_action(&headers, &reason)?;
    overrides.remove(&id, caller.name(), &reason).await?;
    Ok(json(serde_json::json!({ "removed": id }).to_string()))
}
