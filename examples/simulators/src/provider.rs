//! A simulated model provider: above its limit it answers 429 with a retry time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

use crate::Record;

/// A provider with a limit, a latency and a failure rate.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Maximum number of calls in a window.
    pub limit: usize,
    /// Length of the window.
    pub window: Duration,
    /// Latency of a response.
    pub latency: Duration,
    /// Percentage of calls that fail.
    pub failures_percent: u64,
}

struct Running {
    provider: Provider,
    record: Arc<Record>,
    recent: Mutex<VecDeque<Duration>>,
    calls: std::sync::atomic::AtomicU64,
}

impl Provider {
    /// Returns the router of `POST /v1/analyze` and `GET /report`. Calls are added to the record.
    pub fn router(self) -> (Router, Arc<Record>) {
        let record = Arc::new(Record::new());
        let running = Arc::new(Running {
            provider: self,
            record: record.clone(),
            recent: Mutex::default(),
            calls: std::sync::atomic::AtomicU64::new(0),
        });
        let router = Router::new()
            .route("/v1/analyze", post(analyze))
            .route("/report", get(report))
            .with_state(running);
        (router, record)
    }
}

async fn analyze(State(running): State<Arc<Running>>, headers: HeaderMap, body: Bytes) -> Response {
    let Provider { latency, failures_percent, .. } = running.provider;
    let job = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let job = job.unwrap_or("unnamed").to_owned();
    let at = running.record.now();
    if let Some(wait) = running.over(at) {
        running.record.add(at, &job, 429);
        let wait = wait.as_millis().to_string();
        let body = Json(json!({"error": {"message": "rate limit exceeded"}}));
        return (StatusCode::TOO_MANY_REQUESTS, [("retry-after-ms", wait)], body).into_response();
    }
    let number = running.calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    // Failures are spread evenly and the same in every run.
    let fails = number.wrapping_mul(37) % 100 < failures_percent;
    running.record.add(at, &job, if fails { 500 } else { 200 });
    tokio::time::sleep(latency).await;
    if fails {
        let body = Json(json!({"error": {"message": "simulated failure"}}));
        return (StatusCode::INTERNAL_SERVER_ERROR, body).into_response();
    }
    Json(json!({"job": job, "bytes": body.len(), "analysis": "healthy leaves"})).into_response()
}

async fn report(State(running): State<Arc<Running>>) -> Response {
    Json(running.record.report(running.provider.window).json()).into_response()
}

impl Running {
    /// Counts a call in the window, or returns the time until the next one is allowed.
    fn over(&self, now: Duration) -> Option<Duration> {
        let Provider { limit, window, .. } = self.provider;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        while recent.front().is_some_and(|first| *first + window <= now) {
            recent.pop_front();
        }
        if recent.len() >= limit {
            return recent.front().map(|first| *first + window - now);
        }
        recent.push_back(now);
        None
    }
}
