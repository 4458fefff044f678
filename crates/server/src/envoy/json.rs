//! `POST /json`: ShouldRateLimit in JSON, compatible with envoyproxy/ratelimit.
//!
//! 200 is OK and 429 is OVER_LIMIT; both have the whole response as their body. Field names are
//! those of the JSON mapping of protobuf; the original proto names are accepted, too.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::EnvoyRls;
use crate::grpc::proto::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor as parts,
};
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use crate::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::grpc::proto::envoy::r#type::v3::RateLimitUnit;
use crate::rest::Problem;

/// Returns the route for the REST listener.
pub fn router(rls: EnvoyRls, body_limit: usize) -> Router {
    Router::new()
        .route("/json", post(answer))
        .layer(DefaultBodyLimit::max(body_limit))
        .with_state(Arc::new(rls))
}

async fn answer(State(rls): State<Arc<EnvoyRls>>, body: Bytes) -> Result<Response, Problem> {
    // No content type is required: clients of envoyproxy/ratelimit send none.
    let call: JsonCall = serde_json::from_slice(&body)
        .map_err(|error| Problem::bad_request(format!("cannot parse the body: {error}")))?;
    let answered = rls.answer(&call.into()).await?;
    let code = answered.overall_code();
    let status =
        if code == super::encode::OK { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((status, kind, written(&answered).to_string()).into_response())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonCall {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<JsonDescriptor>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonDescriptor {
    #[serde(default)]
    entries: Vec<JsonEntry>,
    limit: Option<JsonOverride>,
    #[serde(default, alias = "hits_addend", deserialize_with = "whole")]
    hits_addend: Option<u64>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonOverride {
    #[serde(default, alias = "requests_per_unit")]
    requests_per_unit: u32,
    #[serde(default)]
    unit: String,
}

/// Deserializes a 64-bit number, which the JSON mapping of protobuf writes as a string; a number is
/// accepted, too.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    let wrong = || serde::de::Error::custom("hitsAddend must be a whole number");
    match value {
        None => Ok(None),
        Some(Value::String(text)) => text.parse().map(Some).map_err(|_| wrong()),
        Some(value) => value.as_u64().map(Some).ok_or_else(wrong),
    }
}

impl From<JsonCall> for RateLimitRequest {
    fn from(call: JsonCall) -> Self {
        Self {
            domain: call.domain,
            descriptors: call.descriptors.into_iter().map(RateLimitDescriptor::from).collect(),
            hits_addend: call.hits_addend,
        }
    }
}

impl From<JsonDescriptor> for RateLimitDescriptor {
    fn from(descriptor: JsonDescriptor) -> Self {
        let entries = descriptor.entries.into_iter();
        Self {
            entries: entries.map(|JsonEntry { key, value }| parts::Entry { key, value }).collect(),
            limit: descriptor.limit.map(|limit| parts::RateLimitOverride {
                requests_per_unit: limit.requests_per_unit,
                unit: RateLimitUnit::from_str_name(&limit.unit).unwrap_or_default().into(),
            }),
            hits_addend: descriptor.hits_addend,
            is_negative_hits: descriptor.is_negative_hits,
        }
    }
}

fn written(response: &RateLimitResponse) -> Value {
    let headers = response.response_headers_to_add.iter();
    let headers: Vec<_> = headers.map(|h| json!({ "key": h.key, "value": h.value })).collect();
    let statuses: Vec<_> = response.statuses.iter().map(status).collect();
    let mut answered = json!({
        "overallCode": response.overall_code().as_str_name(),
        "statuses": statuses,
    });
    if !headers.is_empty() {
        answered["responseHeadersToAdd"] = headers.into();
    }
    answered
}

/// Encodes a status. Default values are omitted, as in the JSON mapping of protobuf.
fn status(status: &DescriptorStatus) -> Value {
    let mut answered = Map::new();
    answered.insert("code".to_owned(), status.code().as_str_name().into());
    if let Some(limit) = &status.current_limit {
        let unit = limit.unit().as_str_name();
        let limit = json!({
            "requestsPerUnit": limit.requests_per_unit,
            "unit": unit,
            "name": limit.name,
        });
        answered.insert("currentLimit".to_owned(), limit);
    }
    if status.limit_remaining > 0 {
        answered.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        let micros = reset.nanos / 1_000;
        let text = match micros {
            0 => format!("{}s", reset.seconds),
            micros => format!("{}.{micros:06}s", reset.seconds),
        };
        answered.insert("durationUntilReset".to_owned(), text.into());
    }
    Value::Object(answered)
}
