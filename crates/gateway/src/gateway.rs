//! [`Gateway`]: the path of a request from its arrival to the last byte of its response:
//!
//! ```text
//! identify → reserve → pace → forward → settle
//! ```

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use sluicegate_http::listener::Peer;
use sluicegate_http::probe::{self, Probe};
use sluicegate_http::tokens::Caller;
use sluicegate_service::Service;

use crate::forward::headers::{Before, for_upstream, strip};
use crate::forward::streamed::Streamed;
use crate::forward::{Budget, Failed, Parked, target, tunnel};
use crate::identify;
use crate::log::{self, Line, Titles};
use crate::metrics::Metrics;
use crate::options::{Auth, Options};
use crate::pass::Pass;
use crate::refusal::Refusal;
use crate::reserve::Asked;
use crate::route::{Route, RouteError};
use crate::settle::{Ending, settle};
use crate::turn::broken_off;

/// Maximum memory for the bodies of all waiting requests, in bytes.
const PARKED_BYTES: usize = 64 << 20;
/// Maximum number of bytes read from a GraphQL request to find the name of its operation.
const GRAPHQL_BYTES: usize = 64 << 10;

/// A gateway: forwards the requests of one listener to upstreams.
pub struct Gateway {
    pub(crate) service: Arc<Service>,
    settings: ArcSwap<Settings>,
    metrics: Metrics,
    pub(crate) parked: Budget,
    tls: bool,
}

/// Settings that a reload replaces as a whole.
struct Settings {
    titles: Arc<Titles>,
    auth: Option<Auth>,
    dimensions: Vec<(String, HeaderName)>,
    trusted_hops: usize,
    routes: Vec<Arc<Route>>,
}

/// A validated configuration, ready for [`Gateway::apply`].
pub struct Prepared(Settings);

/// The reason why a gateway can't start, or can't use a new configuration.
#[derive(Debug, thiserror::Error)]
#[error("gateway {gateway}, route {route}: {source}")]
pub struct StartError {
    gateway: String,
    route: String,
    source: RouteError,
}

/// A request with its route and caller.
struct Known<'s> {
    route: &'s Arc<Route>,
    caller: Caller,
    /// Address that the request is forwarded to.
    target: Uri,
}

impl Gateway {
    /// Creates a gateway. `tls` is true if its listener is encrypted.
    pub fn new(
        options: &Options,
        service: Arc<Service>,
        metrics: Metrics,
        tls: bool,
    ) -> Result<Arc<Self>, StartError> {
        let settings = Settings::new(options, &service, &metrics, None)?;
        let settings = ArcSwap::from_pointee(settings);
        let parked = Budget::new(PARKED_BYTES);
        Ok(Arc::new(Self { service, settings, metrics, parked, tls }))
    }

    /// Validates new options. Nothing changes until [`Gateway::apply`].
    pub fn prepare(&self, options: &Options) -> Result<Prepared, StartError> {
        let before = self.settings.load_full();
        Settings::new(options, &self.service, &self.metrics, Some(&before)).map(Prepared)
    }

    /// Applies a prepared configuration from the next request on. Waiting requests keep their
    /// place.
    pub fn apply(&self, Prepared(settings): Prepared) {
        for route in &settings.routes {
            route.lane.reconfigure(&route.options.limits, &route.options.wait);
        }
        self.settings.store(Arc::new(settings));
    }

    /// Returns the HTTP service: the health probes, and the proxy for all other paths.
    pub fn router(self: &Arc<Self>, ready: Probe) -> Router {
        let all = Router::new().fallback(Self::answer).with_state(self.clone());
        probe::router(ready).merge(all)
    }

    async fn answer(State(gateway): State<Arc<Self>>, request: Request) -> Response<Body> {
        let settings = gateway.settings.load_full();
        let mut line = gateway.line(&settings, &request);
        match gateway.walk(&settings, request, &mut line).await {
            Ok(response) => response,
            Err(refusal) => {
                let (status, code) = refusal.code();
                (line.status, line.code) = (status.as_u16(), Some(code));
                line.store_up &= refusal != Refusal::StoreUnavailable;
                line.write(gateway.service.now());
                refusal.response()
            }
        }
    }

    /// Runs all steps of a request. On a rejection the caller of this function writes the log line;
    /// on success the end of the response body does.
    async fn walk(
        self: &Arc<Self>,
        settings: &Settings,
        mut request: Request,
        line: &mut Line,
    ) -> Result<Response<Body>, Refusal> {
        // Identify: find the caller and the route.
        let upgrade = tunnel::half(&mut request);
        let (mut parts, body) = request.into_parts();
        let Known { route, caller, target } = settings.identify(&parts)?;
        let mut body = Parked::new(body, route.options.body_limit);
        line.caller = Some(caller.clone());
        line.route = Some(route.metrics.clone());
        line.queue_depth = route.lane.depth();
        if route.options.graphql {
            Box::pin(self.read_operation(route, &mut body, line)).await?;
        }
        let upgrade = tunnel::wished(&parts.headers).map(|protocol| (protocol, upgrade));
        let mut retries = if is_idempotent(&parts.method) { route.options.retries } else { 0 };

        loop {
            // Log in before queueing: a login takes longer than a slot is valid.
            route.signer.prepare(&route.upstream, self.service.clock()).await?;

            // Reserve and pace: after this the request has a pass, or it was rejected.
            let asked = Asked {
                key: &route.key,
                limited: !route.options.limits.is_empty(),
                caller: &caller,
                dimensions: &settings.dimensions,
                headers: &parts.headers,
            };
            let mut pass = self.turn(route, &asked, &mut body, line).await?;
            (line.allowed, line.remaining) = (true, pass.remaining);
            line.store_up = pass.outage.is_none();

            // Forward: a request that was sent counts, one that was not is refunded.
            let spare = if retries > 0 { body.again() } else { None };
            let kept = spare.as_ref().map(|_| parts.headers.clone());
            self.make_ready(settings, &mut parts, line, upgrade.as_ref().map(|u| &u.0));
            let mut sent = axum::http::Request::new(());
            *sent.method_mut() = parts.method.clone();
            *sent.uri_mut() = target.clone();
            *sent.headers_mut() = std::mem::take(&mut parts.headers);
            route.signer.sign(sent.headers_mut(), &route.upstream, self.service.clock()).await?;
            while pass.is_late(self.service.now()) {
                pass = Box::pin(self.another_turn(route, pass, line)).await?;
            }
            let patience = self.patience(route, line, route.options.timeouts.first_byte);
            let began = self.service.now();
            pass.left();
            let is_empty = http_body::Body::is_end_stream(&body);
            let sent = sent.map(|()| if is_empty { Body::empty() } else { Body::new(body) });
            let answered = route.upstream.send(sent, patience).await.map_err(Failed::from);
            let took = self.service.now().since(began);
            let response = match answered {
                Ok(response) => response,
                Err(Failed { refusal, cause, left }) => {
                    line.cause = Some(cause);
                    if !left {
                        Box::pin(pass.give_back()).await;
                    }
                    match spare.zip(kept).filter(|_| refusal != Refusal::Timeout) {
                        None => return Err(refusal),
                        Some((again, headers)) => {
                            (body, parts.headers, retries) = (again, headers, retries - 1);
                            continue;
                        }
                    }
                }
            };
            route.metrics.answered(response.status().as_u16(), took);
            if response.status() == StatusCode::UNAUTHORIZED {
                route.signer.refused().await;
            }

            // Settle, and pass the response on to the caller.
            let upgrade = upgrade.map(|(_, caller)| caller);
            return Ok(self.hand_on(route, response, upgrade, pass, line).await);
        }
    }

    /// Returns the smaller of `most` and the rest of the request's total timeout.
    pub(crate) fn patience(&self, route: &Route, line: &Line, most: Duration) -> Duration {
        let Some(total) = route.options.timeouts.total else { return most };
        let gone = Duration::from(self.service.now().since(line.began));
        most.min(total.saturating_sub(gone))
    }

    /// Rewrites the header fields of a request for the upstream.
    fn make_ready(
        &self,
        settings: &Settings,
        parts: &mut Parts,
        line: &Line,
        upgrade: Option<&HeaderValue>,
    ) {
        let Parts { headers, uri, extensions, .. } = parts;
        let host = headers.get(header::HOST).filter(|host| host.to_str().is_ok()).cloned();
        let before = Before {
            peer: extensions.get::<Peer>().map(|Peer(address)| address.ip()),
            trusted_hops: settings.trusted_hops,
            tls: self.tls,
            host: host.or_else(|| HeaderValue::from_str(uri.authority()?.as_str()).ok()),
        };
        for_upstream(headers, settings.auth.as_ref().map(|auth| &auth.header), before);
        headers.entry(log::REQUEST_ID).or_insert_with(|| line.trace_id.clone());
        if let Some(protocol) = upgrade {
            tunnel::wish(headers, protocol.clone());
        }
    }

    /// Settles, and passes the response on to the caller.
    async fn hand_on(
        &self,
        route: &Route,
        mut response: Response<Incoming>,
        upgrade: Option<OnUpgrade>,
        pass: Pass,
        line: &mut Line,
    ) -> Response<Body> {
        line.status = response.status().as_u16();
        let (line, service) = (line.clone(), self.service.clone());
        if let Some(upgrade) = upgrade.filter(|_| line.status == 101) {
            let ending = Ending { line, pass: Some(pass), service };
            tunnel::connect(&mut response, upgrade, ending);
            return response.map(|_| Body::empty());
        }
        let (mut head, body) = response.into_parts();
        let mut body = Parked::new(body, u64::MAX);
        let pass = settle(route, &head, &mut body, pass).await;
        strip(&mut head.headers);
        let ending = Ending { line, pass, service };
        let body = Streamed::new(body, route.options.timeouts.idle, ending);
        Response::from_parts(head, Body::new(body))
    }

    /// Reads the beginning of a GraphQL request for the name of its operation.
    async fn read_operation<B>(
        &self,
        route: &Route,
        body: &mut Parked<B>,
        line: &mut Line,
    ) -> Result<(), Refusal>
    where
        B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Unpin,
    {
        let patience = route.options.timeouts.idle;
        let read = tokio::time::timeout(patience, body.begin(GRAPHQL_BYTES)).await;
        let Ok(read) = read else {
            return Err(Refusal::BadRequest("the request body did not arrive in time"));
        };
        read.map_err(|error| broken_off(&error, route.options.body_limit))?;
        line.operation = log::operation(&body.beginning());
        Ok(())
    }

    fn line(&self, settings: &Settings, request: &Request) -> Line {
        let trace_id = log::trace_id(request.headers()).unwrap_or_else(|| {
            let id = self.service.request_id().id.to_string();
            HeaderValue::try_from(id).expect("a request id is hexadecimal")
        });
        let method = request.method().clone();
        Line::new(settings.titles.clone(), trace_id, method, self.service.now())
    }
}

impl Settings {
    fn new(
        options: &Options,
        service: &Arc<Service>,
        metrics: &Metrics,
        before: Option<&Self>,
    ) -> Result<Self, StartError> {
        let route = |route: &crate::options::Route| {
            let before = before.and_then(|before| {
                before.routes.iter().find(|other| other.options.name == route.name)
            });
            let before = before.map(|route| &**route);
            Route::new(&options.name, route, service, metrics, before).map(Arc::new).map_err(
                |source| StartError {
                    gateway: options.name.clone(),
                    route: route.name.clone(),
                    source,
                },
            )
        };
        Ok(Self {
            titles: Arc::new(Titles {
                event: options.event.clone(),
                gateway: options.name.clone(),
            }),
            auth: options.auth.clone(),
            dimensions: options.dimensions.clone(),
            trusted_hops: options.trusted_hops,
            routes: options.routes.iter().map(route).collect::<Result<_, _>>()?,
        })
    }

    /// Checks the token before the route, so that unknown callers learn nothing about the routes.
    fn identify(&self, parts: &Parts) -> Result<Known<'_>, Refusal> {
        identify::check_form(parts)?;
        let caller = identify::caller(self.auth.as_ref(), &parts.headers)?;
        let (route, rest) =
            identify::route(&self.routes, |route| &route.options, parts.uri.path())?;
        identify::check_route(&route.options, parts)?;
        let target = target::target(&route.target, &parts.uri, rest)
            .ok_or(Refusal::BadRequest("the path can't be forwarded: send a valid URI path"))?;
        Ok(Known { route, caller, target })
    }
}

/// Returns true if the method is idempotent (RFC 9110, 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE)
}
