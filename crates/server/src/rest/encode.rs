//! Encodes decisions as JSON.

use sluicegate_core::decision::Allow;
use sluicegate_core::limit::Unit;
use sluicegate_core::predict::Forecast;
use sluicegate_core::store::Claim;
use sluicegate_core::{Decision, Timestamp};

use crate::answer::{Answer, Scope};
use crate::json::{JsonObject, object, quote};
use crate::settlement::Settlement;

/// Encodes the answer of `/rate-limit/allow`.
pub(super) fn allow(answer: &Answer<'_, '_>, handle: Option<&str>) -> Vec<u8> {
    object(|json| {
        json.boolean("allowed", answer.decision().is_allowed());
        let shown = match answer.decision() {
            Decision::Allow(allow) => {
                if allow.replayed {
                    json.boolean("replayed", true);
                }
                held(allow, handle, json);
                answer.tightest()
            }
            Decision::Deny(_) | Decision::Never(_) | Decision::Closed(_) => {
                denial(answer, json);
                answer.hit()
            }
        };
        outage(answer, json);
        if let Some(scope) = shown {
            json.amount("remaining", scope.remaining(), scope.limit.unit());
            if !matches!(answer.decision(), Decision::Never(_)) {
                json.instant("resetAt", scope.reading.reset);
            }
        }
        if let Some(scope) = answer.effective() {
            json.amount("effectiveLimit", scope.amount(), scope.limit.unit());
        }
        scopes(answer, json);
    })
}

/// Encodes a denial in a status mode: as above, plus the limit in words.
pub(super) fn exceeded(answer: &Answer<'_, '_>) -> Vec<u8> {
    object(|json| {
        json.string("detail", &answer.detail());
        json.boolean("allowed", false);
        denial(answer, json);
        forecast(answer, json);
        if let Some(scope) = answer.hit() {
            json.amount("remaining", scope.remaining(), scope.limit.unit());
            if !matches!(answer.decision(), Decision::Never(_)) {
                json.instant("resetAt", scope.reading.reset);
            }
        }
        scopes(answer, json);
    })
}

/// Encodes the answer of `/v1/acquire`, `/v1/check` and `/v1/book`.
pub(super) fn native(answer: &Answer<'_, '_>, handle: Option<&str>) -> Vec<u8> {
    object(|json| native_fields(answer, handle, json))
}

/// Writes the fields of [`native`].
pub(super) fn native_fields(
    answer: &Answer<'_, '_>,
    handle: Option<&str>,
    json: &mut JsonObject<'_>,
) {
    json.boolean("allowed", answer.decision().is_allowed());
    json.quoted("id", answer.plan().id.id);
    json.instant("at", answer.at());
    match answer.decision() {
        Decision::Allow(allow) => {
            json.instant("start", allow.start);
            json.boolean("replayed", allow.replayed);
            held(allow, handle, json);
            if !allow.shadowed.is_empty() {
                json.list("shadowed", allow.shadowed.iter(), |&index, out| {
                    quote(&answer.plan().charges()[usize::from(index)].rule().name, out);
                });
            }
        }
        Decision::Deny(deny) => {
            json.instant("start", deny.start);
            denial(answer, json);
        }
        Decision::Never(_) | Decision::Closed(_) => denial(answer, json),
    }
    outage(answer, json);
    if !answer.decision().is_allowed() {
        fits(answer, json);
        forecast(answer, json);
    }
    scopes(answer, json);
}

/// Encodes the answer of `/v1/claim`; `decided` writes the fields of a decision.
pub(super) fn claimed(
    claim: Claim,
    decided: impl FnOnce(&Decision, &mut JsonObject<'_>),
) -> Vec<u8> {
    object(|json| match claim {
        Claim::Go { allow, good_until } => {
            json.word("claim", "go");
            json.instant("goodUntil", good_until);
            json.number("goodMs", good_until.since(allow.at).as_micros() / 1_000);
            json.number("waitMs", wait_ms(allow.at, allow.start));
            decided(&Decision::Allow(allow), json);
        }
        Claim::Spent => json.word("claim", "spent"),
        Claim::Early { at, start } => wait("early", at, start, json),
        Claim::Rebooked { at, start } => wait("rebooked", at, start, json),
        Claim::Deny(deny) => {
            json.word("claim", "denied");
            decided(&Decision::Deny(deny), json);
        }
        Claim::Never(never) => {
            json.word("claim", "denied");
            decided(&Decision::Never(never), json);
        }
    })
}

fn wait(claim: &str, at: Timestamp, start: Timestamp, json: &mut JsonObject<'_>) {
    json.word("claim", claim);
    json.instant("at", at);
    json.instant("start", start);
    json.number("waitMs", wait_ms(at, start));
}

/// Returns the time from `at` to `start`, rounded up: zero if the start is over.
fn wait_ms(at: Timestamp, start: Timestamp) -> u64 {
    start.since(at).as_micros().div_ceil(1_000)
}

/// Encodes the result of settling. Callers pass the metadata on, so it has their field names.
pub(super) fn settled(settled: &Settlement) -> Vec<u8> {
    object(|json| {
        json.boolean("replayed", settled.replayed);
        json.object("metadata", |json| {
            if let Some(duration) = settled.duration {
                let micros = duration.as_micros();
                let seconds = format_args!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
                json.raw("request_duration_seconds", seconds);
            }
            if let Some(cost) = settled.cost {
                json.amount("api_cost_usd", cost.as_nanos(), Unit::Usd);
            }
            // The work was admitted, so it was not limited.
            json.boolean("rate_limited", false);
            for (name, tokens) in [
                ("query_tokens", settled.query_tokens),
                ("context_tokens", settled.context_tokens),
                ("output_tokens", settled.output_tokens),
            ] {
                if let Some(tokens) = tokens {
                    json.number(name, tokens);
                }
            }
        });
    })
}

/// Encodes the usage of limits.
pub(super) fn usage<'a, 'p: 'a>(
    at: Timestamp,
    shown: impl Iterator<Item = Scope<'a, 'p>>,
) -> Vec<u8> {
    object(|json| {
        json.instant("at", at);
        json.list("scopes", shown, scope);
    })
}

/// Writes the handle of an admission, and the time until which it is held.
fn held(allow: &Allow, handle: Option<&str>, json: &mut JsonObject<'_>) {
    if let Some(until) = allow.until {
        json.instant("until", until);
    }
    if let Some(handle) = handle {
        json.string("handle", handle);
    }
}

/// Writes the outage policy, if it decided.
fn outage(answer: &Answer<'_, '_>, json: &mut JsonObject<'_>) {
    if let Some(policy) = answer.outage() {
        json.word("outage", policy.word());
    }
}

fn denial(answer: &Answer<'_, '_>, json: &mut JsonObject<'_>) {
    if let Some(reason) = answer.reason() {
        json.text("reason", &reason);
    }
    if let Some(hit) = answer.hit() {
        json.string("scopeHit", hit.name());
    }
    if let Some(wait) = answer.retry_after() {
        json.number("retryAfterMs", wait.as_micros().div_ceil(1_000));
    }
}

/// Writes the maximum of each unit that would be admitted now.
fn fits(answer: &Answer<'_, '_>, json: &mut JsonObject<'_>) {
    let units = [Unit::Requests, Unit::Tokens, Unit::InputTokens, Unit::OutputTokens, Unit::Usd];
    json.object("fits", |json| {
        for unit in units {
            if let Some(amount) = answer.decision().fits(answer.plan(), unit) {
                json.amount(unit.name(), amount, unit);
            }
        }
    });
}

/// Writes the largest output cap that would be admitted now and, for work that never fits, ever.
fn forecast(answer: &Answer<'_, '_>, json: &mut JsonObject<'_>) {
    let Some(Forecast { now, ever }) = answer.forecast() else { return };
    json.number("maxOutputTokens", now);
    if matches!(answer.decision(), Decision::Never(_)) {
        json.number("maxOutputTokensEver", ever);
    }
    if let Some(advice) = answer.advice() {
        json.string("advice", &advice);
    }
}

fn scopes(answer: &Answer<'_, '_>, json: &mut JsonObject<'_>) {
    json.list("scopes", answer.scopes(), scope);
}

fn scope(scope: Scope<'_, '_>, out: &mut Vec<u8>) {
    let unit = scope.limit.unit();
    let mut inner = JsonObject::begin(out);
    inner.string("name", scope.name());
    inner.string("window", scope.text);
    inner.amount("limit", scope.amount(), unit);
    inner.amount("current", scope.reading.used, unit);
    inner.amount("remaining", scope.remaining(), unit);
    inner.instant("resetAt", scope.reading.reset);
    if scope.charge.shadow() {
        inner.boolean("shadow", true);
    }
    if scope.reading.shared {
        inner.boolean("shared", true);
    }
    inner.end();
}
