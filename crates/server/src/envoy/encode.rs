//! Encodes a decision as Envoy's response, with a status per descriptor.

use sluicegate_core::{Decision, Span};

use super::{EnvoyClosedReply, EnvoyOptions};
use crate::answer::Answer;
use crate::grpc::proto::envoy::config::core::v3::HeaderValue;
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use crate::headers::{self, Field};
use crate::refusal::{Refusal, RefusalKind};

pub(super) const OK: Code = Code::Ok;

/// Encodes the decision: one status per query of the plan, in their order, and the overall code.
pub(super) fn decision(
    answer: &Answer<'_, '_>,
    options: EnvoyOptions,
) -> Result<RateLimitResponse, Refusal> {
    if matches!(answer.decision(), Decision::Closed(_))
        && options.closed == EnvoyClosedReply::Unavailable
    {
        return Err(Refusal::new(RefusalKind::Unavailable, "the store does not answer"));
    }
    let statuses: Vec<_> =
        (0..answer.plan().queries()).map(|query| status(answer, query)).collect();
    let overall = if answer.is_allowed() { Code::Ok } else { Code::OverLimit };
    let mut response_headers_to_add = Vec::new();
    if options.headers {
        response_headers_to_add.reserve_exact(6);
        headers::each(answer, |name, field| {
            let value = match field {
                Field::Number(number) => itoa::Buffer::new().format(number).to_owned(),
                Field::Text(text) => text,
            };
            let key = name.to_owned();
            response_headers_to_add.push(HeaderValue { key, value, raw_value: Vec::new() });
        });
    }
    Ok(RateLimitResponse {
        overall_code: overall.into(),
        statuses,
        response_headers_to_add,
        request_headers_to_add: Vec::new(),
    })
}

/// Returns the response to a call with more hits than can be counted: every descriptor is over its
/// limit.
pub(super) fn too_many(descriptors: usize) -> RateLimitResponse {
    let code = Code::OverLimit.into();
    let status = DescriptorStatus { code, ..DescriptorStatus::default() };
    let statuses = vec![status; descriptors];
    RateLimitResponse { overall_code: code, statuses, ..RateLimitResponse::default() }
}

/// Returns the status of a descriptor whose hits were refunded.
pub(super) fn refund(answer: &Answer<'_, '_>) -> DescriptorStatus {
    let mut status = status(answer, 0);
    status.set_code(Code::Ok);
    status
}

/// Returns the status of a descriptor whose usage is unknown.
pub(super) fn unknown() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() }
}

/// Returns the status of the query with this number: by the limit that denies it, or else by the
/// limit with the least remaining.
fn status(answer: &Answer<'_, '_>, query: usize) -> DescriptorStatus {
    let part = answer.plan().query_charges(query);
    let scopes = answer.scopes().filter(|scope| part.charges.contains(&scope.charge_index()));
    let shown = scopes.min_by_key(|scope| (!answer.is_over(scope), scope.remaining()));
    let Some(scope) = shown else {
        // The usage is unknown, and the outage policy denies.
        let is_closed = matches!(answer.decision(), Decision::Closed(_));
        if is_closed && !part.charges.is_empty() {
            let code = Code::OverLimit.into();
            return DescriptorStatus { code, ..DescriptorStatus::default() };
        }
        // No limit applies: no rule matches, or the matching rule is unlimited.
        let limit_remaining = if part.unlimited.is_some() { u32::MAX } else { 0 };
        return DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining,
            ..DescriptorStatus::default()
        };
    };
    let code = if answer.is_over(&scope) { Code::OverLimit } else { Code::Ok };
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

/// Returns the unit with the length of a window, if one exists.
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
