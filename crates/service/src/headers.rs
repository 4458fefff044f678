//! The rate-limit header fields of HTTP responses, in one place because the drafts still change.
//!
//! `RateLimit` and `RateLimit-Policy` are structured fields (RFC 9651) as of draft 11 of the IETF
//! httpapi working group: `q` is the quota, `w` its window in seconds, `r` the remaining amount,
//! and `t` the seconds until more is available.

use std::fmt::Write as _;

use sluicegate_core::limit::Unit;
use sluicegate_core::{Span, Timestamp};

use crate::answer::{Answer, Scope};

/// Name of the field with the seconds after which a denied request would fit.
pub const RETRY_AFTER: &str = "retry-after";

/// Names of all fields that [`each`] can write.
pub const NAMES: [&str; 6] = [LIMIT, REMAINING, RESET, RETRY_AFTER, RATE_LIMIT_POLICY, RATE_LIMIT];

const LIMIT: &str = "x-ratelimit-limit";
/// Name of the field with the amount that is left.
pub const REMAINING: &str = "x-ratelimit-remaining";
const RESET: &str = "x-ratelimit-reset";
/// Name of the field with the limits and what is left of each.
pub const RATE_LIMIT: &str = "ratelimit";
/// Name of the field with the limits.
pub const RATE_LIMIT_POLICY: &str = "ratelimit-policy";

/// The value of a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// A whole number.
    Number(u64),
    /// A structured field.
    Text(String),
}

/// Calls `write_field` with each rate-limit field of an answer.
pub fn each(answer: &Answer<'_, '_>, mut write_field: impl FnMut(&'static str, Field)) {
    if let Some(scope) = answer.hit().or_else(|| answer.tightest()) {
        write_field(LIMIT, Field::Number(scope.amount()));
        write_field(REMAINING, Field::Number(scope.remaining()));
        write_field(RESET, Field::Number(unix_seconds(scope.reading.reset)));
    }
    if let Some(wait) = answer.retry_after() {
        write_field(RETRY_AFTER, Field::Number(wait.as_secs_ceil().max(1)));
    }
    let (mut policies, mut limits) = (String::new(), String::new());
    for scope in answer.binding() {
        for list in [&mut policies, &mut limits] {
            match list.is_empty() {
                // Enough for most rules.
                true => list.reserve(128),
                false => list.push_str(", "),
            }
            name(&scope, list);
        }
        policy(&scope, &mut policies);
        limit(&scope, answer.at(), &mut limits);
    }
    if !policies.is_empty() {
        write_field(RATE_LIMIT_POLICY, Field::Text(policies));
        write_field(RATE_LIMIT, Field::Text(limits));
    }
}

fn policy(scope: &Scope<'_, '_>, out: &mut String) {
    parameter(";q=", scope.amount(), out);
    let window = scope.limit.window().as_secs_ceil();
    if window > 0 {
        parameter(";w=", window, out);
    }
    match scope.limit.unit() {
        Unit::Requests => {}
        Unit::Usd => out.push_str(";qu=\"nano-USD\""),
        Unit::Slots => out.push_str(";qu=\"concurrent-requests\""),
        unit => {
            let _ = write!(out, ";qu=\"{unit}\"");
        }
    }
}

fn limit(scope: &Scope<'_, '_>, now: Timestamp, out: &mut String) {
    parameter(";r=", scope.remaining(), out);
    parameter(";t=", scope.reading.reset.since(now).as_secs_ceil(), out);
}

fn parameter(name: &str, value: u64, out: &mut String) {
    out.push_str(name);
    out.push_str(itoa::Buffer::new().format(value));
}

/// Writes the name of the rule, and the window if the rule has several. The result is a quoted
/// string of RFC 9651; characters that it cannot contain are replaced.
fn name(scope: &Scope<'_, '_>, out: &mut String) {
    out.push('"');
    plain(scope.name(), out);
    if scope.charge.rule().limits.len() > 1 {
        out.push('-');
        plain(&scope.limit.to_string(), out);
    }
    out.push('"');
}

fn plain(text: &str, out: &mut String) {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        out.push_str(text);
    } else {
        let replaced = |c: char| if u8::try_from(c).is_ok_and(is_plain) { c } else { '_' };
        out.extend(text.chars().map(replaced));
    }
}

/// Whole Unix seconds, rounded up.
fn unix_seconds(at: Timestamp) -> u64 {
    Span::from_micros(at.as_micros()).as_secs_ceil()
}
