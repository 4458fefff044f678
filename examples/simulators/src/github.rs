//! A simulated GitHub with one organisation: it reports the remaining calls of its window, and
//! answers 403 when none are left.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::Record;
use crate::clock::since_epoch;

/// Options of the simulated GitHub.
#[derive(Clone, Debug)]
pub struct GitHub {
    /// Number of repositories of the organisation.
    pub repositories: usize,
    /// Maximum number of calls in a window. The count starts again at zero with each window.
    pub limit: u64,
    /// Length of the window.
    pub window: Duration,
    /// Latency of a response.
    pub latency: Duration,
}

struct Running {
    github: GitHub,
    record: Arc<Record>,
    /// Start of the window, and number of calls in it.
    used: Mutex<(Duration, u64)>,
}

impl GitHub {
    /// Returns the router of `GET /orgs/{org}/repos`, `GET /repos/{org}/{repo}` and `GET /report`.
    pub fn router(self) -> (Router, Arc<Record>) {
        let record = Arc::new(Record::new());
        let running =
            Arc::new(Running { github: self, record: record.clone(), used: Mutex::default() });
        let router = Router::new()
            .route("/orgs/{org}/repos", get(repositories))
            .route("/repos/{org}/{repo}", get(repository))
            .route("/report", get(report))
            .with_state(running);
        (router, record)
    }
}

async fn repositories(State(running): State<Arc<Running>>, Path(org): Path<String>) -> Response {
    let repository = |number: usize| {
        let name = format!("repo-{number:04}");
        json!({"name": name, "full_name": format!("{org}/{name}")})
    };
    let all: Vec<_> = (0..running.github.repositories).map(repository).collect();
    running.answer(&org, Value::Array(all)).await
}

async fn repository(
    State(running): State<Arc<Running>>,
    Path((org, repo)): Path<(String, String)>,
) -> Response {
    let name = format!("{org}/{repo}");
    let body = json!({"full_name": name, "language": "Rust", "stargazers_count": repo.len()});
    running.answer(&name, body).await
}

async fn report(State(running): State<Arc<Running>>) -> Response {
    Json(running.record.report(running.github.window).json()).into_response()
}

impl Running {
    async fn answer(&self, what: &str, body: Value) -> Response {
        let now = self.record.now();
        let (remaining, reset) = self.take(now);
        let status = if remaining.is_none() { StatusCode::FORBIDDEN } else { StatusCode::OK };
        self.record.add(now, what, status.as_u16());
        tokio::time::sleep(self.github.latency).await;
        let reset = since_epoch() + reset;
        let mut headers = HeaderMap::new();
        let fields = [
            ("x-ratelimit-limit", self.github.limit),
            ("x-ratelimit-remaining", remaining.unwrap_or_default()),
            ("x-ratelimit-used", self.github.limit - remaining.unwrap_or_default()),
            ("x-ratelimit-reset", reset.as_secs() + 1),
        ];
        for (name, value) in fields {
            headers.insert(name, HeaderValue::from(value));
        }
        headers.insert("x-ratelimit-resource", HeaderValue::from_static("core"));
        let body = match remaining {
            Some(_) => body,
            None => json!({"message": "API rate limit exceeded"}),
        };
        (status, headers, Json(body)).into_response()
    }

    /// Counts a call. Returns the remaining calls, or `None` above the limit, and the end of the window.
    fn take(&self, now: Duration) -> (Option<u64>, Duration) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= used.0 + self.github.window {
            *used = (now, 0);
        }
        let reset = used.0 + self.github.window - now;
        if used.1 >= self.github.limit {
            return (None, reset);
        }
        used.1 += 1;
        (Some(self.github.limit - used.1), reset)
    }
}
