//! Encodes requests for the HTTP API of the service, and decodes its answers.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sluicegate_core::limit::Unit;
use sluicegate_core::time::Timestamp;
use sluicegate_core::{Limit, Money};
use sluicegate_service::headers;

use super::transport::{HttpAnswer, NoAnswer};
use crate::backend::{AdmissionHandle, AllowedOutcome, Outcome};
use crate::decision::{DecisionSource, Denial, Facts};
use crate::error::{Error, ErrorKind};
use crate::request::Request;
use crate::scope::Scope;
use crate::settlement::Settlement;

/// A call without a usable answer.
#[derive(Debug)]
pub(super) enum CallError {
    /// The service did not answer.
    Unavailable(NoAnswer),
    /// The service refused the call.
    Refused(Error),
}

/// Encodes a request.
pub(super) fn request(request: &Request<'_>, id: Option<&str>) -> Value {
    let dimensions = request.dimensions.iter();
    let dimensions: Map<_, _> =
        dimensions.map(|(name, value)| (name.to_string(), Value::from(value.as_ref()))).collect();
    let mut encoded = json!({ "dimensions": dimensions });
    let cost = request.cost.json();
    if !cost.is_empty() {
        encoded["cost"] = cost.into();
    }
    if let Some(id) = id.or(request.id.as_deref()) {
        encoded["id"] = id.into();
    }
    if let Some(hold) = request.hold {
        encoded["hold"] = format!("{}us", hold.as_micros()).into();
    }
    if !request.limits.is_empty() {
        let limits = request.limits.iter();
        let limits = limits
            .map(|inline| json!({ "name": inline.name, "key": inline.key, "limit": inline.limit }));
        encoded["limits"] = limits.collect();
    }
    encoded
}

/// The fields of an answer.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AnswerBody {
    allowed: Option<bool>,
    at: Option<String>,
    start: Option<String>,
    until: Option<String>,
    replayed: bool,
    handle: Option<String>,
    reason: Option<String>,
    scope_hit: Option<String>,
    retry_after_ms: Option<u64>,
    max_output_tokens: Option<u64>,
    outage: Option<String>,
    detail: Option<String>,
    scopes: Vec<ScopeBody>,
    claim: Option<String>,
    wait_ms: Option<u64>,
    good_ms: Option<u64>,
    metadata: MetadataBody,
}

/// A limit in an answer. Amounts of money have decimals.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScopeBody {
    name: String,
    window: String,
    limit: Box<RawValue>,
    current: Box<RawValue>,
    remaining: Box<RawValue>,
    reset_at: Option<String>,
    #[serde(default)]
    shadow: bool,
}

/// The metadata of a settlement.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MetadataBody {
    request_duration_seconds: Option<f64>,
    api_cost_usd: Option<Box<RawValue>>,
    query_tokens: Option<u64>,
    context_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

/// An answer to a claim.
pub(super) enum ClaimAnswer {
    /// The work may start after `wait` from the answer, and within `good` from the question.
    Go { outcome: Box<AllowedOutcome>, wait: Duration, good: Duration },
    /// The start is this far away.
    Wait(Duration),
    /// A concurrency slot is missing, which is free after this time or earlier. The booking is kept.
    Busy(Duration),
    /// This claimant got its turn before: claim under another name.
    Spent,
    /// The work never fits.
    Denied(Denial),
}

/// Decodes a decision. `now` is the time of this node, for answers that do not state the service's.
pub(super) fn decision(answer: &HttpAnswer, now: Timestamp) -> Result<Outcome, CallError> {
    let body = parse(answer)?;
    match body.allowed {
        Some(true) => Ok(Outcome::Allowed(allowed(answer, &body, now))),
        Some(false) => Ok(Outcome::Denied(denial(answer, body, now))),
        None => match &body.detail {
            // The service answers, and its own outage policy denies: this is a decision.
            Some(detail) if answer.status == 503 && detail.starts_with("STORE_") => {
                let reason = detail.split(':').next().unwrap_or_default().to_owned();
                let body = AnswerBody { reason: Some(reason), ..body };
                Ok(Outcome::Denied(Denial { body: None, ..denial(answer, body, now) }))
            }
            _ => Err(refused(answer, body)),
        },
    }
}

/// Decodes a booking: the decision, and the time until its start.
pub(super) fn booking(
    answer: &HttpAnswer,
    now: Timestamp,
) -> Result<(Outcome, Duration), CallError> {
    let body = parse(answer)?;
    let wait = between(body.at.as_deref(), body.start.as_deref()).unwrap_or_default();
    Ok((decision(answer, now)?, wait))
}

/// Decodes the answer to a claim.
pub(super) fn claim(answer: &HttpAnswer, now: Timestamp) -> Result<ClaimAnswer, CallError> {
    let body = successful(answer)?;
    Ok(match body.claim.as_deref() {
        Some("go") => ClaimAnswer::Go {
            outcome: Box::new(allowed(answer, &body, now)),
            wait: Duration::from_millis(body.wait_ms.unwrap_or_default()),
            good: Duration::from_millis(body.good_ms.unwrap_or_default()),
        },
        Some("spent") => ClaimAnswer::Spent,
        Some("denied") => match body.retry_after_ms {
            Some(wait) => ClaimAnswer::Busy(Duration::from_millis(wait)),
            None => ClaimAnswer::Denied(Denial { status: 429, ..denial(answer, body, now) }),
        },
        _ => ClaimAnswer::Wait(Duration::from_millis(body.wait_ms.unwrap_or_default())),
    })
}

/// Decodes a settlement.
pub(super) fn settlement(answer: &HttpAnswer) -> Result<Settlement, CallError> {
    let AnswerBody { replayed, metadata, .. } = successful(answer)?;
    let cost = metadata.api_cost_usd.and_then(|cost| cost.get().parse().ok());
    let duration = metadata.request_duration_seconds;
    Ok(Settlement {
        recorded: true,
        replayed,
        duration: duration.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        cost,
        query_tokens: metadata.query_tokens,
        context_tokens: metadata.context_tokens,
        output_tokens: metadata.output_tokens,
    })
}

/// Decodes the answer to a release or a cancellation.
pub(super) fn ended(answer: &HttpAnswer) -> Result<(), CallError> {
    successful(answer).map(drop)
}

/// Decodes the time until a renewed lease ends.
pub(super) fn renewal(answer: &HttpAnswer) -> Result<Duration, CallError> {
    let body = successful(answer)?;
    between(body.at.as_deref(), body.until.as_deref()).ok_or_else(|| foreign(answer))
}

/// Decodes usage.
pub(super) fn usage(answer: &HttpAnswer, now: Timestamp) -> Result<Vec<Scope>, CallError> {
    let body = successful(answer)?;
    Ok(scopes(&body, now))
}

/// Decodes an answer of another type.
pub(super) fn read<T: serde::de::DeserializeOwned>(answer: &HttpAnswer) -> Result<T, CallError> {
    successful(answer)?;
    serde_json::from_str(&answer.body).map_err(|_| foreign(answer))
}

fn allowed(answer: &HttpAnswer, body: &AnswerBody, now: Timestamp) -> AllowedOutcome {
    AllowedOutcome {
        facts: facts(answer, body, now),
        replayed: body.replayed,
        handle: body.handle.clone().map(AdmissionHandle::Remote),
        lease: between(body.at.as_deref(), body.until.as_deref()),
    }
}

fn denial(answer: &HttpAnswer, body: AnswerBody, now: Timestamp) -> Denial {
    let facts = facts(answer, &body, now);
    let reason = body.reason.unwrap_or_default();
    Denial {
        facts,
        status: answer.status.as_u16(),
        detail: body.detail.unwrap_or_else(|| reason.clone()),
        reason,
        rule: body.scope_hit,
        retry_after: body.retry_after_ms.map(Duration::from_millis),
        output_tokens_max: body.max_output_tokens,
        body: Some(answer.body.clone()),
    }
}

fn facts(answer: &HttpAnswer, body: &AnswerBody, now: Timestamp) -> Facts {
    let fields = headers::NAMES.iter().filter_map(|&name| {
        let value = answer.headers.get(name)?.to_str().ok()?;
        Some((name, value.to_owned()))
    });
    let is_store_down = body.reason.as_deref() == Some("STORE_UNAVAILABLE");
    let source = match body.outage.is_some() || is_store_down {
        false => DecisionSource::Store,
        true => DecisionSource::OutagePolicy,
    };
    Facts { source, headers: fields.collect(), scopes: scopes(body, now) }
}

fn scopes(body: &AnswerBody, now: Timestamp) -> Vec<Scope> {
    let at = body.at.as_deref().and_then(|at| at.parse().ok()).unwrap_or(now);
    body.scopes.iter().filter_map(|scope| read_scope(scope, at)).collect()
}

fn read_scope(scope: &ScopeBody, at: Timestamp) -> Option<Scope> {
    let unit = scope.window.parse::<Limit>().ok()?.unit();
    let amount = |raw: &RawValue| match unit {
        Unit::Usd => raw.get().parse::<Money>().ok().map(Money::as_nanos),
        _ => raw.get().parse::<u64>().ok(),
    };
    let reset: Option<Timestamp> = scope.reset_at.as_deref().and_then(|reset| reset.parse().ok());
    Some(Scope {
        rule: scope.name.clone(),
        limit: scope.window.clone(),
        unit,
        max: amount(&scope.limit)?,
        used: amount(&scope.current)?,
        remaining: amount(&scope.remaining)?,
        reset_after: reset.map(|reset| reset.since(at).into()).unwrap_or_default(),
        shadow: scope.shadow,
    })
}

/// Returns the time between two times of the clock of the service; our own clock does not matter.
fn between(at: Option<&str>, until: Option<&str>) -> Option<Duration> {
    let (at, until): (Timestamp, Timestamp) = (at?.parse().ok()?, until?.parse().ok()?);
    Some(until.since(at).into())
}

fn successful(answer: &HttpAnswer) -> Result<AnswerBody, CallError> {
    let body = parse(answer)?;
    if answer.status.is_success() { Ok(body) } else { Err(refused(answer, body)) }
}

fn parse(answer: &HttpAnswer) -> Result<AnswerBody, CallError> {
    serde_json::from_str(&answer.body).map_err(|_| foreign(answer))
}

fn foreign(answer: &HttpAnswer) -> CallError {
    let status = answer.status.as_u16();
    CallError::Unavailable(NoAnswer::new(format!(
        "the answer ({status}) is not of a Sluicegate service: check the url"
    )))
}

fn refused(answer: &HttpAnswer, body: AnswerBody) -> CallError {
    let status = answer.status.as_u16();
    let detail = body.detail.unwrap_or_else(|| "no detail".to_owned());
    let kind = match status {
        500.. => {
            return CallError::Unavailable(NoAnswer::new(format!("{status}: {detail}")));
        }
        401 | 403 => ErrorKind::Configuration,
        409 => ErrorKind::Conflict,
        404 | 410 => ErrorKind::Ended,
        _ => ErrorKind::InvalidRequest,
    };
    CallError::Refused(Error::new(
        kind,
        format!("the service refused the call ({status}): {detail}"),
    ))
}
