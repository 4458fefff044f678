//! A web API that answers questions with a model. Sluicegate limits its requests and its budget: each
//! question is admitted before the model is called, and settled with its actual cost.
//!
//! | | |
//! |---|---|
//! | `POST /ask` with `x-user-id` and `{"question": "…"}` | the answer and its metadata, or a 429 |
//! | `GET /users/{id}/usage` | usage and remaining budget of a user |

mod limits;

use anyhow::Context as _;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;

use limits::{Limits, Usage};

/// Maximum number of output tokens per answer.
const ANSWER_TOKENS_MAX: usize = 500;
/// Number of context tokens that are sent with every question.
const CONTEXT_TOKENS: usize = 856;

/// Runs the API. `ASSISTANT_LISTEN` is its address (default 127.0.0.1:8000), `LIMITER_URL` that of
/// Sluicegate (default http://127.0.0.1:8080).
pub async fn serve() -> anyhow::Result<()> {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
    let address = variable("ASSISTANT_LISTEN", "127.0.0.1:8000");
    let limiter = variable("LIMITER_URL", "http://127.0.0.1:8080");
    let listener = tokio::net::TcpListener::bind(&address).await;
    let listener = listener.with_context(|| format!("can't listen on {address}"))?;
    axum::serve(listener, router(&limiter)).await.context("can't serve")
}

/// Returns the router of the API, with Sluicegate at this address.
pub fn router(limiter: &str) -> Router {
    Router::new()
        .route("/ask", post(ask))
        .route("/users/{id}/usage", get(usage))
        .with_state(Limits::new(limiter))
}

#[derive(Deserialize)]
struct Question {
    question: String,
}

async fn ask(
    State(limits): State<Limits>,
    headers: HeaderMap,
    Json(Question { question }): Json<Question>,
) -> Response<Body> {
    let Some(user) = headers.get("x-user-id").and_then(|user| user.to_str().ok()) else {
        let detail = json!({ "detail": "x-user-id: is required" });
        return (StatusCode::UNAUTHORIZED, Json(detail)).into_response();
    };
    let user = user.to_owned();
    // In a task of its own, so that the question is settled even if the client disconnects.
    let answered = tokio::task::spawn_blocking(move || answer(&limits, &user, &question)).await;
    answered.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

fn answer(limits: &Limits, user: &str, question: &str) -> Response<Body> {
    let query_tokens = question.split_whitespace().count();
    let admitted = limits.acquire(user, query_tokens + CONTEXT_TOKENS, ANSWER_TOKENS_MAX);
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => return *refusal,
    };
    let (answer, output_tokens) = model(question);
    let usage = Usage { query_tokens, context_tokens: CONTEXT_TOKENS, output_tokens };
    let metadata = limits.settle(&admitted, usage);
    Json(json!({ "answer": answer, "metadata": metadata })).into_response()
}

/// Placeholder for a call of a real model.
fn model(question: &str) -> (String, usize) {
    (format!("You asked: {question}"), 145)
}

async fn usage(State(limits): State<Limits>, Path(user): Path<String>) -> Response<Body> {
    let told = tokio::task::spawn_blocking(move || limits.usage(&user)).await;
    match told {
        Ok(Ok(text)) => {
            let json = HeaderValue::from_static("application/json");
            ([(header::CONTENT_TYPE, json)], text).into_response()
        }
        Ok(Err(refusal)) => *refusal,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
