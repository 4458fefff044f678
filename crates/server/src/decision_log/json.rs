//! The JSON format of the decision log.

use sluicegate_config::SampleRate;
use sluicegate_core::limit::Unit;
use sluicegate_core::plan::Plan;
use sluicegate_core::query::{Cost, Query};
use sluicegate_core::time::Clock;
use sluicegate_core::{Charge, Decision, Id, Span, Timestamp};
use sluicegate_service::trace::TraceId;

use super::LogProcess;
use super::line::{self, API_KEY, Context, decided_by, level, shadowed, shown_limit};
use super::writer::{LineEnd, LostLines};
use crate::answer::{Answer, Scope};
use crate::json::{JsonObject, quote, quote_display};
use crate::service::{
    ChangeEvent, DecisionEvent, Effect, Operation, UnansweredEvent, UnconfirmedCharges,
};

/// Dimensions with a separate field.
const FIELDS: [&str; 5] = ["userId", "tenantId", "modelId", "modelTier", "clientType"];

/// Appends the line of a decision, without its sequence numbers and its end.
pub(super) fn decision(
    event: &DecisionEvent<'_, '_, '_>,
    context: &Context<'_>,
    out: &mut Vec<u8>,
) {
    let answer = &event.answer;
    let mut line = begin(level(answer), answer.plan().id.id, event.operation, context, out);
    trace(event.trace.map(|trace| trace.context.trace), &mut line);
    who(event.query, context, &mut line);
    outcome(answer, &mut line);
    latency(event.latency, &mut line);
    line.list("scopes", answer.scopes(), |shown, out| scope(&shown, out));
    line.instant("at", answer.at());
    charged(event, &mut line);
    if answer.outage().is_some() {
        unconfirmed(answer.plan(), &mut line);
    }
    end(line, context);
}

/// Appends the line of a later change, without its end.
pub(super) fn change(event: &ChangeEvent<'_, '_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let mut line = begin("INFO", event.id, event.operation, context, out);
    trace(event.trace.map(|trace| trace.context.trace), &mut line);
    latency(event.latency, &mut line);
    if let Some(at) = event.at {
        line.instant("at", at);
    }
    match event.effect {
        Effect::Ended { replayed, claimant, cost } => {
            if replayed {
                line.raw("replayed", true);
            }
            if let Some(claimant) = claimant {
                line.quoted("claimant", claimant);
            }
            if let Some(actual) = cost {
                cost_of(actual, &mut line);
            }
        }
        Effect::Renewed { until } => line.instant("until", until),
        Effect::Early { start } => {
            line.word("effect", "early");
            line.instant("start", start);
        }
        Effect::Rebooked { start, plan } => {
            line.word("effect", "rebooked");
            line.instant("start", start);
            let booked = plan.charges().iter().filter(|charge| charge.is_booked());
            line.list("charges", booked, |one, out| charge(one, None, out));
        }
        Effect::Spent => line.word("effect", "spent"),
        Effect::Refunded { plan } => {
            line.list("charges", plan.charges().iter(), |one, out| charge(one, None, out));
        }
        Effect::Reset { plan } => {
            line.list("keys", plan.charges().iter(), |charge, out| quote_display(&charge.key, out));
        }
    }
    end(line, context);
}

/// Appends the line of a store call with an unknown outcome, without its end.
pub(super) fn unanswered(
    event: &UnansweredEvent<'_, '_>,
    context: &Context<'_>,
    out: &mut Vec<u8>,
) {
    let mut line = begin("WARN", event.id, event.operation, context, out);
    trace(event.trace, &mut line);
    latency(event.latency, &mut line);
    line.word("effect", "unknown");
    match event.charges {
        UnconfirmedCharges::None => {}
        UnconfirmedCharges::Plan(plan) => unconfirmed(plan, &mut line),
        UnconfirmedCharges::Debt(cost) => cost_of(cost, &mut line),
    }
    end(line, context);
}

/// Returns the last line of a log.
pub(super) fn end_of_log(process: &LogProcess, clock: &dyn Clock, lost: LostLines) -> Vec<u8> {
    let mut out = Vec::new();
    let mut line = JsonObject::begin(&mut out);
    line.instant("timestamp", clock.now());
    line.word("level", "INFO");
    line.word("operation", "end");
    if lost.unreported > 0 {
        line.number("dropped", lost.unreported);
    }
    line.number("droppedTotal", lost.total);
    end_with(line, process);
    out.extend_from_slice(LineEnd::numbered(process.numbers(false, clock)).as_bytes());
    out
}

/// Returns the fields that identify the process; every line repeats them.
pub(super) fn process(node: &str, started: Timestamp) -> Vec<u8> {
    let mut out = Vec::new();
    let mut fields = JsonObject::inside(&mut out);
    fields.string("node", node);
    fields.instant("started", started);
    out
}

fn begin<'o>(
    level: &str,
    id: Id,
    operation: Operation,
    context: &Context<'_>,
    out: &'o mut Vec<u8>,
) -> JsonObject<'o> {
    let mut line = JsonObject::begin(out);
    line.instant("timestamp", context.now);
    line.word("level", level);
    line.quoted("requestId", id);
    line.word("operation", operation.name());
    line
}

fn trace(trace: Option<TraceId>, line: &mut JsonObject<'_>) {
    if let Some(trace) = trace {
        line.quoted("traceId", trace);
    }
}

fn latency(latency: Span, line: &mut JsonObject<'_>) {
    let micros = latency.as_micros();
    line.number("latencyMs", micros / 1_000);
    let digit = |place: u64| b'0' + (micros / place % 10) as u8;
    line.out.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
}

fn end(mut line: JsonObject<'_>, context: &Context<'_>) {
    if context.share != SampleRate::ALL {
        line.raw("samplePpm", context.share.parts_per_million());
    }
    if context.dropped > 0 {
        line.raw("dropped", context.dropped);
    }
    end_with(line, context.process);
}

/// Ends a line with the fields that identify the process. The writer adds the sequence numbers.
fn end_with(mut line: JsonObject<'_>, process: &LogProcess) {
    line.comma();
    line.out.extend_from_slice(&process.name);
}

/// Writes the known parts of the cost, in the units of charges.
fn cost_of(cost: &Cost, line: &mut JsonObject<'_>) {
    let units = [Unit::Requests, Unit::Tokens, Unit::InputTokens, Unit::OutputTokens, Unit::Usd];
    line.object("cost", |object| {
        for unit in units {
            if let Some(amount) = cost.of(unit) {
                object.raw(unit_name(unit), amount);
            }
        }
    });
}

/// Writes the dimensions of the query. Secret ones appear only as hashes.
fn who(query: &Query<'_>, context: &Context<'_>, line: &mut JsonObject<'_>) {
    let secrets = context.secrets;
    for name in FIELDS.into_iter().filter(|name| !secrets.has(name)) {
        if let Some(value) = query.get(name) {
            line.string(name, value);
        }
    }
    if let Some(value) = query.get(API_KEY) {
        line.quoted("apiKeyId", secrets.hash(value));
    }
    let shown = |&(name, _): &(&str, &str)| !FIELDS.contains(&name) && !secrets.has(name);
    line.pairs("dimensions", query.dimensions().filter(shown));
    let hashed = |&(name, _): &(&str, &str)| name != API_KEY && secrets.has(name);
    let hashed = query.dimensions().filter(hashed);
    line.pairs("hashed", hashed.map(|(name, value)| (name, secrets.hash(value))));
}

fn outcome(answer: &Answer<'_, '_>, line: &mut JsonObject<'_>) {
    let decision = answer.decision();
    line.boolean("allowed", answer.is_allowed());
    if let Decision::Allow(allow) = decision {
        line.word("decided", decided_by(answer, allow.replayed));
        if allow.replayed {
            line.raw("replayed", true);
        }
    }
    if let Some(policy) = answer.outage() {
        line.quoted("outage", policy.word());
    }
    if let Some(reason) = answer.reason() {
        line.text("reason", &reason);
    }
    if let Some(hit) = answer.hit() {
        line.string("scopeHit", hit.name());
    }
    let mut shadowed = shadowed(answer).peekable();
    if shadowed.peek().is_some() {
        line.list("shadowed", shadowed, quote);
    }
    if let Decision::Deny(deny) = decision {
        line.instant("retryAt", deny.start);
    }
    if let Some(scope) = shown_limit(answer) {
        line.amount("remaining", scope.remaining(), scope.limit.unit());
        if !matches!(decision, Decision::Never(_)) {
            line.instant("windowResetAt", scope.reading.reset);
        }
    }
}

fn scope(scope: &Scope<'_, '_>, out: &mut Vec<u8>) {
    let unit = scope.limit.unit();
    let mut object = JsonObject::begin(out);
    object.string("name", scope.name());
    object.amount("limit", scope.amount(), unit);
    object.amount("count", scope.reading.used, unit);
    object.amount("remaining", scope.remaining(), unit);
    object.string("window", scope.text);
    if scope.charge.shadow() {
        object.raw("shadow", true);
    }
    if scope.reading.shared {
        object.raw("shared", true);
    }
    object.end();
}

/// Writes the amounts charged on each counter with their limits, which `verify` reads.
fn charged(event: &DecisionEvent<'_, '_, '_>, line: &mut JsonObject<'_>) {
    let Decision::Allow(allow) = event.answer.decision() else {
        return;
    };
    if allow.start != allow.at {
        line.instant("start", allow.start);
    }
    if let Some(until) = allow.until {
        line.instant("until", until);
    }
    let plan = event.answer.plan();
    if plan.lead.is_some() && event.operation == Operation::Acquire {
        line.instant("latest", allow.start + plan.slack);
    }
    if let Some(claimant) = event.claimant {
        line.quoted("claimant", claimant);
    }
    if event.operation == Operation::Peek {
        return;
    }
    let mut charges = line::charged(event).peekable();
    let uncharged = charges.peek().is_none();
    line.list("charges", charges, |(place, one), out| {
        charge(one, allow.charged_at.get(place).copied(), out);
    });
    if uncharged {
        let leases = event.answer.plan().charges().iter().any(|charge| !charge.is_gate());
        let why = if leases { "charged when claimed" } else { "no limit applies" };
        line.word("uncharged", why);
    }
}

/// Writes the charges that the store may have made without an answer.
fn unconfirmed(plan: &Plan<'_>, line: &mut JsonObject<'_>) {
    let charges = plan.charges().iter().filter(|charge| charge.take > 0);
    line.list("unconfirmed", charges, |charge, out| {
        let mut object = JsonObject::begin(out);
        object.string("key", charge.key.as_str());
        object.number("take", charge.take);
        object.end();
    });
}

fn charge(charge: &Charge<'_>, at: Option<Timestamp>, out: &mut Vec<u8>) {
    let mut object = JsonObject::begin(out);
    object.string("key", charge.key.as_str());
    object.list("limits", charge.texts().iter(), |text, out| quote(text, out));
    object.number("take", charge.take);
    if charge.need != charge.take {
        object.number("need", charge.need);
    }
    object.word("unit", unit_name(charge.unit()));
    if charge.unit() == Unit::Slots {
        object.quoted("lease", charge.rule().lease);
    }
    if charge.shadow() {
        object.raw("shadow", true);
    }
    if charge.rule().counts_only && !charge.rule().shadow {
        object.raw("tally", true);
    }
    if let Some(at) = at {
        object.instant("at", at);
    }
    object.end();
}

/// Returns the name of the unit; money is in whole nano-dollars here.
const fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Usd => "nano-USD",
        unit => unit.name(),
    }
}
