//! REST: `/rate-limit/allow` for gateways, and `/v1` for all operations of the limiter.

pub(crate) mod decode;
mod encode;
mod explain;
mod forward_auth;
mod openapi;
pub mod overrides;
mod problem;
pub mod queues;
pub(crate) mod reason;
mod request_path;
pub mod reservations;
mod reset;
mod usage;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRef, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use sluicegate_core::Decision;
use sluicegate_core::store::EndResult;

use decode::JsonBody;
pub use problem::Problem;

use crate::answer::{Answer, AnswerContext};
use crate::auth::Caller;
use crate::headers;
use crate::request;
use crate::service::{DecisionMode, Service};
use crate::settlement;
use crate::ticket::Ticket;

/// Default maximum size of a body.
pub const BODY_LIMIT: usize = 64 * 1024;

type Shared = State<Arc<Service>>;
pub(crate) type HandlerResult = Result<Response, Problem>;

/// Returns a router with every route; tests call it without a socket.
///
/// The caller of this function adds a layer that sets the [`Caller`] in the extensions of each
/// request.
pub fn router(service: Arc<Service>, body_limit: usize) -> Router {
    Router::new()
        .route("/rate-limit/allow", only(post(allow)))
        .route("/v1/forward-auth", only(get(forward_auth::forward_auth)))
        .route("/v1/acquire", only(post(acquire)))
        .route("/v1/check", only(post(check)))
        .route("/v1/book", only(post(book)))
        .route("/v1/claim", only(post(claim)))
        .route("/v1/settle", only(post(settle)))
        .route("/v1/release", only(post(release)))
        .route("/v1/renew", only(post(renew)))
        .route("/v1/cancel", only(post(cancel)))
        .route("/v1/users/{id}/usage", only(get(usage::of_user)))
        .route("/v1/tenants/{id}/usage", only(get(usage::of_tenant)))
        .route("/v1/models/{id}/usage", only(get(usage::of_model)))
        .route("/openapi.json", only(get(openapi::document)))
        .merge(openapi::pages())
        .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "unknown path: see /docs") })
        .with_state(RestState { service: service.clone(), body_limit })
        .merge(inspection(service, body_limit))
}

/// Returns the routes that show and reset the usage of a caller. The admin listener has them, too.
pub fn inspection(service: Arc<Service>, body_limit: usize) -> Router {
    Router::new()
        .route("/v1/usage", only(post(usage::usage)))
        .route("/v1/explain", only(post(explain::explain)))
        .route("/v1/reset", only(post(reset::reset)))
        .with_state(RestState { service, body_limit })
}

/// State of all handlers. It is one state and not a layer per route, because a layer would cost
/// more than the work that it does.
#[derive(Clone)]
struct RestState {
    service: Arc<Service>,
    /// Maximum size of a body.
    body_limit: usize,
}

impl decode::BodyLimit for RestState {
    fn body_limit(&self) -> usize {
        self.body_limit
    }
}

impl FromRef<RestState> for Arc<Service> {
    fn from_ref(rest: &RestState) -> Self {
        rest.service.clone()
    }
}

/// Adds the answer to a method that the path does not support.
pub(crate) fn only<S: Clone + Send + Sync + 'static>(route: MethodRouter<S>) -> MethodRouter<S> {
    route.fallback(|| async {
        Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this path does not support this method: see /docs",
        )
    })
}

async fn allow(
    State(service): Shared,
    RawQuery(query): RawQuery,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    let mode = DenialMode::read(query.as_deref())?;
    let mut query = decode::flat(&body, service.request_id())?;
    request::require_user_and_model(&query, &service.limiter().rules(), "POST /v1/acquire")?;
    query.settle_within = Some(request::SETTLE_WITHIN);
    let queries = [query];
    let response = service.decide(&queries, DecisionMode::Acquire, |answer| {
        let handle = Ticket::of(answer, DecisionMode::Acquire).map(|ticket| ticket.text());
        let body = encode::allow(answer, handle.as_deref());
        match mode {
            DenialMode::Body => json(body),
            DenialMode::Status(denied) => status(answer, body, denied),
        }
    });
    Ok(response.await?)
}

/// The form of a denial: in the body, or as the HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DenialMode {
    /// The caller is a gateway: the status is 200 for admissions and denials.
    Body,
    /// The caller passes the response on to its client: a denial has this status.
    Status(StatusCode),
}

impl DenialMode {
    fn read(query: Option<&str>) -> Result<Self, Problem> {
        let mut mode = Self::Body;
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            mode = match pair {
                "status=429" => Self::Status(StatusCode::TOO_MANY_REQUESTS),
                "status=403" => Self::Status(StatusCode::FORBIDDEN),
                "status=200" => Self::Body,
                _ => {
                    let right = "unknown parameter: write status=429 or status=403, or for a booking \
                                 lead=20ms";
                    return Err(Problem::field(pair.split('=').next().unwrap_or(pair), right));
                }
            };
        }
        Ok(mode)
    }
}

/// The query string of a decision.
struct CallOptions {
    denial: DenialMode,
    /// Time before its start at which the caller will claim the booking, such as `20ms`. Only
    /// bookings have it.
    lead: Option<String>,
}

impl CallOptions {
    fn read(query: Option<&str>) -> Result<Self, Problem> {
        Ok(Self { denial: DenialMode::read(query)?, lead: None })
    }

    /// Reads the options of a booking, which may have a lead.
    fn of_booking(query: Option<&str>) -> Result<Self, Problem> {
        let (mut lead, mut others) = (None, Vec::new());
        for pair in query.unwrap_or_default().split('&') {
            match pair.strip_prefix("lead=") {
                Some(text) => lead = Some(text.to_owned()),
                None => others.push(pair),
            }
        }
        Ok(Self { lead, ..Self::read(Some(&others.join("&")))? })
    }
}

/// Returns the response of a status mode. An admission is the same in all modes.
fn status(answer: &Answer<'_, '_>, admission: Vec<u8>, denied: StatusCode) -> Response {
    let mut response = match answer.decision() {
        Decision::Allow(_) => json(admission),
        Decision::Deny(_) if answer.is_full() => {
            let mut response = unavailable(Problem::store_full(), denied);
            if let Some(wait) = answer.retry_after() {
                let wait = HeaderValue::from(wait.as_secs_ceil());
                response.headers_mut().insert(header::RETRY_AFTER, wait);
            }
            return response;
        }
        Decision::Deny(_) | Decision::Never(_) => {
            let mut response = json(encode::exceeded(answer));
            // A later retry does not help against a ban.
            let banned = answer.is_banned();
            *response.status_mut() = if banned { StatusCode::FORBIDDEN } else { denied };
            response
        }
        Decision::Closed(closed) if closed.until.is_some() => {
            unavailable(Problem::store_lost_memory(), denied)
        }
        Decision::Closed(_) => return unavailable(Problem::store_unavailable(), denied),
    };
    headers::write(answer, response.headers_mut());
    response
}

/// Returns the response to a request that the outage policy denies: 503, but 403 in the mode for NGINX
/// `auth_request`, which answers 500 to every status other than 2xx, 401 and 403.
fn unavailable(problem: Problem, denied: StatusCode) -> Response {
    if denied != StatusCode::FORBIDDEN {
        return problem.into_response();
    }
    let mut response = problem.with_status(denied).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(1));
    response
}

async fn acquire(
    service: Shared,
    caller: Extension<Caller>,
    RawQuery(query): RawQuery,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    decide(service, &caller, CallOptions::read(query.as_deref())?, &body, DecisionMode::Acquire)
        .await
}

async fn check(
    service: Shared,
    caller: Extension<Caller>,
    RawQuery(query): RawQuery,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    decide(service, &caller, CallOptions::read(query.as_deref())?, &body, DecisionMode::Peek).await
}

async fn book(
    service: Shared,
    caller: Extension<Caller>,
    RawQuery(query): RawQuery,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    decide(service, &caller, CallOptions::of_booking(query.as_deref())?, &body, DecisionMode::Book)
        .await
}

async fn decide(
    State(service): Shared,
    caller: &Caller,
    options: CallOptions,
    body: &[u8],
    decision_mode: DecisionMode,
) -> HandlerResult {
    let CallOptions { denial: mode, lead } = options;
    let requests = decode::requests(body)?;
    let queries =
        requests.into_iter().map(|request| request.query(caller.name(), service.request_id()));
    let mut queries: Vec<_> = queries.collect::<Result<_, _>>()?;
    // There is one: an empty list is refused.
    request::set_lead(&mut queries[0], lead)?;
    let response = service.decide(&queries, decision_mode, |answer| {
        let ticket = Ticket::of(answer, decision_mode).map(|ticket| ticket.text());
        let body = encode::native(answer, ticket.as_deref());
        match mode {
            DenialMode::Body => json(body),
            DenialMode::Status(denied) => status(answer, body, denied),
        }
    });
    Ok(response.await?)
}

async fn claim(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    let body: request::ClaimBody = decode::shaped(&body)?;
    let claimant = request::caller_id("claimant", caller.name(), &body.claimant)?;
    let mut query = body.request.query(caller.name(), service.request_id())?;
    request::set_lead(&mut query, body.lead)?;
    let queries = [request::require_id(query)?];
    let response = service.claim(&queries[0], claimant, |rules, plan, claim| {
        json(encode::claimed(claim, |decision, json| {
            let answer =
                Answer::new(rules, plan, decision).with_context(AnswerContext::of(&queries));
            let ticket = Ticket::claimed(&answer, claimant).text();
            encode::native_fields(&answer, Some(&ticket), json);
        }))
    });
    Ok(response.await?)
}

async fn settle(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    let (ticket, stated) = decode::shaped::<request::SettleBody>(&body)?.read(caller.name())?;
    Ok(json(encode::settled(&settlement::settle(&service, &ticket, &stated).await?)))
}

async fn release(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    let ticket = decode::shaped::<request::HandleBody>(&body)?.read(caller.name())?;
    Ok(ended(service.release(&ticket.handle).await?))
}

async fn cancel(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    let ticket = decode::shaped::<request::HandleBody>(&body)?.read(caller.name())?;
    Ok(ended(service.cancel(&ticket.handle).await?))
}

async fn renew(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> HandlerResult {
    let ticket = decode::shaped::<request::HandleBody>(&body)?.read(caller.name())?;
    let renewed = service.renew(&ticket.handle).await?;
    let (at, until) = (renewed.at.to_string(), renewed.until.to_string());
    Ok(json(serde_json::json!({ "at": at, "until": until }).to_string()))
}

fn ended(ended: EndResult) -> Response {
    json(serde_json::json!({ "replayed": ended.replayed }).to_string())
}

pub(crate) fn json(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
