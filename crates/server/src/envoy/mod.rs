//! Envoy's rate limit service (RLS), for Envoy and other clients of its protocol.
//!
//! Every descriptor is a query, and all descriptors of a call are one plan: all are charged, or
//! none. `POST /json` offers the same in JSON.

mod decode;
mod encode;
mod json;

use std::sync::Arc;

use sluicegate_core::Plan;
use sluicegate_core::algorithm::log::ENTRIES_PER_CHARGE_MAX;
use sluicegate_core::query::Query;
use sluicegate_core::ruleset::{PlanError, Ruleset};
use sluicegate_core::store;
use tonic::{Request, Response, Status};
use tracing::debug;

use self::decode::DecodedCall;
use crate::answer::{self, Answer};
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use crate::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::refusal::Refusal;
use crate::service::{DecisionMode, Service, ServiceError};

pub use json::router;
pub use sluicegate_config::{EnvoyClosedReply, EnvoyOptions};

/// Name of the gRPC service.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The rate limit service.
pub struct EnvoyRls {
    service: Arc<Service>,
    options: EnvoyOptions,
}

impl EnvoyRls {
    /// Creates the service.
    pub fn new(service: Arc<Service>, options: EnvoyOptions) -> Self {
        Self { service, options }
    }

    /// Converts it into a gRPC service that accepts messages up to this size.
    pub(crate) fn server(self, bytes_max: usize) -> RateLimitServiceServer<Self> {
        RateLimitServiceServer::new(self).max_decoding_message_size(bytes_max)
    }

    async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Refusal> {
        let call = DecodedCall::read(request, || self.service.request_id())?;
        let mut answered = RateLimitResponse::default();
        if !call.charges.is_empty() {
            let decided = self.service.decide(&call.charges, DecisionMode::Tally, |answer| {
                encode::decision(answer, self.options)
            });
            answered = match decided.await {
                // An error would let the request through if Envoy fails open.
                Err(ServiceError::Plan(PlanError::TooMany { rule, requests })) => {
                    debug!(rule, requests, "too many hits in one call for an exact limit: denied");
                    encode::too_many(call.charges.len())
                }
                decided => decided??,
            };
        }
        for (place, query) in &call.refunds {
            let mut refunded = self.refund(query).await;
            if let Err(ServiceError::Plan(PlanError::TooMany { .. })) = refunded {
                // A charge on a log is never larger.
                let mut fewer = query.clone();
                fewer.cost.requests = Some(ENTRIES_PER_CHARGE_MAX);
                refunded = self.refund(&fewer).await;
            }
            let status = match refunded {
                // If the store is down, the hits stay counted. The call still succeeds.
                Err(ServiceError::Store(store::Error::Unavailable(_))) => encode::unknown(),
                status => status?,
            };
            // Statuses are in the order of the descriptors, and earlier ones are already in place.
            let place = (*place).min(answered.statuses.len());
            answered.statuses.insert(place, status);
        }
        if call.charges.is_empty() {
            answered.set_overall_code(encode::OK);
        }
        Ok(answered)
    }

    async fn refund(&self, query: &Query<'_>) -> Result<DescriptorStatus, ServiceError> {
        let encode = |rules: &Ruleset, plan: &Plan<'_>, usage| {
            encode::refund(&Answer::new(rules, plan, &answer::usage_as_decision(usage)))
        };
        self.service.refund(query, encode).await
    }
}

#[tonic::async_trait]
impl RateLimitService for EnvoyRls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(self.answer(request.get_ref()).await?))
    }
}
