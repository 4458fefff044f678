//! A line for people at a terminal: the essentials.
//!
//! ```text
//! 2027-01-15T08:00:00Z INFO acquire allowed userId=u1 | USER 56 of 100/h | 0.100ms 00…1f
//! 2027-01-15T08:00:00Z WARN acquire HIT_USER_LIMIT until 2027-01-15T08:01:00Z userId=u1 | …
//! ```

use std::fmt;
use std::io::Write as _;

use sluicegate_core::Decision;

use super::escape::word;
use super::line::{Context, foremost, level, reason, scopes, shadowed};
use crate::service::Decided;

/// Appends the line, without its end.
pub(super) fn write(decided: &Decided<'_, '_, '_>, context: &Context<'_>, out: &mut Vec<u8>) {
    let decision = decided.decision;
    plain(out, format_args!("{} {}", context.now, level(decision)));
    plain(out, format_args!(" {} ", decided.operation.name()));
    match (decision, foremost(decided)) {
        (Decision::Allow(allow), _) if allow.replayed => plain(out, "allowed before"),
        (Decision::Allow(_), _) => plain(out, "allowed"),
        (Decision::Deny(_) | Decision::Never(_), Some(hit)) => {
            word(&reason(decision, hit.rule).to_string(), out);
        }
        (Decision::Deny(_) | Decision::Never(_), None) => plain(out, "denied"),
    }
    if let Decision::Deny(deny) = decision {
        plain(out, format_args!(" until {}", deny.start));
    }
    for rule in shadowed(decided) {
        plain(out, " shadowed by ");
        word(rule, out);
    }
    for (name, value) in decided.query.dimensions() {
        plain(out, " ");
        word(name, out);
        if context.secrets.has(name) {
            // A value that begins like this would be in quotes.
            plain(out, format_args!("=#{}", context.secrets.hash(value)));
        } else {
            plain(out, "=");
            word(value, out);
        }
    }
    for scope in scopes(decided) {
        plain(out, " | ");
        word(scope.rule, out);
        plain(out, format_args!(" {} of {}", scope.used(), scope.limit));
    }
    let micros = decided.latency.as_micros();
    plain(out, format_args!(" | {}.{:03}ms", micros / 1_000, micros % 1_000));
    plain(out, format_args!(" {}", decided.plan.id.id));
    if context.dropped > 0 {
        plain(out, format_args!(" | {} lines lost before this one", context.dropped));
    }
}

/// Text of ours.
fn plain(out: &mut Vec<u8>, text: impl fmt::Display) {
    write!(out, "{text}").expect("a buffer takes every write");
}
