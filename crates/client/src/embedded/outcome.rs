//! Converts an answer of the engine into the types of this crate.

use std::time::Duration;

use sluicegate_core::Decision;
use sluicegate_core::plan::Handle;
use sluicegate_service::answer::{Answer, store_refusal};
use sluicegate_service::cost::Origin;
use sluicegate_service::headers::{self, Field, RETRY_AFTER};

use crate::backend::{AdmissionHandle, AllowedOutcome, Outcome};
use crate::decision::{DecisionSource, Denial, Facts};
use crate::scope::Scope;

/// Converts an answer. `handle` names the admission, if it is one that has to be ended.
pub(super) fn outcome(answer: &Answer<'_, '_>, handle: Option<Handle>) -> Outcome {
    match answer.decision() {
        Decision::Allow(_) => Outcome::Allowed(allowed(answer, handle)),
        _ => Outcome::Denied(denial(answer)),
    }
}

/// Converts an admission.
pub(super) fn allowed(answer: &Answer<'_, '_>, handle: Option<Handle>) -> AllowedOutcome {
    let (replayed, lease) = match answer.decision() {
        Decision::Allow(allow) => {
            (allow.replayed, allow.until.map(|until| until.since(allow.at).into()))
        }
        _ => (false, None),
    };
    let handle = handle.map(|handle| AdmissionHandle::Store(handle, Origin::of(answer)));
    AllowedOutcome { facts: facts(answer), replayed, handle, lease }
}

/// Converts a denial.
pub(super) fn denial(answer: &Answer<'_, '_>) -> Denial {
    let mut facts = facts(answer);
    let (status, refusal) = match answer.decision() {
        Decision::Closed(closed) if closed.until.is_some() => {
            (503, Some(store_refusal::LOST_MEMORY))
        }
        Decision::Closed(_) => (503, Some(store_refusal::UNAVAILABLE)),
        _ if answer.is_full() => (503, Some(store_refusal::FULL)),
        _ if answer.is_banned() => (403, None),
        _ => (429, None),
    };
    let is_retry_after = |(name, _): &(&str, String)| *name == RETRY_AFTER;
    if status == 503 && !facts.headers.iter().any(is_retry_after) {
        facts.headers.push((RETRY_AFTER, "1".to_owned()));
    }
    Denial {
        facts,
        status,
        reason: answer.reason().map(|reason| reason.to_string()).unwrap_or_default(),
        detail: refusal.map_or_else(|| answer.detail(), str::to_owned),
        rule: answer.hit().map(|hit| hit.name().to_owned()),
        retry_after: answer.retry_after().map(Duration::from),
        output_tokens_max: answer.forecast().map(|forecast| forecast.now),
        body: None,
    }
}

fn facts(answer: &Answer<'_, '_>) -> Facts {
    let mut fields = Vec::with_capacity(5);
    headers::each(answer, |name, field| {
        let text = match field {
            Field::Number(number) => number.to_string(),
            Field::Text(text) => text,
        };
        fields.push((name, text));
    });
    let source = match answer.outage() {
        None => DecisionSource::Store,
        Some(_) => DecisionSource::OutagePolicy,
    };
    let scopes = answer.scopes().map(|scope| Scope::of(&scope, answer.at())).collect();
    Facts { source, scopes, headers: fields }
}
