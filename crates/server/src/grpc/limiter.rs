//! The gRPC service `sluicegate.v1.RateLimiterService`.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::proto::sluicegate::v1 as pb;
use super::proto::sluicegate::v1::rate_limiter_service_server::RateLimiterService;
use super::{decode, encode};
use crate::answer::{Answer, Asked};
use crate::auth::Caller;
use crate::refusal::Refusal;
use crate::request;
use crate::service::{Question, Service};
use crate::settled;
use crate::ticket::Ticket;

type Answered<T> = Result<Response<T>, Status>;

/// The gRPC service over the limiter.
pub(super) struct Limiter {
    service: Arc<Service>,
}

impl Limiter {
    pub(super) fn new(service: Arc<Service>) -> Self {
        Self { service }
    }

    async fn decide(
        &self,
        requests: Vec<pb::Query>,
        caller: &Caller,
        question: Question,
    ) -> Answered<pb::Decision> {
        let service = &self.service;
        let queries = decode::queries(requests, caller.name(), || service.request_id())?;
        let told = service.decide(&queries, question, |answer| {
            encode::decision(answer, Ticket::of(answer, question).map(|ticket| ticket.text()))
        });
        Ok(Response::new(told.await.map_err(Refusal::from)?))
    }
}

/// Returns the caller, as set by the authentication layer.
fn caller<T>(request: &Request<T>) -> Caller {
    request.extensions().get().cloned().unwrap_or_else(Caller::anonymous)
}

#[tonic::async_trait]
impl RateLimiterService for Limiter {
    async fn allow(&self, request: Request<pb::AllowRequest>) -> Answered<pb::AllowResponse> {
        let request = request.into_inner();
        let mut query = decode::allow(&request, self.service.request_id())?;
        request::require_user_and_model(&query, &self.service.limiter().rules(), "Acquire")?;
        query.settle_within = Some(request::SETTLE_WITHIN);
        let queries = [query];
        let told = self.service.decide(&queries, Question::Acquire, |answer| {
            let ticket = Ticket::of(answer, Question::Acquire);
            encode::allow(answer, ticket.map(|ticket| ticket.text()))
        });
        Ok(Response::new(told.await.map_err(Refusal::from)?))
    }

    async fn acquire(&self, request: Request<pb::AcquireRequest>) -> Answered<pb::Decision> {
        let caller = caller(&request);
        self.decide(request.into_inner().requests, &caller, Question::Acquire).await
    }

    async fn check(&self, request: Request<pb::CheckRequest>) -> Answered<pb::Decision> {
        let caller = caller(&request);
        self.decide(request.into_inner().requests, &caller, Question::Peek).await
    }

    async fn book(&self, request: Request<pb::BookRequest>) -> Answered<pb::Decision> {
        let caller = caller(&request);
        self.decide(request.into_inner().requests, &caller, Question::Book).await
    }

    async fn claim(&self, request: Request<pb::ClaimRequest>) -> Answered<pb::ClaimResponse> {
        let caller = caller(&request);
        let pb::ClaimRequest { request, claimant } = request.into_inner();
        let claimant = request::scoped("claimant", caller.name(), &claimant)?;
        let query = decode::query(request, caller.name(), self.service.request_id())?;
        let queries = [request::booked(query)?];
        let told = self.service.claim(&queries[0], claimant, |rules, plan, claim| {
            encode::claim(claim, |decision| {
                let answer = Answer::new(rules, plan, decision).to(Asked::by(&queries));
                encode::decision(&answer, Some(Ticket::claimed(&answer, claimant).text()))
            })
        });
        Ok(Response::new(told.await.map_err(Refusal::from)?))
    }

    async fn settle(&self, request: Request<pb::SettleRequest>) -> Answered<pb::Settled> {
        let (ticket, stated) = decode::settle(request.into_inner())?;
        let settled = settled::settle(&self.service, &ticket, &stated).await?;
        Ok(Response::new(encode::settled(&settled)))
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> Answered<pb::Ended> {
        let Ticket { handle, .. } = Ticket::read(&request.get_ref().handle)?;
        let ended = self.service.release(&handle).await;
        let ended = ended.map_err(Refusal::from)?;
        Ok(Response::new(pb::Ended { replayed: ended.replayed }))
    }

    async fn renew(&self, request: Request<pb::RenewRequest>) -> Answered<pb::Renewed> {
        let Ticket { handle, .. } = Ticket::read(&request.get_ref().handle)?;
        let renewed = self.service.renew(&handle).await;
        let renewed = renewed.map_err(Refusal::from)?;
        let (at, until) = (renewed.at.to_string(), renewed.until.to_string());
        Ok(Response::new(pb::Renewed { at, until }))
    }

    async fn cancel(&self, request: Request<pb::CancelRequest>) -> Answered<pb::Ended> {
        let Ticket { handle, .. } = Ticket::read(&request.get_ref().handle)?;
        let ended = self.service.cancel(&handle).await;
        let ended = ended.map_err(Refusal::from)?;
        Ok(Response::new(pb::Ended { replayed: ended.replayed }))
    }
}
