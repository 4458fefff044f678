//! The JSON format of the decision log.
//!
//! It writes into one buffer without serde: money is a decimal that must not pass through a float,
//! and strings are escaped more strictly than by a serializer.

use std::fmt;
use std::io::Write as _;

use sluicegate_core::limit::Unit;
use sluicegate_core::query::{Cost, Query};
use sluicegate_core::{Charge, Decision, Span, Timestamp};

use super::LogProcess;
use super::escape::{quote, quote_display};
use super::line::{self, API_KEY, Context, amount, decided_by, level, shadowed, shown_limit};
use super::sample::SampleShare;
use super::writer::{LineEnd, LostLines};
use crate::answer::{Answer, Scope};
use crate::service::{ChangeEvent, DecisionEvent, Effect, Operation, UnansweredEvent};

/// Dimensions with a separate field.
const FIELDS: [&str; 5] = ["userId", "tenantId", "modelId", "modelTier", "clientType"];

/// Appends the line of a decision, without its sequence numbers and its end.
pub(super) fn decision(
    event: &DecisionEvent<'_, '_, '_>,
    context: &Context<'_>,
    out: &mut Vec<u8>,
) {
    let answer = &event.answer;
    let mut line = Object::begin(out);
    line.instant("timestamp", context.now);
    line.word("level", level(answer));
    line.quoted("requestId", answer.plan().id.id);
    line.word("operation", event.operation.name());
    who(event.query, context, &mut line);
    outcome(answer, &mut line);
    latency(event.latency, &mut line);
    line.list("scopes", answer.scopes(), |shown, out| scope(&shown, out));
    line.instant("at", answer.at());
    charged(event, &mut line);
    end(line, context);
}

/// Appends the line of a later change, without its end.
pub(super) fn change(event: &ChangeEvent<'_, '_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let mut line = Object::begin(out);
    line.instant("timestamp", context.now);
    line.word("level", "INFO");
    line.quoted("requestId", event.id);
    line.word("operation", event.operation.name());
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
pub(super) fn unanswered(event: &UnansweredEvent, context: &Context<'_>, out: &mut Vec<u8>) {
    let mut line = Object::begin(out);
    line.instant("timestamp", context.now);
    line.word("level", "WARN");
    line.quoted("requestId", event.id);
    line.word("operation", event.operation.name());
    latency(event.latency, &mut line);
    line.word("effect", "unknown");
    end(line, context);
}

/// Returns the last line of a log.
pub(super) fn end_of_log(process: &LogProcess, now: Timestamp, lost: LostLines) -> Vec<u8> {
    let mut out = Vec::new();
    let mut line = Object::begin(&mut out);
    line.instant("timestamp", now);
    line.word("level", "INFO");
    line.word("operation", "end");
    if lost.unreported > 0 {
        line.number("dropped", lost.unreported);
    }
    line.number("droppedTotal", lost.total);
    line.of(process);
    out.extend_from_slice(LineEnd::numbered(process.numbers(false)).as_bytes());
    out
}

/// Returns the fields that identify the process; every line repeats them.
pub(super) fn process(node: &str, started: Timestamp) -> Vec<u8> {
    let mut out = Vec::new();
    let mut fields = Object { out: &mut out, empty: true };
    fields.string("node", node);
    fields.instant("started", started);
    out
}

fn latency(latency: Span, line: &mut Object<'_>) {
    let micros = latency.as_micros();
    line.number("latencyMs", micros / 1_000);
    let digit = |place: u64| b'0' + (micros / place % 10) as u8;
    line.out.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
}

fn end(mut line: Object<'_>, context: &Context<'_>) {
    if context.share != SampleShare::ALL {
        line.raw("samplePpm", context.share.as_ppm());
    }
    if context.dropped > 0 {
        line.raw("dropped", context.dropped);
    }
    line.of(context.process);
}

/// Writes the known parts of the cost, in the units of charges.
fn cost_of(cost: &Cost, line: &mut Object<'_>) {
    line.name("cost");
    let mut object = Object::begin(line.out);
    let units = [Unit::Requests, Unit::Tokens, Unit::InputTokens, Unit::OutputTokens, Unit::Usd];
    for unit in units {
        if let Some(amount) = cost.of(unit) {
            object.raw(unit_name(unit), amount);
        }
    }
    object.end();
}

/// Writes the dimensions of the query. Secret ones appear only as hashes.
fn who(query: &Query<'_>, context: &Context<'_>, line: &mut Object<'_>) {
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

fn outcome(answer: &Answer<'_, '_>, line: &mut Object<'_>) {
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
    let mut object = Object::begin(out);
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
fn charged(event: &DecisionEvent<'_, '_, '_>, line: &mut Object<'_>) {
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

fn charge(charge: &Charge<'_>, at: Option<Timestamp>, out: &mut Vec<u8>) {
    let mut object = Object::begin(out);
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
    if charge.rule().tally && !charge.rule().shadow {
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

/// A JSON object that is being written.
struct Object<'o> {
    out: &'o mut Vec<u8>,
    empty: bool,
}

impl<'o> Object<'o> {
    fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, empty: true }
    }

    fn end(self) {
        self.out.push(b'}');
    }

    /// Ends the object with the fields that identify the process. The writer adds the sequence
    /// numbers.
    fn of(mut self, process: &LogProcess) {
        self.comma();
        self.out.extend_from_slice(&process.name);
    }

    /// Writes the name of the next field: a constant, which needs no escapes.
    // Inlined into its callers, so that a name becomes a few stores instead of calls.
    #[inline(always)]
    fn name(&mut self, name: &str) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn comma(&mut self) {
        if !self.empty {
            self.out.push(b',');
        }
        self.empty = false;
    }

    /// Writes a string.
    #[inline(always)]
    fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        quote(value, self.out);
    }

    /// Writes a displayed value as a string.
    fn text(&mut self, name: &str, value: &impl fmt::Display) {
        self.name(name);
        quote_display(value, self.out);
    }

    /// Writes a displayed value that needs no escapes, such as an id or a hash.
    fn quoted(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        self.out.push(b'"');
        write!(self.out, "{value}").expect("a buffer takes every write");
        self.out.push(b'"');
    }

    /// Writes a time.
    #[inline(always)]
    fn instant(&mut self, name: &str, at: Timestamp) {
        self.name(name);
        self.out.push(b'"');
        self.out.extend_from_slice(at.rfc3339().as_bytes());
        self.out.push(b'"');
    }

    /// Writes a constant that needs no escapes.
    #[inline(always)]
    fn word(&mut self, name: &str, word: &str) {
        self.name(name);
        self.out.push(b'"');
        self.out.extend_from_slice(word.as_bytes());
        self.out.push(b'"');
    }

    #[inline(always)]
    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Writes an amount in its unit; money in dollars.
    #[inline(always)]
    fn amount(&mut self, name: &str, value: u64, unit: Unit) {
        match unit {
            Unit::Usd => self.raw(name, amount(value, unit)),
            _ => self.number(name, value),
        }
    }

    #[inline(always)]
    fn boolean(&mut self, name: &str, value: bool) {
        self.name(name);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// Writes a number or a boolean.
    fn raw(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        write!(self.out, "{value}").expect("a buffer takes every write");
    }

    fn list<T>(
        &mut self,
        name: &str,
        items: impl Iterator<Item = T>,
        each: impl Fn(T, &mut Vec<u8>),
    ) {
        self.name(name);
        self.out.push(b'[');
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            each(item, self.out);
        }
        self.out.push(b']');
    }

    /// Writes an object of strings under names that clients chose; omitted if empty.
    fn pairs<'n, V: fmt::Display>(
        &mut self,
        name: &str,
        pairs: impl Iterator<Item = (&'n str, V)>,
    ) {
        let mut pairs = pairs.peekable();
        if pairs.peek().is_none() {
            return;
        }
        self.name(name);
        let mut object = Object::begin(self.out);
        for (name, value) in pairs {
            object.comma();
            quote(name, object.out);
            object.out.push(b':');
            quote_display(&value, object.out);
        }
        object.end();
    }
}
