//! Decodes gRPC messages into queries.

use std::collections::BTreeMap;

use sluicegate_core::query::{Query, RequestId};

use super::proto::sluicegate::v1 as pb;
use crate::refusal::Refusal;
use crate::request::{self, CostBody, Dimensions, InlineBody, Request, StatedCost, WholeNumber};
use crate::ticket::Ticket;

/// Decodes an `Allow`. Its two fields without presence count as omitted if empty.
pub(super) fn allow(request: &pb::AllowRequest, id: RequestId) -> Result<Query<'_>, Refusal> {
    let mut query = Query::new(id);
    let given = |text: &'_ String| !text.is_empty();
    for (name, value) in [
        ("userId", Some(&request.user_id).filter(|text| given(text))),
        ("modelId", Some(&request.model_id).filter(|text| given(text))),
        ("apiKey", request.api_key.as_ref()),
        ("tenantId", request.tenant_id.as_ref()),
        ("modelTier", request.model_tier.as_ref()),
        ("clientType", request.client_type.as_ref()),
    ] {
        if let Some(value) = value {
            query.insert(name, value.as_str())?;
        }
    }
    for (name, value) in &request.dimensions {
        query
            .insert(name.as_str(), value.as_str())
            .map_err(|error| Refusal::from(error).inside("dimensions"))?;
    }
    Ok(query)
}

/// Decodes the queries of a call. Their ids are the caller's, or generated ones.
pub(super) fn queries(
    requests: Vec<pb::Query>,
    caller: &str,
    mut fallback: impl FnMut() -> RequestId,
) -> Result<Vec<Query<'static>>, Refusal> {
    let requests = request::check_batch(requests.into_iter().map(Request::from).collect())?;
    let queries = requests.into_iter().enumerate().map(|(number, request)| {
        let query = request.query(caller, fallback());
        query.map_err(|refusal| refusal.inside(&format!("requests[{number}]")))
    });
    queries.collect()
}

/// Decodes one query, which is required.
pub(super) fn query(
    request: Option<pb::Query>,
    caller: &str,
    fallback: RequestId,
) -> Result<Query<'static>, Refusal> {
    let request = request.ok_or_else(|| Refusal::field("request", "is required"))?;
    Request::from(request).query(caller, fallback).map_err(|refusal| refusal.inside("request"))
}

/// Decodes the handle to settle and its actual cost.
pub(super) fn settle(
    caller: &str,
    request: pb::SettleRequest,
) -> Result<(Ticket, StatedCost), Refusal> {
    let stated = CostBody::from(request.cost.unwrap_or_default()).read()?;
    Ok((Ticket::read_of(caller, &request.handle)?, stated))
}

impl From<pb::Query> for Request {
    fn from(query: pb::Query) -> Self {
        let dimensions: BTreeMap<_, _> = query.dimensions;
        Self {
            id: some_text(query.id),
            dimensions: Dimensions(dimensions.into_iter().collect()),
            cost: query.cost.unwrap_or_default().into(),
            hold: some_text(query.hold),
            limits: query.limits.into_iter().map(InlineBody::from).collect(),
        }
    }
}

impl From<pb::Cost> for CostBody {
    fn from(cost: pb::Cost) -> Self {
        Self {
            requests: cost.requests.map(WholeNumber),
            input_tokens: cost.input_tokens.map(WholeNumber),
            output_tokens: cost.output_tokens.map(WholeNumber),
            usd: cost.usd,
            cached_input_tokens: cost.cached_input_tokens.map(WholeNumber),
            cache_write_tokens: cost.cache_write_tokens.map(WholeNumber),
            reasoning_tokens: cost.reasoning_tokens.map(WholeNumber),
            query_tokens: cost.query_tokens.map(WholeNumber),
            context_tokens: cost.context_tokens.map(WholeNumber),
            ..Self::default()
        }
    }
}

impl From<pb::Estimate> for CostBody {
    fn from(estimate: pb::Estimate) -> Self {
        Self {
            requests: estimate.requests.map(WholeNumber),
            input_tokens: estimate.input_tokens.map(WholeNumber),
            output_tokens: estimate.output_tokens.map(WholeNumber),
            usd: estimate.usd,
            cached_input_tokens: estimate.cached_input_tokens.map(WholeNumber),
            cache_write_tokens: estimate.cache_write_tokens.map(WholeNumber),
            reasoning_tokens: estimate.reasoning_tokens.map(WholeNumber),
            query_tokens: estimate.query_tokens.map(WholeNumber),
            context_tokens: estimate.context_tokens.map(WholeNumber),
            input_chars: estimate.input_chars.map(WholeNumber),
            max_tokens: estimate.max_tokens.map(WholeNumber),
            max_completion_tokens: estimate.max_completion_tokens.map(WholeNumber),
            max_output_tokens: estimate.max_output_tokens.map(WholeNumber),
            n: estimate.n.map(WholeNumber),
        }
    }
}

impl From<pb::InlineLimit> for InlineBody {
    fn from(inline: pb::InlineLimit) -> Self {
        let pb::InlineLimit { name, key, limit } = inline;
        Self { name, key, limit }
    }
}

/// Converts an empty text into `None`.
pub(super) fn some_text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
