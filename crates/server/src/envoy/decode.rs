//! Decodes Envoy's descriptors into queries.
//!
//! The operator chooses the descriptors, but clients choose the values in them. So no value is a
//! reason to refuse: if Envoy lets requests through when it gets an error, an unusual header would
//! bypass the limit.

use sluicegate_core::descriptor::{self, DOMAIN, SHAPE};
use sluicegate_core::limit::{Amount, Rate, Unit, Window};
use sluicegate_core::query::{Cost, DIMENSIONS_MAX, Query, RequestId, RuleScope};
use sluicegate_core::rule::InlineRule;
use sluicegate_core::time::EXACT_MAX;
use sluicegate_core::{Limit, Span};

use crate::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::grpc::proto::envoy::r#type::v3::RateLimitUnit;
use crate::refusal::Refusal;

/// Maximum number of descriptors in one call.
const DESCRIPTORS_MAX: usize = 100;
/// Name of an Envoy override in denials.
const OVERRIDE: &str = "override";

/// The descriptors of a call, as charges and refunds.
pub(super) struct DecodedCall<'r> {
    /// Queries to charge together, in their order.
    pub(super) charges: Vec<Query<'r>>,
    /// Queries to refund, each with its position among all descriptors.
    pub(super) refunds: Vec<(usize, Query<'r>)>,
}

impl<'r> DecodedCall<'r> {
    pub(super) fn read(
        request: &'r RateLimitRequest,
        id: impl Fn() -> RequestId,
    ) -> Result<Self, Refusal> {
        if request.domain.is_empty() {
            return Err(Refusal::field("domain", "is empty: set the domain of the limits"));
        }
        match request.descriptors.len() {
            0 => return Err(Refusal::field("descriptors", "is empty: send at least one")),
            1..=DESCRIPTORS_MAX => {}
            more => {
                let right =
                    format!("has {more} descriptors, but at most {DESCRIPTORS_MAX} are allowed");
                return Err(Refusal::field("descriptors", right));
            }
        }
        let charges = Vec::with_capacity(request.descriptors.len());
        let mut call = Self { charges, refunds: Vec::new() };
        for (place, descriptor) in request.descriptors.iter().enumerate() {
            let query = query(request, descriptor, id());
            let query =
                query.map_err(|refusal| refusal.inside(&format!("descriptors[{place}]")))?;
            if descriptor.is_negative_hits {
                call.refunds.push((place, query));
            } else {
                call.charges.push(query);
            }
        }
        Ok(call)
    }
}

/// Converts a descriptor into a query.
fn query<'r>(
    request: &'r RateLimitRequest,
    descriptor: &'r RateLimitDescriptor,
    id: RequestId,
) -> Result<Query<'r>, Refusal> {
    let entries = &descriptor.entries;
    if entries.len() > DIMENSIONS_MAX - 2 {
        let right = format!("has more than {} entries", DIMENSIONS_MAX - 2);
        return Err(Refusal::field("entries", right));
    }
    let keys = || entries.iter().map(|entry| entry.key.as_str());
    let mut query = Query::new(id);
    query.rule_scope = RuleScope::View;
    query.insert_any(DOMAIN, request.domain.as_str());
    query.insert_any(SHAPE, descriptor::shape(keys()));
    for (place, Entry { key, value }) in entries.iter().enumerate() {
        if key.is_empty() {
            return Err(Refusal::field(format!("entries[{place}].key"), "is empty: set it"));
        }
        query.insert_any(descriptor::dimension(keys().take(place), key), value.as_str());
    }
    let hits = match descriptor.hits_addend {
        Some(hits) => hits,
        None => u64::from(request.hits_addend.max(1)),
    };
    query.cost = Cost { requests: Some(hits.min(EXACT_MAX)), ..Cost::default() };
    if let Some(limit) = &descriptor.limit {
        bring_along(limit, &request.domain, entries, &mut query)?;
    }
    Ok(query)
}

/// Replaces the configured limits with the limit in the descriptor.
fn bring_along(
    limit: &RateLimitOverride,
    domain: &str,
    entries: &[Entry],
    query: &mut Query<'_>,
) -> Result<(), Refusal> {
    let window = window(limit.unit()).ok_or_else(|| {
        Refusal::field(
            "limit.unit",
            "is unknown: send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
        )
    })?;
    let amount = Amount::new(limit.requests_per_unit.into());
    let rate = Rate { amount: amount.unwrap_or(Amount::ONE), unit: Unit::Requests, window };
    let rule = InlineRule::new(OVERRIDE, &counter(domain, entries), [Limit::Windowed(rate)])
        .map_err(|error| Refusal::field("limit", error.to_string()))?;
    query.rule_scope = RuleScope::Inline;
    query.inline.push(match amount {
        // As for imported limits: hits may arrive after the work is done.
        Some(_) => rule.optimistic(),
        None => {
            // Denies everything: 2 never fit into a limit of 1.
            query.cost.requests = Some(2);
            rule
        }
    });
    Ok(())
}

/// Returns the counter name of an override, made of everything in the descriptor. Length prefixes
/// keep different texts apart.
fn counter(domain: &str, entries: &[Entry]) -> String {
    let texts = entries.iter().flat_map(|entry| [entry.key.as_str(), entry.value.as_str()]);
    let mut counter = String::new();
    for text in std::iter::once(domain).chain(texts) {
        counter.push_str(&format!("{}:{text}", text.len()));
    }
    counter
}

/// Returns the length of a unit; months and years as in envoyproxy/ratelimit.
fn window(unit: RateLimitUnit) -> Option<Window> {
    const DAY: u64 = 86_400;
    let seconds = match unit {
        RateLimitUnit::Unknown => return None,
        RateLimitUnit::Second => 1,
        RateLimitUnit::Minute => 60,
        RateLimitUnit::Hour => 3_600,
        RateLimitUnit::Day => DAY,
        RateLimitUnit::Week => 7 * DAY,
        RateLimitUnit::Month => 30 * DAY,
        RateLimitUnit::Year => 365 * DAY,
    };
    Window::new(Span::from_secs(seconds))
}
