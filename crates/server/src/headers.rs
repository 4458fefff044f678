//! The rate-limit fields of HTTP answers, in one place because their drafts still change.
//!
//! `RateLimit` and `RateLimit-Policy` are structured fields (RFC 9651) as of draft 11 of the IETF's
//! httpapi working group: `q` is the quota and `w` its window in seconds, `r` what is left and `t`
//! the seconds until more is.

use std::fmt::Write as _;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use sluicegate_core::limit::Unit;
use sluicegate_core::{Span, Timestamp};

use crate::answer::{Answer, Scope};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Adds the fields that tell a client where it stands.
pub fn write(answer: &Answer<'_, '_>, headers: &mut HeaderMap) {
    if let Some(scope) = answer.hit().or_else(|| answer.tightest()) {
        headers.insert(LIMIT, HeaderValue::from(scope.amount()));
        headers.insert(REMAINING, HeaderValue::from(scope.remaining()));
        headers.insert(RESET, HeaderValue::from(unix_seconds(scope.reading.reset)));
    }
    if let Some(wait) = answer.retry_after() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs_ceil().max(1)));
    }
    let (mut policies, mut limits) = (String::new(), String::new());
    for scope in answer.scopes().filter(|scope| !scope.charge.shadow()) {
        if !policies.is_empty() {
            policies.push_str(", ");
            limits.push_str(", ");
        }
        policy(&scope, &mut policies);
        limit(&scope, answer.at(), &mut limits);
    }
    for (name, text) in [(RATE_LIMIT_POLICY, policies), (RATE_LIMIT, limits)] {
        match HeaderValue::try_from(text) {
            Ok(value) if !value.is_empty() => {
                headers.insert(name, value);
            }
            _ => {}
        }
    }
}

fn policy(scope: &Scope<'_, '_>, out: &mut String) {
    name(scope, out);
    let _ = write!(out, ";q={}", scope.amount());
    let window = scope.limit.window().as_secs_ceil();
    if window > 0 {
        let _ = write!(out, ";w={window}");
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
    name(scope, out);
    let reset = scope.reading.reset.since(now).as_secs_ceil();
    let _ = write!(out, ";r={};t={reset}", scope.remaining());
}

/// The rule, and the window where a rule has several. Quoted, as the strings of RFC 9651 are:
/// what they can't hold is replaced.
fn name(scope: &Scope<'_, '_>, out: &mut String) {
    out.push('"');
    let plain = |c: char| if c.is_ascii_graphic() && c != '"' && c != '\\' { c } else { '_' };
    out.extend(scope.name().chars().map(plain));
    if scope.charge.rule().limits.len() > 1 {
        out.push('-');
        out.extend(scope.limit.to_string().chars().map(plain));
    }
    out.push('"');
}

/// Whole Unix seconds, rounded up.
fn unix_seconds(at: Timestamp) -> u64 {
    Span::from_micros(at.as_micros()).as_secs_ceil()
}
