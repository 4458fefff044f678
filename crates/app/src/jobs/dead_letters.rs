//! `/v1/dashboard/dead-letters` of the admin listener: lists, replays and deletes the dead letters of
//! the queues of this process. `sluicegate dlq` does the same with the broker itself.

use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query as Parameters, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_queue::{DeadLetter, DeadLetterFilter, Queue, WallClock};
use sluicegate_server::auth::Caller;
use sluicegate_server::rest::Problem;
use sluicegate_service::{AuditEntry, Service};

use super::DepthPoller;
use crate::cli::dlq::letter_json;

/// Default and maximum number of letters in a list.
const LISTED: u64 = 100;
const LISTED_MAX: u64 = 500;
/// Maximum number of jobs that are selected one by one.
const JOBS_MAX: usize = 100;
/// Maximum length of a reason, in bytes.
const REASON_BYTES_MAX: usize = 500;

/// Returns the routes.
pub(crate) fn router(queues: DepthPoller, service: Arc<Service>) -> Router {
    Router::new()
        .route("/v1/dashboard/dead-letters", get(list))
        .route("/v1/dashboard/dead-letters/replay", post(replay))
        .route("/v1/dashboard/dead-letters/delete", post(delete))
        .with_state(DeadLetterApi { queues, service })
}

#[derive(Clone)]
struct DeadLetterApi {
    queues: DepthPoller,
    service: Arc<Service>,
}

/// The letters to list. All conditions must hold.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LetterList {
    queue: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    /// A text that the error contains.
    error: Option<String>,
    job: Option<String>,
    /// A duration, such as 1h: only letters that failed longer ago.
    older_than: Option<String>,
    /// Maximum number of letters.
    max: Option<u64>,
}

/// The letters to replay or delete. All conditions must hold.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LetterChange {
    queue: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    error: Option<String>,
    older_than: Option<String>,
    /// Only these jobs.
    jobs: Option<Vec<String>>,
    /// Count, and change nothing.
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    reason: String,
}

/// The dead letters that a name stands for: those of a queue, or all of a dead-letter queue.
struct NamedLetters {
    /// A queue that uses the dead-letter queue.
    queue: Queue,
    /// Queue in which the letters failed, if letters of others are in the same dead-letter queue.
    failed_in: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeKind {
    Replay,
    Delete,
}

type Answer = Result<Json<Value>, Problem>;

async fn list(
    State(api): State<DeadLetterApi>,
    parameters: Result<Parameters<LetterList>, QueryRejection>,
) -> Answer {
    let Parameters(asked) = parameters.map_err(|error| Problem::bad_request(error.body_text()))?;
    let named = api.letters(&asked.queue)?;
    let max = asked.max.unwrap_or(LISTED);
    if max > LISTED_MAX {
        return Err(Problem::field("max", format!("write at most {LISTED_MAX}")));
    }
    let filter = named.filter(asked.kind, asked.error, asked.job, asked.older_than.as_deref())?;
    let mut letters: Vec<Value> = Vec::new();
    let show = |letter: &DeadLetter| {
        if let Ok(mut shown) = serde_json::from_str::<Value>(&letter_json(letter)) {
            shown["job"] = letter.message.meta.job.as_str().into();
            letters.push(shown);
        }
    };
    named.queue.dead_letters().list(&filter, max, show).await.map_err(failed)?;
    let all = match named.queue.capabilities().depth {
        true => Some(named.queue.dead_depth().await.map_err(failed)?.ready),
        false => None,
    };
    Ok(Json(json!({ "queue": asked.queue, "all": all, "letters": letters })))
}

async fn replay(
    api: State<DeadLetterApi>,
    caller: Extension<Caller>,
    body: Result<Json<LetterChange>, JsonRejection>,
) -> Answer {
    change(api, caller, body, ChangeKind::Replay).await
}

async fn delete(
    api: State<DeadLetterApi>,
    caller: Extension<Caller>,
    body: Result<Json<LetterChange>, JsonRejection>,
) -> Answer {
    change(api, caller, body, ChangeKind::Delete).await
}

/// Replays or deletes letters, or counts them in a dry run.
async fn change(
    State(api): State<DeadLetterApi>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<LetterChange>, JsonRejection>,
    kind: ChangeKind,
) -> Answer {
    let Json(asked) = body.map_err(|error| Problem::bad_request(error.body_text()))?;
    let reason = asked.reason.trim();
    if !asked.dry_run && (reason.is_empty() || reason.len() > REASON_BYTES_MAX) {
        let right = format!("must have 1 to {REASON_BYTES_MAX} bytes: say why");
        return Err(Problem::field("reason", right));
    }
    let named = api.letters(&asked.queue)?;
    let jobs = match asked.jobs {
        Some(jobs) if jobs.is_empty() || jobs.len() > JOBS_MAX => {
            return Err(Problem::field("jobs", format!("write 1 to {JOBS_MAX} job ids")));
        }
        Some(jobs) => jobs.into_iter().map(Some).collect(),
        None => vec![None],
    };
    let (mut count, mut outcome) = (0_u64, Ok(0));
    for job in jobs {
        let (of_type, error) = (asked.kind.clone(), asked.error.clone());
        let filter = named.filter(of_type, error, job, asked.older_than.as_deref())?;
        let letters = named.queue.dead_letters();
        let is_changed =
            |letter: &DeadLetter| kind == ChangeKind::Delete || letters.knows_origin(letter);
        outcome = match kind {
            _ if asked.dry_run => {
                let count_one = |letter: &DeadLetter| count += u64::from(is_changed(letter));
                letters.list(&filter, u64::MAX, count_one).await
            }
            ChangeKind::Replay => letters.replay(&filter, u64::MAX, |_| count += 1).await,
            ChangeKind::Delete => letters.delete(&filter, u64::MAX, |_| count += 1).await,
        };
        if outcome.is_err() {
            break;
        }
    }
    // Also after a failure: a part of the letters has been changed.
    if !asked.dry_run {
        api.service.audit().record(AuditEntry {
            at: api.service.now(),
            by: caller.name().to_owned(),
            action: match kind {
                ChangeKind::Replay => "dead letters replayed",
                ChangeKind::Delete => "dead letters deleted",
            },
            target: asked.queue,
            reason: reason.to_owned(),
            detail: format!("{count} dead letters"),
        });
    }
    outcome.map_err(failed)?;
    Ok(Json(json!({ "count": count, "dryRun": asked.dry_run })))
}

impl DeadLetterApi {
    /// Returns the dead letters of a queue, or those of all queues that share a dead-letter queue.
    fn letters(&self, name: &str) -> Result<NamedLetters, Problem> {
        let polled = self.queues.lock();
        if let Some(found) = polled.queues.iter().find(|found| found.queue.name() == name) {
            let queue = found.queue.clone();
            return Ok(NamedLetters { failed_in: queue.shared_dead_letters(), queue });
        }
        if let Some(found) = polled.dead_letters.get(name) {
            return Ok(NamedLetters { queue: found.queue.clone(), failed_in: None });
        }
        let shared = polled.dead_letters.values().filter(|dead| dead.is_shared);
        let known = polled.queues.iter().map(|known| known.queue.name());
        let known: Vec<_> = known.chain(shared.map(|dead| dead.name())).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Problem::field("queue", format!("unknown queue {name:?} (known: {known})")))
    }
}

impl NamedLetters {
    fn filter(
        &self,
        kind: Option<String>,
        error: Option<String>,
        job: Option<String>,
        older_than: Option<&str>,
    ) -> Result<DeadLetterFilter, Problem> {
        let span = older_than.map(str::parse::<Span>).transpose();
        let span = span.map_err(|error| Problem::field("olderThan", error.to_string()))?;
        let until = span.map(|span| WallClock.now() - span);
        Ok(DeadLetterFilter { queue: self.failed_in.clone(), job, kind, error, until })
    }
}

fn failed(error: sluicegate_queue::Error) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("the queue does not answer: {error}"))
}

#[cfg(test)]
mod tests {
    use sluicegate_server::auth::ENDPOINTS;

    #[test]
    fn every_route_has_a_scope() {
        let of_letters = |path: &str| path.starts_with("/v1/dashboard/dead-letters");
        let scopes: Vec<_> = ENDPOINTS
            .iter()
            .filter(|endpoint| of_letters(endpoint.path))
            .map(|endpoint| (endpoint.method, endpoint.scope.name()))
            .collect();
        assert_eq!(scopes, [("GET", "read"), ("POST", "admin"), ("POST", "admin")]);
    }
}
