//! `/v1/reservations` of the admin listener: lists reservations that nobody settled, and settles or
//! cancels them.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Router};

use super::decode::{self, BodyLimit, JsonBody};
use super::{HandlerResult, Problem, json, only};
use crate::auth::Caller;
use crate::reservations::Reservations;

/// Returns the routes.
pub fn router(reservations: Arc<Reservations>, body_limit: usize) -> Router {
    Router::new()
        .route("/v1/reservations", only(get(list)))
        .route("/v1/reservations/{id}/settle", only(post(settle)))
        .route("/v1/reservations/{id}/cancel", only(post(cancel)))
        .with_state(ReservationsState { reservations, body_limit })
}

#[derive(Clone)]
struct ReservationsState {
    reservations: Arc<Reservations>,
    body_limit: usize,
}

impl FromRef<ReservationsState> for Arc<Reservations> {
    fn from_ref(state: &ReservationsState) -> Self {
        state.reservations.clone()
    }
}

impl BodyLimit for ReservationsState {
    fn body_limit(&self) -> usize {
        self.body_limit
    }
}

type Shared = State<Arc<Reservations>>;
type ReservationId = Result<Path<String>, PathRejection>;

async fn list(State(reservations): Shared) -> HandlerResult {
    Ok(json(reservations.list().await?.to_string()))
}

async fn settle(
    State(reservations): Shared,
    Extension(caller): Extension<Caller>,
    id: ReservationId,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    let id = read(id)?;
    let settled = reservations.settle(&id, decode::shaped(&body)?, caller.name()).await?;
    Ok(json(settled.to_string()))
}

async fn cancel(
    State(reservations): Shared,
    Extension(caller): Extension<Caller>,
    id: ReservationId,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    let (id, body) = (read(id)?, decode::shaped(&body)?);
    let cancelled = reservations.cancel(&id, &body, caller.name()).await?;
    Ok(json(cancelled.to_string()))
}

fn read(id: ReservationId) -> Result<String, Problem> {
    match id {
        Ok(Path(id)) => Ok(id),
        Err(_) => Err(Problem::new(StatusCode::NOT_FOUND, "unknown reservation id")),
    }
}
