//! Encodes decisions as JSON.
//!
//! It writes into one buffer without serde, because this runs some hundred thousand times per
//! second.

use sluicegate_core::decision::Allow;
use sluicegate_core::limit::Unit;
use sluicegate_core::predict::Forecast;
use sluicegate_core::{Decision, Money, Timestamp};

use crate::answer::{Answer, Scope};
use crate::settlement::Settlement;

/// Encodes the answer of `/rate-limit/allow`.
pub(super) fn allow(answer: &Answer<'_, '_>, handle: Option<&str>) -> Vec<u8> {
    let mut json = Json::object();
    json.boolean("allowed", answer.decision().is_allowed());
    let shown = match answer.decision() {
        Decision::Allow(allow) => {
            if allow.replayed {
                json.boolean("replayed", true);
            }
            held(allow, handle, &mut json);
            answer.tightest()
        }
        Decision::Deny(_) | Decision::Never(_) | Decision::Closed(_) => {
            denial(answer, &mut json);
            answer.hit()
        }
    };
    outage(answer, &mut json);
    if let Some(scope) = shown {
        json.amount("remaining", scope.remaining(), scope.limit.unit());
        if !matches!(answer.decision(), Decision::Never(_)) {
            json.instant("resetAt", scope.reading.reset);
        }
    }
    if let Some(scope) = answer.effective() {
        json.amount("effectiveLimit", scope.amount(), scope.limit.unit());
    }
    scopes(answer, &mut json);
    json.end()
}

/// Encodes a denial in a status mode: as above, plus the limit in words.
pub(super) fn exceeded(answer: &Answer<'_, '_>) -> Vec<u8> {
    let mut json = Json::object();
    let detail = match answer.hit() {
        Some(hit) if hit.charge.bans() => format!("Banned by the rule {}", hit.name()),
        hit => {
            let limit = hit.map(|hit| hit.limit.in_words()).unwrap_or_default();
            let advice = answer.advice().map(|advice| format!("; {advice}")).unwrap_or_default();
            format!("Rate limit exceeded: {limit}{advice}")
        }
    };
    json.text("detail", &detail);
    json.boolean("allowed", false);
    denial(answer, &mut json);
    forecast(answer, &mut json);
    if let Some(scope) = answer.hit() {
        json.amount("remaining", scope.remaining(), scope.limit.unit());
        if !matches!(answer.decision(), Decision::Never(_)) {
            json.instant("resetAt", scope.reading.reset);
        }
    }
    scopes(answer, &mut json);
    json.end()
}

/// Encodes the answer of `/v1/acquire`, `/v1/check` and `/v1/book`.
pub(super) fn native(answer: &Answer<'_, '_>, handle: Option<&str>) -> Vec<u8> {
    let mut json = Json::object();
    json.boolean("allowed", answer.decision().is_allowed());
    json.text("id", &answer.plan().id.id.to_string());
    json.instant("at", answer.at());
    match answer.decision() {
        Decision::Allow(allow) => {
            json.instant("start", allow.start);
            json.boolean("replayed", allow.replayed);
            held(allow, handle, &mut json);
            if !allow.shadowed.is_empty() {
                json.list("shadowed", &allow.shadowed, |&index, json| {
                    json.string(&answer.plan().charges()[usize::from(index)].rule().name);
                });
            }
        }
        Decision::Deny(deny) => {
            json.instant("start", deny.start);
            denial(answer, &mut json);
        }
        Decision::Never(_) | Decision::Closed(_) => denial(answer, &mut json),
    }
    outage(answer, &mut json);
    if !answer.decision().is_allowed() {
        fits(answer, &mut json);
        forecast(answer, &mut json);
    }
    scopes(answer, &mut json);
    json.end()
}

/// Encodes the result of settling. Callers pass the metadata on, so it has their field names.
pub(super) fn settled(settled: &Settlement) -> Vec<u8> {
    let mut json = Json::object();
    json.boolean("replayed", settled.replayed);
    json.object_of("metadata", |json| {
        if let Some(duration) = settled.duration {
            let micros = duration.as_micros();
            json.name("request_duration_seconds");
            json.raw(format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000).as_bytes());
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
    json.end()
}

/// Encodes the usage of limits.
pub(super) fn usage<'a, 'p: 'a>(
    at: Timestamp,
    shown: impl Iterator<Item = Scope<'a, 'p>>,
) -> Vec<u8> {
    let mut json = Json::object();
    json.instant("at", at);
    let shown: Vec<_> = shown.collect();
    json.list("scopes", &shown, scope);
    json.end()
}

/// Writes the handle of an admission, and the time until which it is held.
fn held(allow: &Allow, handle: Option<&str>, json: &mut Json) {
    if let Some(until) = allow.until {
        json.instant("until", until);
    }
    if let Some(handle) = handle {
        json.text("handle", handle);
    }
}

/// Writes the outage policy, if it decided.
fn outage(answer: &Answer<'_, '_>, json: &mut Json) {
    if let Some(policy) = answer.outage() {
        json.text("outage", policy.word());
    }
}

fn denial(answer: &Answer<'_, '_>, json: &mut Json) {
    if let Some(reason) = answer.reason() {
        json.text("reason", &reason.to_string());
    }
    if let Some(hit) = answer.hit() {
        json.text("scopeHit", hit.name());
    }
    if let Some(wait) = answer.retry_after() {
        json.number("retryAfterMs", wait.as_micros().div_ceil(1_000));
    }
}

/// Writes the maximum of each unit that would be admitted now.
fn fits(answer: &Answer<'_, '_>, json: &mut Json) {
    let fits: Vec<_> =
        [Unit::Requests, Unit::Tokens, Unit::InputTokens, Unit::OutputTokens, Unit::Usd]
            .into_iter()
            .filter_map(|unit| Some((unit, answer.decision().fits(answer.plan(), unit)?)))
            .collect();
    json.name("fits");
    let mut inner = Json::object();
    for (unit, amount) in fits {
        inner.amount(unit.name(), amount, unit);
    }
    json.raw(&inner.end());
}

/// Writes the largest output cap that would be admitted now and, for work that never fits, ever.
fn forecast(answer: &Answer<'_, '_>, json: &mut Json) {
    let Some(Forecast { now, ever }) = answer.forecast() else { return };
    json.number("maxOutputTokens", now);
    if matches!(answer.decision(), Decision::Never(_)) {
        json.number("maxOutputTokensEver", ever);
    }
    if let Some(advice) = answer.advice() {
        json.text("advice", &advice);
    }
}

fn scopes(answer: &Answer<'_, '_>, json: &mut Json) {
    let all: smallvec::SmallVec<[Scope<'_, '_>; 8]> = answer.scopes().collect();
    json.list("scopes", &all, scope);
}

fn scope(scope: &Scope<'_, '_>, json: &mut Json) {
    let unit = scope.limit.unit();
    let mut inner = Json::inside(json);
    inner.text("name", scope.name());
    inner.text("window", scope.text);
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
    inner.close();
}

/// A JSON object that is being written.
pub(super) struct Json {
    out: Vec<u8>,
    first: bool,
}

/// An object inside a list, written into the same buffer.
struct NestedObject<'j> {
    json: &'j mut Json,
}

impl Json {
    pub(super) fn object() -> Self {
        let mut out = Vec::with_capacity(1_024);
        out.push(b'{');
        Self { out, first: true }
    }

    fn inside(json: &mut Self) -> NestedObject<'_> {
        json.out.push(b'{');
        json.first = true;
        NestedObject { json }
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.out.push(b'}');
        self.out
    }

    /// Writes the name of the next field: a constant, which needs no escapes.
    // Inlined into its callers, so that a name becomes a few stores instead of calls.
    #[inline(always)]
    fn name(&mut self, name: &str) {
        if !std::mem::replace(&mut self.first, false) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn string(&mut self, text: &str) {
        serde_json::to_writer(&mut self.out, text).expect("a buffer takes every write");
    }

    #[inline(always)]
    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        self.string(text);
    }

    #[inline(always)]
    fn boolean(&mut self, name: &str, value: bool) {
        self.name(name);
        self.raw(if value { b"true" } else { b"false" });
    }

    #[inline(always)]
    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        self.raw(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Writes an amount in its unit; money in dollars, as an exact decimal.
    #[inline(always)]
    pub(super) fn amount(&mut self, name: &str, value: u64, unit: Unit) {
        match (unit, Money::from_nanos(value)) {
            (Unit::Usd, Some(money)) => {
                self.name(name);
                self.raw(money.to_string().as_bytes());
            }
            _ => self.number(name, value),
        }
    }

    #[inline(always)]
    pub(super) fn instant(&mut self, name: &str, at: Timestamp) {
        self.name(name);
        self.raw(b"\"");
        self.raw(at.rfc3339().as_bytes());
        self.raw(b"\"");
    }

    /// Writes an object as the value of a field.
    pub(super) fn object_of(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        self.name(name);
        let inner = Self::inside(self);
        fill(inner.json);
        inner.close();
    }

    fn list<T>(&mut self, name: &str, items: &[T], mut each: impl FnMut(&T, &mut Self)) {
        self.name(name);
        self.raw(b"[");
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.raw(b",");
            }
            each(item, self);
        }
        self.raw(b"]");
        self.first = false;
    }
}

impl std::ops::Deref for NestedObject<'_> {
    type Target = Json;
    fn deref(&self) -> &Json {
        self.json
    }
}

impl std::ops::DerefMut for NestedObject<'_> {
    fn deref_mut(&mut self) -> &mut Json {
        self.json
    }
}

impl NestedObject<'_> {
    fn close(self) {
        self.json.out.push(b'}');
        self.json.first = false;
    }
}
