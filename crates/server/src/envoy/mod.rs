//! Envoy's rate-limit service, for Envoy itself and for whatever else speaks its protocol.
//!
//! Every descriptor is a query, and all descriptors of a call are one plan: either all of it is
//! charged, or nothing. `POST /json` says the same in JSON.

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

use self::decode::Call;
use crate::answer::{self, Answer};
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use crate::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::refusal::Refusal;
use crate::service::{Failure, Question, Service};

pub use json::router;

/// Its name.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// What the answers to Envoy are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether they carry the rate-limit headers that Envoy adds to its own answers.
    pub headers: bool,
    /// How Envoy is told that the outage policy is to refuse.
    pub closed: Closed,
}

impl Default for Options {
    fn default() -> Self {
        Self { headers: true, closed: Closed::OverLimit }
    }
}

/// How Envoy is told that the outage policy is to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// As a denial: it stays closed whatever Envoy does without an answer.
    OverLimit,
    /// As an error: Envoy's `failure_mode_deny` decides.
    Unavailable,
}

/// The limiter, to Envoy.
pub struct EnvoyRls {
    service: Arc<Service>,
    options: Options,
}

impl EnvoyRls {
    /// The limiter, with answers like this.
    pub fn new(service: Arc<Service>, options: Options) -> Self {
        Self { service, options }
    }

    /// As a gRPC service that reads messages up to this size.
    pub(crate) fn server(self, bytes_max: usize) -> RateLimitServiceServer<Self> {
        RateLimitServiceServer::new(self).max_decoding_message_size(bytes_max)
    }

    async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Refusal> {
        let call = Call::read(request, || self.service.request_id())?;
        let mut told = RateLimitResponse::default();
        if !call.charges.is_empty() {
            let decided = self.service.decide(&call.charges, Question::Tally, |answer| {
                encode::decision(answer, self.options)
            });
            told = match decided.await {
                // An error would let them through where Envoy fails open.
                Err(Failure::Plan(PlanError::TooMany { rule, requests })) => {
                    debug!(rule, requests, "more hits at once than an exact log takes");
                    encode::too_many(call.charges.len())
                }
                decided => decided??,
            };
        }
        for (place, query) in &call.refunds {
            let mut refunded = self.refund(query).await;
            if let Err(Failure::Plan(PlanError::TooMany { .. })) = refunded {
                // No log has got more at once.
                let mut fewer = query.clone();
                fewer.cost.requests = Some(ENTRIES_PER_CHARGE_MAX);
                refunded = self.refund(&fewer).await;
            }
            let status = match refunded {
                // What is not given back stays counted, which is no reason to refuse anything.
                Err(Failure::Store(store::Error::Unavailable(_))) => encode::unknown(),
                status => status?,
            };
            // Statuses are in the order of the descriptors: those before are there already.
            let place = (*place).min(told.statuses.len());
            told.statuses.insert(place, status);
        }
        if call.charges.is_empty() {
            told.set_overall_code(encode::OK);
        }
        Ok(told)
    }

    async fn refund(&self, query: &Query<'_>) -> Result<DescriptorStatus, Failure> {
        let tell = |rules: &Ruleset, plan: &Plan<'_>, usage| {
            encode::refund(&Answer::new(rules, plan, &answer::shown(usage)))
        };
        self.service.refund(query, tell).await
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
