//! The floor: a tonic server that reads the requests of Allow and ShouldRateLimit and sends their
//! responses, and decides nothing. It uses the same messages and runtime, and the responses have
//! the same fields and length. It counts and logs nothing.
//!
//! Frozen: all ratios refer to it, so a change needs a decision page.

use sluicegate_bench_grpc::envoy::service::ratelimit::v3 as rls;
use sluicegate_bench_grpc::sluicegate::v1 as pb;
use tonic::{Request, Response, Status};

use pb::rate_limiter_service_server::{RateLimiterService, RateLimiterServiceServer};
use rls::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

const RESET_AT: &str = "2027-01-15T08:00:59.123456Z";

struct Floor;

type Answered<T> = Result<Response<T>, Status>;

fn nothing<T>() -> Answered<T> {
    Err(Status::unimplemented("the floor answers Allow and ShouldRateLimit"))
}

#[tonic::async_trait]
impl RateLimiterService for Floor {
    async fn allow(&self, request: Request<pb::AllowRequest>) -> Answered<pb::AllowResponse> {
        // The answer depends on the request, so the compiler can't remove the code that reads it.
        let request = request.into_inner();
        let current = (request.user_id.len() + request.model_id.len()) as i64;
        let scope = |name: &str, window: &str, limit: i64| pb::ScopeStatus {
            name: name.to_owned(),
            limit,
            current,
            remaining: limit - current,
            window: window.to_owned(),
            reset_at: RESET_AT.to_owned(),
            shadow: false,
            ..pb::ScopeStatus::default()
        };
        Ok(Response::new(pb::AllowResponse {
            allowed: true,
            remaining: 1_000_000_000,
            reset_at: RESET_AT.to_owned(),
            scope_hit: String::new(),
            scopes: vec![
                scope("USER_MODEL", "1000000000/min windowed", 1_000_000_000),
                scope("TENANT", "1000000000/min windowed", 1_000_000_000),
                scope("GLOBAL_MODEL", "1000000000/min windowed", 1_000_000_000),
            ],
            reason: String::new(),
            ..pb::AllowResponse::default()
        }))
    }

    async fn acquire(&self, _: Request<pb::AcquireRequest>) -> Answered<pb::Decision> {
        nothing()
    }
    async fn check(&self, _: Request<pb::CheckRequest>) -> Answered<pb::Decision> {
        nothing()
    }
    async fn book(&self, _: Request<pb::BookRequest>) -> Answered<pb::Decision> {
        nothing()
    }
    async fn claim(&self, _: Request<pb::ClaimRequest>) -> Answered<pb::ClaimResponse> {
        nothing()
    }
    async fn settle(&self, _: Request<pb::SettleRequest>) -> Answered<pb::Settled> {
        nothing()
    }
    async fn release(&self, _: Request<pb::ReleaseRequest>) -> Answered<pb::Ended> {
        nothing()
    }
    async fn renew(&self, _: Request<pb::RenewRequest>) -> Answered<pb::Renewed> {
        nothing()
    }
    async fn cancel(&self, _: Request<pb::CancelRequest>) -> Answered<pb::Ended> {
        nothing()
    }
}

#[tonic::async_trait]
impl RateLimitService for Floor {
    async fn should_rate_limit(
        &self,
        request: Request<rls::RateLimitRequest>,
    ) -> Answered<rls::RateLimitResponse> {
        let request = request.into_inner();
        let statuses = request.descriptors.iter().map(|descriptor| {
            let length = descriptor.entries.iter().map(|entry| entry.value.len()).sum::<usize>();
            rls::rate_limit_response::DescriptorStatus {
                code: 1,
                current_limit: Some(rls::rate_limit_response::RateLimit {
                    requests_per_unit: 1_000_000_000,
                    unit: 2,
                    name: "edge.user".to_owned(),
                }),
                limit_remaining: 1_000_000_000 - length as u32,
                duration_until_reset: Some(prost_types::Duration {
                    seconds: 59,
                    nanos: 123_456_000,
                }),
            }
        });
        Ok(Response::new(rls::RateLimitResponse {
            overall_code: 1,
            statuses: statuses.collect(),
            response_headers_to_add: Vec::new(),
            request_headers_to_add: Vec::new(),
        }))
    }
}

fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = tonic::transport::Server::builder()
            .add_service(RateLimiterServiceServer::new(Floor))
            .add_service(RateLimitServiceServer::new(Floor));
        Ok(server.serve(address.parse()?).await?)
    })
}
