//! The gRPC service `sluicegate.v1.RateLimiterService`.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::proto::sluicegate::v1 as pb;
use super::proto::sluicegate::v1::rate_limiter_service_server::RateLimiterService;
use super::{decode, encode};
use crate::answer::{Answer, AnswerContext};
use crate::auth::Caller;
use crate::refusal::Refusal;
use crate::request;
use crate::service::{DecisionMode, Service};
use crate::settlement;
use crate::ticket::Ticket;

type RpcResult<T> = Result<Response<T>, Status>;

/// The gRPC service over the limiter.
pub(super) struct GrpcLimiter {
    service: Arc<Service>,
}

impl GrpcLimiter {
    pub(super) fn new(service: Arc<Service>) -> Self {
        Self { service }
    }

    async fn decide(
        &self,
        requests: Vec<pb::Query>,
        caller: &Caller,
        mode: DecisionMode,
        lead: Option<String>,
    ) -> RpcResult<pb::Decision> {
        let service = &self.service;
        let mut queries = decode::queries(requests, caller.name(), || service.request_id())?;
        // There is one: an empty list is refused.
        request::set_lead(&mut queries[0], lead)?;
        let response = service.decide(&queries, mode, |answer| {
            encode::decision(answer, Ticket::of(answer, mode).map(|ticket| ticket.text()))
        });
        Ok(Response::new(response.await.map_err(Refusal::from)?))
    }
}

/// Returns the caller, as set by the authentication layer.
fn caller<T>(request: &Request<T>) -> Caller {
    request.extensions().get().cloned().unwrap_or_else(Caller::anonymous)
}

/// Parses the handle of a request.
fn ticket<T>(request: &Request<T>, handle: &str) -> Result<Ticket, Refusal> {
    Ticket::read_of(caller(request).name(), handle)
}

#[tonic::async_trait]
impl RateLimiterService for GrpcLimiter {
    async fn allow(&self, request: Request<pb::AllowRequest>) -> RpcResult<pb::AllowResponse> {
        let request = request.into_inner();
        let mut query = decode::allow(&request, self.service.request_id())?;
        request::require_user_and_model(&query, &self.service.limiter().rules(), "Acquire")?;
        query.settle_within = Some(request::SETTLE_WITHIN);
        let queries = [query];
        let response = self.service.decide(&queries, DecisionMode::Acquire, |answer| {
            let ticket = Ticket::of(answer, DecisionMode::Acquire);
            encode::allow(answer, ticket.map(|ticket| ticket.text()))
        });
        Ok(Response::new(response.await.map_err(Refusal::from)?))
    }

    async fn acquire(&self, request: Request<pb::AcquireRequest>) -> RpcResult<pb::Decision> {
        let caller = caller(&request);
        self.decide(request.into_inner().requests, &caller, DecisionMode::Acquire, None).await
    }

    async fn check(&self, request: Request<pb::CheckRequest>) -> RpcResult<pb::Decision> {
        let caller = caller(&request);
        self.decide(request.into_inner().requests, &caller, DecisionMode::Peek, None).await
    }

    async fn book(&self, request: Request<pb::BookRequest>) -> RpcResult<pb::Decision> {
        let caller = caller(&request);
        let pb::BookRequest { requests, lead } = request.into_inner();
        self.decide(requests, &caller, DecisionMode::Book, decode::some_text(lead)).await
    }

    async fn claim(&self, request: Request<pb::ClaimRequest>) -> RpcResult<pb::ClaimResponse> {
        let caller = caller(&request);
        let pb::ClaimRequest { request, claimant, lead } = request.into_inner();
        let claimant = request::caller_id("claimant", caller.name(), &claimant)?;
        let mut query = decode::query(request, caller.name(), self.service.request_id())?;
        request::set_lead(&mut query, decode::some_text(lead))?;
        let queries = [request::require_id(query)?];
        let response = self.service.claim(&queries[0], claimant, |rules, plan, claim| {
            encode::claim(claim, |decision| {
                let answer =
                    Answer::new(rules, plan, decision).with_context(AnswerContext::of(&queries));
                encode::decision(&answer, Some(Ticket::claimed(&answer, claimant).text()))
            })
        });
        Ok(Response::new(response.await.map_err(Refusal::from)?))
    }

    async fn settle(&self, request: Request<pb::SettleRequest>) -> RpcResult<pb::Settled> {
        let caller = caller(&request);
        let (ticket, stated) = decode::settle(caller.name(), request.into_inner())?;
        let settled = settlement::settle(&self.service, &ticket, &stated).await?;
        Ok(Response::new(encode::settled(&settled)))
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> RpcResult<pb::Ended> {
        let Ticket { handle, .. } = ticket(&request, &request.get_ref().handle)?;
        let ended = self.service.release(&handle).await;
        let ended = ended.map_err(Refusal::from)?;
        Ok(Response::new(pb::Ended { replayed: ended.replayed }))
    }

    async fn renew(&self, request: Request<pb::RenewRequest>) -> RpcResult<pb::Renewed> {
        let Ticket { handle, .. } = ticket(&request, &request.get_ref().handle)?;
        let renewed = self.service.renew(&handle).await;
        let renewed = renewed.map_err(Refusal::from)?;
        let (at, until) = (renewed.at.to_string(), renewed.until.to_string());
        Ok(Response::new(pb::Renewed { at, until }))
    }

    async fn cancel(&self, request: Request<pb::CancelRequest>) -> RpcResult<pb::Ended> {
        let Ticket { handle, .. } = ticket(&request, &request.get_ref().handle)?;
        let ended = self.service.cancel(&handle).await;
        let ended = ended.map_err(Refusal::from)?;
        Ok(Response::new(pb::Ended { replayed: ended.replayed }))
    }
}
