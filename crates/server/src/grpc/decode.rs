//! From messages to queries.

use std::collections::BTreeMap;

use sluicegate_core::plan::Handle;
use sluicegate_core::query::{Cost, Query, RequestId};

use super::proto::sluicegate::v1 as pb;
use crate::refusal::Refusal;
use crate::request::{self, CostBody, Dimensions, InlineBody, Request, Whole};

/// The query of an `Allow`. Its two fields without presence count as left out when empty.
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

/// The queries of a call, under the names that `caller` gave them or under names of ours.
pub(super) fn queries(
    requests: Vec<pb::Query>,
    caller: &str,
    mut fallback: impl FnMut() -> RequestId,
) -> Result<Vec<Query<'static>>, Refusal> {
    let requests = request::some(requests.into_iter().map(Request::from).collect())?;
    let queries = requests.into_iter().enumerate().map(|(number, request)| {
        let query = request.query(caller, fallback());
        query.map_err(|refusal| refusal.inside(&format!("requests[{number}]")))
    });
    queries.collect()
}

/// One query that has to be there.
pub(super) fn query(
    request: Option<pb::Query>,
    caller: &str,
    fallback: RequestId,
) -> Result<Query<'static>, Refusal> {
    let request = request.ok_or_else(|| Refusal::field("request", "is required"))?;
    Request::from(request).query(caller, fallback).map_err(|refusal| refusal.inside("request"))
}

/// What is to be settled, with the actual cost.
pub(super) fn settle(request: pb::SettleRequest) -> Result<(Handle, Cost), Refusal> {
    let cost = CostBody::from(request.cost.unwrap_or_default()).cost()?;
    Ok((request::handle(&request.handle)?, cost))
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
        let pb::Cost { requests, input_tokens, output_tokens, usd } = cost;
        let [requests, input_tokens, output_tokens] =
            [requests, input_tokens, output_tokens].map(|number| number.map(Whole));
        Self { requests, input_tokens, output_tokens, usd }
    }
}

impl From<pb::InlineLimit> for InlineBody {
    fn from(inline: pb::InlineLimit) -> Self {
        let pb::InlineLimit { name, key, limit } = inline;
        Self { name, key, limit }
    }
}

/// A text that is empty when it is left out.
fn some_text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
