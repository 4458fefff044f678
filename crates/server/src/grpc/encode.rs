//! Encodes decisions as gRPC messages.

use sluicegate_core::limit::Unit;
use sluicegate_core::predict::Forecast;
use sluicegate_core::store::Claim;
use sluicegate_core::{Decision, Timestamp};

use super::proto::sluicegate::v1 as pb;
use super::proto::sluicegate::v1::claim_response::Claim as ClaimKind;
use crate::answer::{Answer, Scope};
use crate::settlement::Settlement;

/// Encodes the answer to an `Allow`.
pub(super) fn allow(answer: &Answer<'_, '_>, handle: Option<String>) -> pb::AllowResponse {
    let hit = answer.hit();
    let shown = hit.or_else(|| answer.tightest());
    let never = matches!(answer.decision(), Decision::Never(_));
    let (until, handle) = match answer.decision() {
        Decision::Allow(allow) => (allow.until.map(|until| until.to_string()), handle),
        Decision::Deny(_) | Decision::Never(_) | Decision::Closed(_) => (None, None),
    };
    let reset = shown.filter(|_| !never).map(|scope| scope.reading.reset.to_string());
    pb::AllowResponse {
        allowed: answer.decision().is_allowed(),
        remaining: match shown {
            Some(scope) => saturated(scope.remaining()),
            // No limit applies, or the usage is unknown.
            None if answer.decision().is_allowed() => i32::MAX,
            None => 0,
        },
        reset_at: reset.unwrap_or_default(),
        scope_hit: hit.map(|scope| scope.name().to_owned()).unwrap_or_default(),
        scopes: answer.scopes().map(scope).collect(),
        reason: answer.reason().map(|reason| reason.to_string()).unwrap_or_default(),
        handle: handle.unwrap_or_default(),
        until: until.unwrap_or_default(),
    }
}

/// Encodes the answer of `Acquire`, `Check` and `Book`.
pub(super) fn decision(answer: &Answer<'_, '_>, handle: Option<String>) -> pb::Decision {
    let mut message = pb::Decision {
        allowed: answer.decision().is_allowed(),
        id: answer.plan().id.id.to_string(),
        at: answer.at().to_string(),
        reason: answer.reason().map(|reason| reason.to_string()).unwrap_or_default(),
        scope_hit: answer.hit().map(|scope| scope.name().to_owned()).unwrap_or_default(),
        retry_after_ms: answer.retry_after().map_or(0, |wait| wait.as_micros().div_ceil(1_000)),
        scopes: answer.scopes().map(scope).collect(),
        advice: answer.advice().unwrap_or_default(),
        ..pb::Decision::default()
    };
    if let Some(Forecast { now, ever }) = answer.forecast() {
        message.max_output_tokens = Some(now);
        let never = matches!(answer.decision(), Decision::Never(_));
        message.max_output_tokens_ever = never.then_some(ever);
    }
    match answer.decision() {
        Decision::Allow(allow) => {
            message.start = allow.start.to_string();
            message.replayed = allow.replayed;
            message.until = allow.until.map(|until| until.to_string()).unwrap_or_default();
            message.handle = handle.unwrap_or_default();
            let charges = answer.plan().charges();
            let name = |&index: &u16| charges[usize::from(index)].rule().name.clone();
            message.shadowed = allow.shadowed.iter().map(name).collect();
        }
        Decision::Deny(deny) => {
            message.start = deny.start.to_string();
            message.fits = fits(answer);
        }
        Decision::Never(_) => message.fits = fits(answer),
        Decision::Closed(_) => {}
    }
    message
}

/// Encodes the result of settling an admission.
pub(super) fn settled(settled: &Settlement) -> pb::Settled {
    let metadata = pb::Metadata {
        request_duration_seconds: settled.duration.map(|span| span.as_micros() as f64 / 1e6),
        api_cost_usd: settled.cost.map(|cost| cost.to_string()),
        // The work was admitted, so it was not limited.
        rate_limited: false,
        query_tokens: settled.query_tokens,
        context_tokens: settled.context_tokens,
        output_tokens: settled.output_tokens,
    };
    pb::Settled { replayed: settled.replayed, metadata: Some(metadata) }
}

/// Returns the maximum of each unit that would be admitted now.
fn fits(answer: &Answer<'_, '_>) -> std::collections::BTreeMap<String, u64> {
    let units = Unit::RATED.into_iter();
    let fit =
        |unit: Unit| Some((unit.name().to_owned(), answer.decision().fits(answer.plan(), unit)?));
    units.filter_map(fit).collect()
}

/// Encodes the answer to a claim; `encode` encodes the decision in it.
pub(super) fn claim(
    claim: Claim,
    encode: impl FnOnce(&Decision) -> pb::Decision,
) -> pb::ClaimResponse {
    let mut message = pb::ClaimResponse::default();
    match claim {
        Claim::Go { allow, good_until } => {
            message.set_claim(ClaimKind::Go);
            message.at = allow.at.to_string();
            message.start = allow.start.to_string();
            message.good_until = good_until.to_string();
            message.good_ms = good_until.since(allow.at).as_micros() / 1_000;
            message.wait_ms = allow.start.since(allow.at).as_micros().div_ceil(1_000);
            message.decision = Some(encode(&Decision::Allow(allow)));
        }
        Claim::Spent => message.set_claim(ClaimKind::Spent),
        Claim::Early { at, start } => wait(&mut message, ClaimKind::Early, at, start),
        Claim::Rebooked { at, start } => wait(&mut message, ClaimKind::Rebooked, at, start),
        Claim::Deny(deny) => {
            wait(&mut message, ClaimKind::Denied, deny.at, deny.start);
            message.decision = Some(encode(&Decision::Deny(deny)));
        }
        Claim::Never(never) => {
            message.set_claim(ClaimKind::Denied);
            message.at = never.at.to_string();
            message.decision = Some(encode(&Decision::Never(never)));
        }
    }
    message
}

fn wait(message: &mut pb::ClaimResponse, kind: ClaimKind, at: Timestamp, start: Timestamp) {
    message.set_claim(kind);
    message.at = at.to_string();
    message.start = start.to_string();
    message.wait_ms = start.since(at).as_micros().div_ceil(1_000);
}

fn scope(scope: Scope<'_, '_>) -> pb::ScopeStatus {
    // Amounts stay below 2^53.
    let number = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    pb::ScopeStatus {
        name: scope.name().to_owned(),
        limit: number(scope.amount()),
        current: number(scope.reading.used),
        remaining: number(scope.remaining()),
        window: scope.text.to_owned(),
        reset_at: scope.reading.reset.to_string(),
        shadow: scope.charge.shadow(),
        shared: scope.reading.shared,
    }
}

fn saturated(amount: u64) -> i32 {
    i32::try_from(amount).unwrap_or(i32::MAX)
}
