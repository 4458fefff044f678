//! A web API that answers questions with a model. Sluicegate limits its requests and its budget: each
//! question is admitted before the model is called, and settled with its actual cost.
//!
//! | | |
//! |---|---|
//! | `POST /ask` with `x-user-id` and `{"question": "…"}` | the answer and its metadata, or a 429 |
//! | `GET /users/{id}/usage` | usage and remaining budget of a user |

use std::time::Duration;

use anyhow::Context as _;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use sluicegate::{Cost, Decision, Limiter, Request, UnavailablePolicy};

/// Maximum number of output tokens per answer.
const ANSWER_TOKENS_MAX: u64 = 500;
/// Number of context tokens that are sent with every question.
const CONTEXT_TOKENS: u64 = 856;

/// Runs the API. `ASSISTANT_LISTEN` is its address (default 127.0.0.1:8000), `LIMITER_URL` that of
/// Sluicegate (default http://127.0.0.1:8080).
pub async fn serve() -> anyhow::Result<()> {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
    let address = variable("ASSISTANT_LISTEN", "127.0.0.1:8000");
    let router = router(&variable("LIMITER_URL", "http://127.0.0.1:8080"))?;
    let listener = tokio::net::TcpListener::bind(&address).await;
    let listener = listener.with_context(|| format!("can't listen on {address}"))?;
    axum::serve(listener, router).await.context("can't serve")
}

/// Returns the router of the API, with Sluicegate at this address.
pub fn router(limiter_url: &str) -> anyhow::Result<Router> {
    // Availability matters more than limits here: while the limiter does not answer, questions are
    // answered without limits.
    let limiter = Limiter::remote(limiter_url).on_unavailable(UnavailablePolicy::Open).build()?;
    let limits = Limits { limiter, url: limiter_url.trim_end_matches('/').to_owned() };
    Ok(Router::new()
        .route("/ask", post(ask))
        .route("/users/{id}/usage", get(usage))
        .with_state(limits))
}

/// The limiter and its address.
#[derive(Clone)]
struct Limits {
    limiter: Limiter,
    url: String,
}

#[derive(Deserialize)]
struct Question {
    question: String,
}

async fn ask(
    State(Limits { limiter, .. }): State<Limits>,
    headers: HeaderMap,
    Json(Question { question }): Json<Question>,
) -> Response<Body> {
    let Some(user) = headers.get("x-user-id").and_then(|user| user.to_str().ok()) else {
        let detail = json!({ "detail": "x-user-id: is required" });
        return (StatusCode::UNAUTHORIZED, Json(detail)).into_response();
    };
    let user = user.to_owned();
    // In a task of its own, so that the question is settled even if the client disconnects.
    let answered = tokio::spawn(async move { answer(&limiter, &user, &question).await });
    match answered.await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            let detail = json!({ "detail": error.to_string() });
            (StatusCode::BAD_REQUEST, Json(detail)).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn answer(
    limiter: &Limiter,
    user: &str,
    question: &str,
) -> Result<Response<Body>, sluicegate::Error> {
    let query_tokens = question.split_whitespace().count() as u64;
    let estimate = Cost::new()
        .input_tokens(query_tokens + CONTEXT_TOKENS)
        .output_tokens_max(ANSWER_TOKENS_MAX);
    let request = Request::from([("userId", user), ("modelId", "assistant")])
        .reserve(estimate)
        .hold(Duration::from_secs(60));
    let decision = limiter.acquire(request).await?;
    let fields = limit_fields(&decision);
    let mut response = match decision {
        Decision::Denied(denial) => {
            let status = StatusCode::from_u16(denial.status()).unwrap_or_default();
            let json = HeaderValue::from_static("application/json");
            (status, [(header::CONTENT_TYPE, json)], denial.body()).into_response()
        }
        Decision::Allowed(admission) => {
            let (answer, output_tokens) = model(question);
            let actual = Cost::new()
                .query_tokens(query_tokens)
                .context_tokens(CONTEXT_TOKENS)
                .output_tokens(output_tokens);
            let settled = admission.settle(actual).await?;
            Json(json!({ "answer": answer, "metadata": settled.metadata() })).into_response()
        }
    };
    response.headers_mut().extend(fields);
    Ok(response)
}

/// Returns the rate-limit header fields of a decision.
fn limit_fields(decision: &Decision) -> HeaderMap {
    let fields = decision.headers().iter();
    fields
        .filter_map(|(name, value)| {
            Some((HeaderName::from_static(name), HeaderValue::from_str(value).ok()?))
        })
        .collect()
}

/// Placeholder for a call of a real model.
fn model(question: &str) -> (String, u64) {
    (format!("You asked: {question}"), 145)
}

async fn usage(State(limits): State<Limits>, Path(user): Path<String>) -> Response<Body> {
    let told = tokio::task::spawn_blocking(move || {
        let mut told = ureq::get(format!("{}/v1/users/{user}/usage", limits.url)).call()?;
        told.body_mut().read_to_string()
    });
    match told.await {
        Ok(Ok(text)) => {
            let json = HeaderValue::from_static("application/json");
            ([(header::CONTENT_TYPE, json)], text).into_response()
        }
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
