//! A line for machines.
//!
//! Written by hand into one buffer: money is a decimal that no float may touch, and strings are
//! escaped further than a serializer would.

use std::fmt;
use std::io::Write as _;

use sluicegate_core::limit::Unit;
use sluicegate_core::{Charge, Decision};

use super::escape::{quote, quote_display};
use super::line::{
    API_KEY, Context, Scope, at, foremost, level, reason, scopes, shadowed, written,
};
use super::sample::Share;
use crate::service::Decided;

/// Dimensions that have a field of their own.
const FIELDS: [&str; 5] = ["userId", "tenantId", "modelId", "modelTier", "clientType"];

/// Appends the line, without its end.
pub(super) fn write(decided: &Decided<'_, '_, '_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let mut line = Object::begin(out);
    line.quoted("timestamp", context.now);
    line.quoted("level", level(decided.decision));
    line.quoted("requestId", decided.plan.id.id);
    line.quoted("operation", decided.operation.name());
    who(decided, context, &mut line);
    outcome(decided, &mut line);
    let micros = decided.latency.as_micros();
    line.raw("latencyMs", format_args!("{}.{:03}", micros / 1_000, micros % 1_000));
    line.list("scopes", scopes(decided), |shown, out| scope(&shown, out));
    line.quoted("at", at(decided.decision));
    charged(decided, &mut line);
    if context.share != Share::ALL {
        line.raw("samplePpm", context.share.as_ppm());
    }
    if context.dropped > 0 {
        line.raw("dropped", context.dropped);
    }
    line.end();
}

/// Who asked. What is secret is nowhere but among the hashes.
fn who(decided: &Decided<'_, '_, '_>, context: &Context<'_>, line: &mut Object<'_>) {
    let (query, secrets) = (decided.query, context.secrets);
    for name in FIELDS.into_iter().filter(|name| !secrets.has(name)) {
        if let Some(value) = query.get(name) {
            line.text(name, &value);
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

fn outcome(decided: &Decided<'_, '_, '_>, line: &mut Object<'_>) {
    let decision = decided.decision;
    let foremost = foremost(decided);
    line.raw("allowed", decision.is_allowed());
    match decision {
        Decision::Allow(allow) if allow.replayed => line.raw("replayed", true),
        Decision::Allow(_) => {}
        Decision::Deny(_) | Decision::Never(_) => {
            if let Some(hit) = &foremost {
                line.text("reason", &reason(decision, hit.rule));
                line.text("scopeHit", &hit.rule);
            }
        }
    }
    let mut shadowed = shadowed(decided).peekable();
    if shadowed.peek().is_some() {
        line.list("shadowed", shadowed, quote);
    }
    if let Decision::Deny(deny) = decision {
        line.quoted("retryAt", deny.start);
    }
    if let Some(scope) = &foremost {
        line.raw("remaining", scope.remaining());
        if !matches!(decision, Decision::Never(_)) {
            line.quoted("windowResetAt", scope.reading.reset);
        }
    }
}

fn scope(scope: &Scope<'_>, out: &mut Vec<u8>) {
    let mut object = Object::begin(out);
    object.text("name", &scope.rule);
    object.raw("limit", scope.limit_amount());
    object.raw("count", scope.used());
    object.raw("remaining", scope.remaining());
    object.text("window", scope.limit);
    if scope.shadow {
        object.raw("shadow", true);
    }
    object.end();
}

/// What `verify` reads: which amounts were written on which counters, under which limits.
fn charged(decided: &Decided<'_, '_, '_>, line: &mut Object<'_>) {
    let Decision::Allow(allow) = decided.decision else {
        return;
    };
    if allow.start != allow.at {
        line.quoted("start", allow.start);
    }
    if let Some(until) = allow.until {
        line.quoted("until", until);
    }
    let mut written = written(decided).peekable();
    if written.peek().is_some() {
        line.list("charges", written, charge);
    }
}

fn charge(charge: &Charge<'_>, out: &mut Vec<u8>) {
    let mut object = Object::begin(out);
    object.text("key", &charge.key);
    object.list("limits", charge.limits().iter(), quote_display);
    object.raw("take", charge.take);
    let unit = match charge.unit() {
        Unit::Usd => "nano-USD",
        unit => unit.name(),
    };
    object.quoted("unit", unit);
    if charge.shadow() {
        object.raw("shadow", true);
    }
    object.end();
}

/// An object under way.
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

    /// The name of the next field: one of ours, which needs no escapes.
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

    /// A string.
    fn text(&mut self, name: &str, value: &impl fmt::Display) {
        self.name(name);
        quote_display(value, self.out);
    }

    /// A string of ours that needs no escapes: an instant, a hash, a word.
    fn quoted(&mut self, name: &str, value: impl fmt::Display) {
        self.raw(name, format_args!("\"{value}\""));
    }

    /// A number, or a boolean.
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

    /// An object of strings under names that clients chose, unless there are none.
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
