//! From a decision to the statuses of descriptors.

use axum::http::HeaderMap;
use sluicegate_core::rule::Mode;
use sluicegate_core::{Decision, Span};

use super::{Closed, Options};
use crate::answer::{Answer, Scope};
use crate::grpc::proto::envoy::config::core::v3::HeaderValue;
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use crate::headers;
use crate::refusal::{Kind, Refusal};

pub(super) const OK: Code = Code::Ok;

/// One status per query of the plan, in their order, and the code of all together.
pub(super) fn decision(
    answer: &Answer<'_, '_>,
    options: Options,
) -> Result<RateLimitResponse, Refusal> {
    if matches!(answer.decision(), Decision::Closed(_)) && options.closed == Closed::Unavailable {
        return Err(Refusal::new(Kind::Unavailable, "the store does not answer"));
    }
    let statuses: Vec<_> =
        (0..answer.plan().queries()).map(|query| status(answer, query)).collect();
    let over = |status: &DescriptorStatus| status.code() == Code::OverLimit;
    let overall = match answer.decision() {
        // Some rules count what is over their limit, and leave the verdict to us.
        Decision::Allow(_) if !statuses.iter().any(over) => Code::Ok,
        _ => Code::OverLimit,
    };
    let mut response_headers_to_add = Vec::new();
    if options.headers {
        let mut headers = HeaderMap::new();
        headers::write(answer, &mut headers);
        response_headers_to_add.extend(headers.iter().map(|(name, value)| HeaderValue {
            key: name.as_str().to_owned(),
            value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
            raw_value: Vec::new(),
        }));
    }
    Ok(RateLimitResponse {
        overall_code: overall.into(),
        statuses,
        response_headers_to_add,
        request_headers_to_add: Vec::new(),
    })
}

/// The status of a descriptor whose hits were given back.
pub(super) fn refund(answer: &Answer<'_, '_>) -> DescriptorStatus {
    let mut status = status(answer, 0);
    status.set_code(Code::Ok);
    status
}

/// The status of a descriptor of which nothing is known.
pub(super) fn unknown() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }
}

/// How the query with this number stands: by the limit that stands in its way, or else by the one
/// that leaves least.
fn status(answer: &Answer<'_, '_>, query: usize) -> DescriptorStatus {
    let part = answer.plan().part(query);
    let scopes = answer.scopes().filter(|scope| part.charges.contains(&scope.place()));
    let told = scopes.min_by_key(|scope| (!is_over(answer, scope), scope.remaining()));
    let Some(scope) = told else {
        // Nobody knows what limits show, and all that there are refuse.
        let is_closed = matches!(answer.decision(), Decision::Closed(_));
        if is_closed && !part.charges.is_empty() {
            let code = Code::OverLimit.into();
            return DescriptorStatus { code, ..DescriptorStatus::default() };
        }
        // Nothing limits it: because no rule matches, or because one says so.
        let limit_remaining = if part.unlimited.is_some() { u32::MAX } else { 0 };
        return DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining,
            ..DescriptorStatus::default()
        };
    };
    let code = if is_over(answer, &scope) { Code::OverLimit } else { Code::Ok };
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: saturated(scope.amount()),
            unit: unit(scope.limit.window()).into(),
            name: scope.name().to_owned(),
        }),
        limit_remaining: saturated(scope.remaining()),
        duration_until_reset: Some(duration(scope.reading.reset.since(answer.at()))),
    }
}

/// Whether a limit is a reason to say no.
fn is_over(answer: &Answer<'_, '_>, scope: &Scope<'_, '_>) -> bool {
    let charge = scope.charge;
    if charge.rule().shadow {
        return false;
    }
    match answer.decision() {
        Decision::Allow(allow) => {
            let is_this = |&place: &u16| usize::from(place) == scope.place();
            let did_not_fit = charge.take > 0 && allow.shadowed.iter().any(is_this);
            // Hits that were counted although there was room for a part of them only: they may
            // tell of work that is done, and must count; if they ask, the answer is no.
            let is_exceeded =
                charge.rule().mode == Mode::Optimistic && scope.reading.used > scope.amount();
            charge.rule().tally && did_not_fit || is_exceeded
        }
        Decision::Deny(_) | Decision::Never(_) | Decision::Closed(_) => {
            let hit = answer.hit().is_some_and(|hit| hit.place() == scope.place());
            hit || scope.remaining() < charge.need
        }
    }
}

/// The unit that is as long as a window, if one is.
fn unit(window: Span) -> Unit {
    const DAY: u64 = 86_400 * 1_000_000;
    match (window.as_micros() / DAY, window.as_micros() % DAY) {
        (0, 1_000_000) => Unit::Second,
        (0, 60_000_000) => Unit::Minute,
        (0, 3_600_000_000) => Unit::Hour,
        (1, 0) => Unit::Day,
        (7, 0) => Unit::Week,
        (30, 0) => Unit::Month,
        (365, 0) => Unit::Year,
        _ => Unit::Unknown,
    }
}

fn duration(span: Span) -> prost_types::Duration {
    let micros = span.as_micros();
    prost_types::Duration {
        seconds: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
        nanos: i32::try_from(micros % 1_000_000 * 1_000).unwrap_or(0),
    }
}

fn saturated(amount: u64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}
