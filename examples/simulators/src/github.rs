//! A simulated GitHub with one organisation. Like GitHub, it returns repositories in pages with a
//! `Link` header, reports the remaining calls of its window, answers 403 when none are left, and 304
//! to a conditional request, which is not counted.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
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

/// Default and maximum number of repositories in a page, as at GitHub.
const PER_PAGE: usize = 30;
const PER_PAGE_MAX: usize = 100;

async fn repositories(
    State(running): State<Arc<Running>>,
    Path(org): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let repository = |number: usize| {
        let name = format!("repo-{number:04}");
        json!({"name": name, "full_name": format!("{org}/{name}")})
    };
    let count = running.github.repositories;
    let number = |name: &str| query.get(name).and_then(|text| text.parse::<usize>().ok());
    let per_page = number("per_page").unwrap_or(PER_PAGE).clamp(1, PER_PAGE_MAX);
    let page = number("page").unwrap_or(1).max(1);
    let last = count.div_ceil(per_page).max(1);
    let start = (page - 1).saturating_mul(per_page).min(count);
    let part: Vec<_> = (start..(start + per_page).min(count)).map(repository).collect();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let link = |relation: &str, page: usize| {
        // GitHub names the organisation by its number in these addresses.
        format!(
            "<http://{host}/organizations/1/repos?per_page={per_page}&page={page}>; rel=\"{relation}\""
        )
    };
    let mut links = Vec::new();
    if page > 1 {
        links.extend([link("prev", page - 1), link("first", 1)]);
    }
    if page < last {
        links.extend([link("next", page + 1), link("last", last)]);
    }
    let mut response = running.answer(&org, Value::Array(part), &headers).await;
    if !links.is_empty()
        && let Ok(value) = HeaderValue::from_str(&links.join(", "))
    {
        response.headers_mut().insert(header::LINK, value);
    }
    response
}

async fn repository(
    State(running): State<Arc<Running>>,
    Path((org, repo)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let name = format!("{org}/{repo}");
    let body = json!({"full_name": name, "language": "Rust", "stargazers_count": repo.len()});
    running.answer(&name, body, &headers).await
}

async fn report(State(running): State<Arc<Running>>) -> Response {
    Json(running.record.report(running.github.window).json()).into_response()
}

impl Running {
    async fn answer(&self, what: &str, body: Value, request: &HeaderMap) -> Response {
        let now = self.record.now();
        let etag = etag(&body);
        let authorization = request.get(header::AUTHORIZATION);
        let authorization =
            authorization.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        if request.get(header::IF_NONE_MATCH).is_some_and(|known| *known == etag) {
            let status = StatusCode::NOT_MODIFIED.as_u16();
            self.record.add_authorized(now, what, status, authorization);
            return (StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response();
        }
        let (remaining, reset) = self.take(now);
        let status = if remaining.is_none() { StatusCode::FORBIDDEN } else { StatusCode::OK };
        self.record.add_authorized(now, what, status.as_u16(), authorization);
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
        if remaining.is_some() {
            headers.insert(header::ETAG, etag);
        }
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

/// Returns the entity tag of a body: a number that changes with its content.
fn etag(body: &Value) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    body.to_string().hash(&mut hasher);
    let text = format!("W/\"{:016x}\"", hasher.finish());
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("\"\""))
}
