//! `/v1/overrides`: other limits for some, for a while.

use std::sync::Arc;

use axum::extract::{FromRef, Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Extension, Router};
use sluicegate_core::store::Store;
use sluicegate_core::time::Clock;

use super::decode::{self, BodyLimit, JsonBody};
use super::{Answered, Problem, json, only};
use crate::auth::Caller;
use crate::overrides::Overrides;

/// Its routes, for whichever listeners are to have them.
pub fn router<S, C>(overrides: Arc<Overrides<S, C>>, body_limit: usize) -> Router
where
    S: Store + 'static,
    C: Clock + 'static,
{
    Router::new()
        .route("/v1/overrides", only(get(list::<S, C>).post(set::<S, C>)))
        .route("/v1/overrides/{id}", only(delete(remove::<S, C>)))
        .with_state(Door { overrides, body_limit })
}

struct Door<S, C> {
    overrides: Arc<Overrides<S, C>>,
    body_limit: usize,
}

impl<S, C> Clone for Door<S, C> {
    fn clone(&self) -> Self {
        Self { overrides: self.overrides.clone(), body_limit: self.body_limit }
    }
}

impl<S, C> FromRef<Door<S, C>> for Arc<Overrides<S, C>> {
    fn from_ref(door: &Door<S, C>) -> Self {
        door.overrides.clone()
    }
}

impl<S, C> BodyLimit for Door<S, C> {
    fn body_limit(&self) -> usize {
        self.body_limit
    }
}

type Shared<S, C> = State<Arc<Overrides<S, C>>>;

async fn list<S: Store, C: Clock>(State(overrides): Shared<S, C>) -> Answered {
    let shown = overrides.list().await;
    Ok(json(serde_json::json!({ "overrides": shown }).to_string().into_bytes()))
}

async fn set<S: Store, C: Clock>(
    State(overrides): Shared<S, C>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> Answered {
    let set = overrides.set(decode::shaped(&body)?, caller.name()).await?;
    let mut response = json(serde_json::to_vec(&set).unwrap_or_default());
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

async fn remove<S: Store, C: Clock>(
    State(overrides): Shared<S, C>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Answered {
    let Ok(Path(id)) = id else {
        return Err(Problem::new(StatusCode::NOT_FOUND, "there is no override of this id"));
    };
    overrides.remove(&id, caller.name()).await?;
    Ok(json(serde_json::json!({ "removed": id }).to_string().into_bytes()))
}
