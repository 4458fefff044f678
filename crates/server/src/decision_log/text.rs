//! The text format of the decision log: a short line for people at a terminal.
//!
//! ```text
//! 2027-01-15T08:00:00Z INFO acquire allowed userId=u1 | USER 56 of 100/h | 0.100ms 00…1f
//! 2027-01-15T08:00:00Z WARN acquire HIT_USER_LIMIT until 2027-01-15T08:01:00Z userId=u1 | …
//! ```

use std::fmt;
use std::io::Write as _;

use sluicegate_core::{Decision, Id, Span};
use sluicegate_service::trace::TraceId;

use super::line::{Context, amount, level, shadowed};
use crate::json::word;
use crate::service::{ChangeEvent, DecisionEvent, Effect, UnansweredEvent};

/// Appends the line of a decision, without its end.
pub(super) fn decision(
    event: &DecisionEvent<'_, '_, '_>,
    context: &Context<'_>,
    out: &mut Vec<u8>,
) {
    let answer = &event.answer;
    let decision = answer.decision();
    plain(out, format_args!("{} {}", context.now, level(answer)));
    plain(out, format_args!(" {} ", event.operation.name()));
    match (decision, answer.reason()) {
        (Decision::Allow(allow), _) if allow.replayed => plain(out, "allowed before"),
        (Decision::Allow(_), None) => plain(out, "allowed"),
        (_, Some(reason)) => word(&reason.to_string(), out),
        (_, None) => plain(out, "denied"),
    }
    if let Some(policy) = answer.outage() {
        plain(out, format_args!(" without the store ({})", policy.word()));
    }
    if let Decision::Deny(deny) = decision {
        plain(out, format_args!(" until {}", deny.start));
    }
    for rule in shadowed(answer) {
        plain(out, " shadowed by ");
        word(rule, out);
    }
    for (name, value) in event.query.dimensions() {
        plain(out, " ");
        word(name, out);
        if context.secrets.has(name) {
            // Unambiguous: a plain value that begins with `#` is quoted.
            plain(out, format_args!("=#{}", context.secrets.hash(value)));
        } else {
            plain(out, "=");
            word(value, out);
        }
    }
    for scope in answer.scopes() {
        plain(out, " | ");
        word(scope.name(), out);
        let used = amount(scope.reading.used, scope.limit.unit());
        plain(out, format_args!(" {used} of {}", scope.limit));
    }
    let trace = event.trace.map(|trace| trace.context.trace);
    end(event.latency, answer.plan().id.id, trace, context, out);
}

/// Appends the line of a later change, without its end.
pub(super) fn change(event: &ChangeEvent<'_, '_>, context: &Context<'_>, out: &mut Vec<u8>) {
    plain(out, format_args!("{} INFO {}", context.now, event.operation.name()));
    match event.effect {
        Effect::Ended { replayed: true, .. } => plain(out, " done before"),
        Effect::Ended { replayed: false, .. } => plain(out, " done"),
        Effect::Renewed { until } => plain(out, format_args!(" until {until}")),
        Effect::Early { start } => plain(out, format_args!(" too early, good from {start}")),
        Effect::Rebooked { start, .. } => plain(out, format_args!(" late, booked for {start}")),
        Effect::Spent => plain(out, " spent"),
        Effect::Refunded { plan } | Effect::Reset { plan } => {
            for charge in plan.charges() {
                plain(out, " ");
                word(&charge.key.to_string(), out);
            }
        }
    }
    let trace = event.trace.map(|trace| trace.context.trace);
    end(event.latency, event.id, trace, context, out);
}

/// Appends the line of a store call with an unknown outcome, without its end.
pub(super) fn unanswered(
    event: &UnansweredEvent<'_, '_>,
    context: &Context<'_>,
    out: &mut Vec<u8>,
) {
    let operation = event.operation.name();
    plain(out, format_args!("{} WARN {operation} without an answer of the store", context.now));
    end(event.latency, event.id, event.trace, context, out);
}

fn end(latency: Span, id: Id, trace: Option<TraceId>, context: &Context<'_>, out: &mut Vec<u8>) {
    let micros = latency.as_micros();
    plain(out, format_args!(" | {}.{:03}ms {id}", micros / 1_000, micros % 1_000));
    if let Some(trace) = trace {
        plain(out, format_args!(" trace {trace}"));
    }
    if context.dropped > 0 {
        plain(out, format_args!(" | {} lines lost before this one", context.dropped));
    }
}

/// Appends text that needs no escapes.
fn plain(out: &mut Vec<u8>, text: impl fmt::Display) {
    write!(out, "{text}").expect("a buffer takes every write");
}
