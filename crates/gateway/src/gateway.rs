//! [`Gateway`]: the path of a request from its arrival to the last byte of its response:
//!
//! ```text
//! identify → reserve → pace → forward → settle
//! ```

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use sluicegate_config::{GatewayOptions, HeaderDimension, RouteOptions};
use sluicegate_core::Timestamp;
use sluicegate_http::listener::Peer;
use sluicegate_http::probe::{self, Probe};
use sluicegate_http::tokens::{Caller, SharedToken, Tokens};
use sluicegate_http::upstream::{ExchangeError, ReadyConnection};
use sluicegate_service::Service;
use sluicegate_service::trace::{SpanKind, TraceContext, TraceSpan};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::announcements::RouteAnnouncements;
use crate::forward::buffered_body::BodyStalled;
use crate::forward::headers::{ClientConnection, for_upstream, strip};
use crate::forward::streamed_body::StreamedBody;
use crate::forward::upload::body_refusal;
use crate::forward::{
    BodyBudget, BufferedBody, ForwardError, HeldConnection, Upload, UploadTimeouts, target, tunnel,
};
use crate::grpc;
use crate::identify::{self, CallerAuth};
use crate::log::{self, LogContext, LogLine, PendingLine};
use crate::metrics::Metrics;
use crate::pass::Pass;
use crate::refusal::Refusal;
use crate::reserve::LimitCheck;
use crate::route::{Route, RouteError, lane_options};
use crate::settle::{RequestEnd, settle};

/// Maximum memory for the bodies of all waiting requests, in bytes.
const BUFFERED_BYTES_MAX: usize = 64 << 20;
/// Maximum number of bytes read from a GraphQL request to find the name of its operation.
const GRAPHQL_BYTES: usize = 64 << 10;
/// Maximum number of times that a request is sent again with the same pass, because nothing of it
/// was sent.
const UNSENT_RETRIES_MAX: usize = 2;

/// A gateway: forwards the requests of one listener to upstreams.
pub struct Gateway {
    pub(crate) service: Arc<Service>,
    settings: ArcSwap<Settings>,
    metrics: Metrics,
    pub(crate) body_budget: BodyBudget,
    tls: bool,
    /// Cancelled at shutdown: new requests are rejected.
    draining: CancellationToken,
    /// Cancelled at the end of the grace period, or of the process: requests without a response are
    /// rejected, and tunnels are closed.
    cutoff: CancellationToken,
}

/// Settings that a reload replaces as a whole.
struct Settings {
    context: Arc<LogContext>,
    auth: Option<CallerAuth>,
    dimensions: BTreeMap<String, HeaderDimension>,
    trusted_hops: usize,
    routes: Vec<Arc<Route>>,
}

/// The state of a route, for the dashboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteState {
    /// Name of the route.
    pub route: String,
    /// Time until which it is closed on all replicas, by the clock of the store; the error if the
    /// store did not answer.
    pub closed_until: Result<Option<Timestamp>, String>,
    /// The limits that the upstream has announced to this replica.
    pub announced: RouteAnnouncements,
}

/// A validated configuration, ready for [`Gateway::apply`].
pub struct PreparedSettings(Settings);

/// The reason why a gateway can't start, or can't use a new configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Two callers have the same token.
    #[error("gateway {0}: auth.tokens: {1}")]
    Tokens(String, SharedToken),
    /// A route can't be used.
    #[error("gateway {0}, route {1}: {2}")]
    Route(String, String, RouteError),
}

/// A request with its route and caller.
struct IdentifiedRequest<'s> {
    route: &'s Arc<Route>,
    caller: Caller,
    /// Address that the request is forwarded to.
    target: Uri,
}

impl Gateway {
    /// Creates a gateway.
    pub fn new(
        options: &GatewayOptions,
        service: Arc<Service>,
        metrics: Metrics,
    ) -> Result<Arc<Self>, StartError> {
        let tls = options.listen.tls.is_some();
        let settings = Settings::new(options, &service, &metrics, None)?;
        let settings = ArcSwap::from_pointee(settings);
        let body_budget = BodyBudget::new(BUFFERED_BYTES_MAX);
        let (draining, cutoff) = (CancellationToken::new(), CancellationToken::new());
        Ok(Arc::new(Self { service, settings, metrics, body_budget, tls, draining, cutoff }))
    }

    /// Rejects new requests from now on. Requests that arrived before keep their place.
    pub fn start_draining(&self) {
        self.draining.cancel();
    }

    /// Rejects all requests that have no response yet, and closes all tunnels.
    pub fn cut_off(&self) {
        self.draining.cancel();
        self.cutoff.cancel();
    }

    /// Validates new options. Nothing changes until [`Gateway::apply`].
    pub fn prepare(&self, options: &GatewayOptions) -> Result<PreparedSettings, StartError> {
        let before = self.settings.load_full();
        Settings::new(options, &self.service, &self.metrics, Some(&before)).map(PreparedSettings)
    }

    /// Applies a prepared configuration from the next request on. Waiting requests keep their
    /// place.
    pub fn apply(&self, PreparedSettings(settings): PreparedSettings) {
        for route in &settings.routes {
            route.lane.reconfigure(lane_options(&route.options));
        }
        self.settings.store(Arc::new(settings));
    }

    /// Asks the store for the states of all routes.
    pub async fn route_states(&self) -> Vec<RouteState> {
        let settings = self.settings.load_full();
        let states = settings.routes.iter().map(|route| async {
            let closed_until = route.lane.closed_until().await.map_err(|error| error.to_string());
            let (route, announced) = (route.options.name.clone(), route.announced());
            RouteState { route, closed_until, announced }
        });
        futures_util::future::join_all(states).await
    }

    /// Returns the pauses that upstreams have asked this replica for: route, end and reason.
    pub fn pauses(&self) -> Vec<(String, Timestamp, String)> {
        let settings = self.settings.load();
        let pause = |route: &Arc<Route>| {
            let (until, reason) = route.announced().pause?;
            Some((route.options.name.clone(), until, reason))
        };
        settings.routes.iter().filter_map(pause).collect()
    }

    /// Returns the HTTP service: the health probes, and the proxy for all other paths.
    pub fn router(self: &Arc<Self>, ready: Probe) -> Router {
        let all = Router::new().fallback(Self::handle).with_state(self.clone());
        probe::router(ready).merge(all)
    }

    async fn handle(State(gateway): State<Arc<Self>>, request: Request) -> Response<Body> {
        let settings = gateway.settings.load_full();
        let grpc = sluicegate_service::grpc::content_type(request.headers());
        let service = gateway.service.clone();
        let mut line = PendingLine::new(gateway.line(&settings, &request), service);
        let span = line.span.clone();
        let processed = if gateway.draining.is_cancelled() {
            Err(Refusal::ShuttingDown)
        } else {
            tokio::select! {
                biased;
                processed = span.run(gateway.process(&settings, request, &mut line)) => processed,
                () = gateway.cutoff.cancelled() => Err(Refusal::ShuttingDown),
            }
        };
        match processed {
            Ok(response) => {
                line.discard();
                response
            }
            Err(refusal) => {
                drop(span);
                line.reject(&refusal);
                match grpc {
                    None => refusal.response(),
                    Some(content_type) => grpc::response(&refusal, content_type),
                }
            }
        }
    }

    /// Runs all steps of a request. On a rejection the caller of this function writes the log line;
    /// on success the end of the response body does.
    async fn process(
        self: &Arc<Self>,
        settings: &Settings,
        mut request: Request,
        line: &mut LogLine,
    ) -> Result<Response<Body>, Refusal> {
        // Identify: find the caller and the route.
        let upgrade = tunnel::caller_side(&mut request);
        let (mut parts, body) = request.into_parts();
        let IdentifiedRequest { route, caller, target } = settings.identify(&parts)?;
        let mut body = BufferedBody::new(body, route.options.body_limit.0);
        line.caller = Some(caller.clone());
        line.route = Some(route.metrics.clone());
        line.queue_depth = route.lane.depth();
        if route.options.graphql {
            Box::pin(self.read_operation(route, &mut body, line)).await?;
        }
        let upgrade = tunnel::requested_protocol(&parts).map(|protocol| (protocol, upgrade));
        let is_idempotent = is_idempotent(&parts.method);
        let mut retries = if is_idempotent { route.options.retries } else { 0 };
        // If the upstream closes an idle connection just before a request arrives, that says
        // nothing about the upstream. So the request is repeated once, even without `retries`.
        let mut may_repeat = is_idempotent;
        self.read_small_body(route, &parts, &mut body, line).await?;
        // The pass of a request that missed its turn when it was written.
        let mut missed = None;

        loop {
            // Log in before queueing: a login takes longer than a slot is valid.
            route.signer.prepare(&route.upstream, self.service.clock()).await?;

            // Connect before the turn, too: see `forward::connect`.
            let mut held = match self.connect_first(route, line).await {
                Ok(held) => held,
                Err(ForwardError { refusal, cause, .. }) => {
                    route.metrics.failed(&refusal);
                    line.cause = Some(cause);
                    if retries == 0 || !refusal.is_retryable() {
                        return Err(refusal);
                    }
                    retries -= 1;
                    continue;
                }
            };

            // Reserve and pace: after this the request has a pass, or it was rejected.
            let check = LimitCheck {
                key: &route.key,
                limited: !route.options.limits.is_empty(),
                served_within: route.options.wait.max + route.options.timeout,
                lease_times: &route.lease_times,
                caller: &caller,
                dimensions: &settings.dimensions,
                headers: &parts.headers,
            };
            let late_pass = missed.take();
            let held_now = held.as_mut();
            let pass = self.pass(route, &check, held_now, late_pass, &mut body, line).await?;
            (line.allowed, line.remaining) = (true, pass.remaining);
            line.store_up = pass.outage.is_none();

            // Forward: a request that was sent counts, one that was not is refunded.
            let connection = self.connection(route, held, line).await;
            let may_be_stale = connection.as_ref().is_ok_and(ReadyConnection::is_reused);
            let is_kept =
                retries > 0 || may_repeat && may_be_stale || pass.is_paced() && body.is_small();
            let spare = if is_kept { body.copy() } else { None };
            let kept = spare.as_ref().map(|_| parts.headers.clone());
            self.rewrite_headers(settings, &mut parts, line, upgrade.as_ref().map(|u| &u.0));
            let mut sent = axum::http::Request::new(());
            *sent.method_mut() = parts.method.clone();
            *sent.uri_mut() = target.clone();
            *sent.headers_mut() = std::mem::take(&mut parts.headers);
            route.signer.sign(sent.headers_mut(), &route.upstream, self.service.clock()).await?;
            let upload = Upload::new(&self.service, spare.is_some());
            let sent = sent.map(|()| match http_body::Body::is_end_stream(&body) {
                true => Body::empty(),
                false => Body::new(upload.track(body, route.options.idle_timeout.into())),
            });
            let (mut pass, answered) = match connection {
                Ok(connection) => {
                    self.exchange(route, pass, connection, sent, &upload, line).await?
                }
                Err(error) => (pass, Err(error)),
            };
            let response = match answered {
                Ok(response) => response,
                Err(ForwardError { refusal, cause, left, stale, late }) => {
                    // If the request body failed, the connection to the upstream broke because of
                    // it.
                    let refusal = upload.fault().cloned().unwrap_or(refusal);
                    line.cause = Some(cause);
                    let again = spare.zip(kept).filter(|_| refusal.is_retryable());
                    let is_repeated = again.is_some() && (late || stale && may_repeat);
                    if late {
                        pass.not_sent();
                    }
                    if late && is_repeated {
                        missed = Some(pass);
                    } else if !left {
                        Box::pin(pass.give_back()).await;
                    }
                    if !is_repeated {
                        route.metrics.failed(&refusal);
                    }
                    let Some((again, headers)) = again else { return Err(refusal) };
                    if is_repeated {
                        may_repeat &= late;
                    } else if retries > 0 {
                        retries -= 1;
                    } else {
                        return Err(refusal);
                    }
                    (body, parts.headers) = (again, headers);
                    continue;
                }
            };
            if response.status() == StatusCode::UNAUTHORIZED {
                route.signer.refused().await;
            }

            if !tunnel::is_solicited(&response, upgrade.as_ref().map(|upgrade| &upgrade.0)) {
                route.metrics.failed(&Refusal::Broken);
                line.cause = Some("the upstream switched protocols without being asked".to_owned());
                return Err(Refusal::Broken);
            }

            // Settle, and pass the response on to the caller.
            let upgrade = upgrade.map(|(_, caller)| caller);
            return Ok(self.respond(route, response, upgrade, upload, pass, line).await);
        }
    }

    /// Returns a pass for a request: the first one, or another one instead of `missed`.
    async fn pass<B>(
        &self,
        route: &Route,
        check: &LimitCheck<'_>,
        held: Option<&mut HeldConnection<'_>>,
        missed: Option<Pass>,
        body: &mut BufferedBody<B>,
        line: &mut LogLine,
    ) -> Result<Pass, Refusal>
    where
        B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Unpin,
    {
        let admission = pin!(async {
            match missed {
                None => self.admit(route, check, body, line).await,
                Some(pass) => Box::pin(self.next_turn(route, pass, line)).await,
            }
        });
        match held {
            Some(held) => held.during(admission).await,
            None => admission.await,
        }
    }

    /// Checks out a connection for a request that may go at once. A request that has to wait is
    /// announced to the connection pool instead.
    async fn connect_first<'r>(
        &self,
        route: &'r Route,
        line: &LogLine,
    ) -> Result<Option<HeldConnection<'r>>, ForwardError> {
        if route.options.limits.is_empty() {
            return Ok(None);
        }
        if route.lane.is_busy() {
            return Ok(Some(route.places.expect(&route.pool)));
        }
        let wait_max = self.time_left(route, line, Duration::MAX);
        Ok(Some(route.places.checkout(&route.pool, wait_max).await?))
    }

    /// Returns the connection that an admitted request already has, or checks one out.
    async fn connection(
        &self,
        route: &Route,
        held: Option<HeldConnection<'_>>,
        line: &LogLine,
    ) -> Result<ReadyConnection, ForwardError> {
        let held = held.and_then(HeldConnection::take);
        if let Some(connection) = held.filter(ReadyConnection::is_open) {
            return Ok(connection);
        }
        Ok(route.pool.checkout(self.time_left(route, line, Duration::MAX)).await?)
    }

    /// Sends a request on a ready connection and waits for the head of the response.
    ///
    /// A request that missed its turn gets the next one and keeps its connection. A request of
    /// which nothing was sent, because the upstream had closed the connection, is sent on another
    /// one with the same pass.
    async fn exchange(
        &self,
        route: &Route,
        mut pass: Pass,
        connection: ReadyConnection,
        mut request: axum::http::Request<Body>,
        upload: &Upload,
        line: &mut LogLine,
    ) -> Result<(Pass, Result<Response<Incoming>, ForwardError>), Refusal> {
        let mut ready = Some(connection);
        let mut unsent_retries = UNSENT_RETRIES_MAX;
        let mut is_counted = false;
        loop {
            let connection = match ready.take().filter(ReadyConnection::is_open) {
                Some(connection) => connection,
                None => {
                    let wait_max = self.time_left(route, line, Duration::MAX);
                    match Box::pin(route.pool.checkout_new(wait_max)).await {
                        Ok(connection) => connection,
                        Err(error) => return Ok((pass, Err(error.into()))),
                    }
                }
            };
            // Nothing after the turn may wait: the request has to be sent at once.
            if !self.try_start(route, &pass, line) {
                pass = Box::pin(self.until_turn(route, pass, line)).await?;
            }
            if !connection.is_open() {
                pass.not_sent();
                continue;
            }
            if pass.is_paced() && !std::mem::replace(&mut is_counted, true) {
                route.metrics.waited(line.waited);
            }
            let began = self.service.now();
            pass.left();
            // The process may be suspended before the connection writes the request.
            if let Some(latest) = pass.latest_start().filter(|_| upload.is_repeatable()) {
                request.extensions_mut().insert(latest);
            }
            let timeouts = self.upload_timeouts(route, line);
            let span = self.upstream_span(&mut request);
            let failed = match upload.answered(timeouts, connection.send(request)).await {
                Ok(Ok(response)) => {
                    let took = self.service.now().since(began);
                    route.metrics.answered(response.status().as_u16(), took);
                    span.set("http.response.status_code", || response.status().as_u16());
                    return Ok((pass, Ok(response)));
                }
                Ok(Err(failed)) => failed,
                Err(refusal) => {
                    span.fail(|| refusal.code().1.to_owned());
                    return Ok((pass, Err(ForwardError::timed_out(refusal))));
                }
            };
            span.fail(|| failed.to_string());
            match failed {
                ExchangeError { unsent: Some(unsent), .. } if unsent_retries > 0 => {
                    pass.not_sent();
                    (request, unsent_retries) = (*unsent, unsent_retries - 1);
                }
                failed => return Ok((pass, Err(failed.into()))),
            }
        }
    }

    /// Starts the span of a request to the upstream, which continues the trace.
    fn upstream_span(&self, request: &mut axum::http::Request<Body>) -> TraceSpan {
        let span = self.service.tracer().child("upstream", SpanKind::Client);
        for (name, value) in span.fields() {
            if let Ok(value) = HeaderValue::try_from(value) {
                request.headers_mut().insert(name, value);
            }
        }
        span.set("http.request.method", || request.method().as_str().to_owned());
        let host = request.uri().host().unwrap_or_default();
        span.set("server.address", || host.to_owned());
        span
    }

    /// Returns the smaller of `most` and the rest of the request's total timeout.
    pub(crate) fn time_left(&self, route: &Route, line: &LogLine, most: Duration) -> Duration {
        let Some(total) = route.options.deadline else { return most };
        let gone = Duration::from(self.service.now().since(line.began));
        most.min(Duration::from(total).saturating_sub(gone))
    }

    /// Returns the time limits of a request that is about to be sent.
    fn upload_timeouts(&self, route: &Route, line: &LogLine) -> UploadTimeouts {
        let total = route.options.deadline;
        UploadTimeouts {
            upstream: route.options.timeout.into(),
            total: total.map(|total| self.time_left(route, line, total.into())),
        }
    }

    /// Rewrites the header fields of a request for the upstream.
    fn rewrite_headers(
        &self,
        settings: &Settings,
        parts: &mut Parts,
        line: &LogLine,
        upgrade: Option<&HeaderValue>,
    ) {
        let Parts { headers, uri, extensions, .. } = parts;
        let host = headers.get(header::HOST).filter(|host| host.to_str().is_ok()).cloned();
        let client = ClientConnection {
            peer: extensions.get::<Peer>().map(|Peer(address)| address.ip()),
            trusted_hops: settings.trusted_hops,
            tls: self.tls,
            host: host.or_else(|| HeaderValue::from_str(uri.authority()?.as_str()).ok()),
        };
        for_upstream(headers, settings.auth.as_ref().map(|auth| &auth.header), client);
        headers.entry(log::REQUEST_ID).or_insert_with(|| line.trace_id.clone());
        if let Some(protocol) = upgrade {
            tunnel::request_upgrade(headers, protocol.clone());
        }
    }

    /// Settles, and passes the response on to the caller.
    async fn respond(
        &self,
        route: &Route,
        mut response: Response<Incoming>,
        upgrade: Option<OnUpgrade>,
        upload: Upload,
        pass: Pass,
        line: &mut LogLine,
    ) -> Response<Body> {
        line.status = response.status().as_u16();
        let (line, service) = (line.clone(), self.service.clone());
        if let Some(upgrade) = upgrade.filter(|_| line.status == 101) {
            let ending = RequestEnd { line, pass: Some(pass), upload, service };
            let tunnel = tunnel::connect(&mut response, upgrade);
            let cutoff = self.cutoff.clone();
            self.service.tasks().spawn(async move {
                let _ending = ending;
                let _ = cutoff.run_until_cancelled(tunnel).await;
            });
            return response.map(|_| Body::empty());
        }
        let (mut head, body) = response.into_parts();
        let mut body = BufferedBody::new(body, u64::MAX);
        let pass = settle(route, &head, &mut body, pass).await;
        strip(&mut head.headers);
        let ending = RequestEnd { line, pass, upload, service };
        let body = StreamedBody::new(body, route.options.idle_timeout.into(), ending);
        Response::from_parts(head, Body::new(body))
    }

    /// Reads a small body completely before the request asks for its turn: a slow client would hold
    /// turn and connection. A streaming RPC is not read, because its client may wait for the
    /// beginning of the response.
    async fn read_small_body<B>(
        &self,
        route: &Route,
        parts: &Parts,
        body: &mut BufferedBody<B>,
        line: &LogLine,
    ) -> Result<(), Refusal>
    where
        B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Unpin,
    {
        if http_body::Body::is_end_stream(body) || is_streaming_rpc(parts) {
            return Ok(());
        }
        let RouteOptions { body_buffer, idle_timeout, .. } = route.options;
        let reading =
            body.read_if_small(body_buffer.as_usize(), idle_timeout.into(), &self.body_budget);
        let read = timeout(self.time_left(route, line, Duration::MAX), reading).await;
        match read {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.is::<BodyStalled>() => Err(Refusal::BodyTimeout),
            Ok(Err(error)) => Err(body_refusal(&error)),
            Err(_) => Err(Refusal::BodyTimeout),
        }
    }

    /// Reads the beginning of a GraphQL request for the name of its operation.
    async fn read_operation<B>(
        &self,
        route: &Route,
        body: &mut BufferedBody<B>,
        line: &mut LogLine,
    ) -> Result<(), Refusal>
    where
        B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Unpin,
    {
        let idle = route.options.idle_timeout;
        let read = timeout(idle.into(), body.read_beginning(GRAPHQL_BYTES)).await;
        let Ok(read) = read else {
            return Err(Refusal::BodyTimeout);
        };
        read.map_err(|error| body_refusal(&error))?;
        line.operation = log::operation(&body.beginning());
        Ok(())
    }

    fn line(&self, settings: &Settings, request: &Request) -> LogLine {
        let headers = request.headers();
        let span = self.service.tracer().root("gateway", SpanKind::Server, || {
            TraceContext::of_fields(|name| headers.get_all(name).iter().map(HeaderValue::as_bytes))
        });
        let hex = |id: String| HeaderValue::try_from(id).expect("an id is hexadecimal");
        let trace_id = match span.context() {
            Some(context) => hex(context.trace.to_string()),
            None => log::trace_id(headers)
                .unwrap_or_else(|| hex(self.service.request_id().id.to_string())),
        };
        let method = request.method().clone();
        let span = span.about(&settings.context.gateway);
        LogLine::new(settings.context.clone(), (trace_id, span), method, self.service.now())
    }
}

impl Settings {
    fn new(
        options: &GatewayOptions,
        service: &Arc<Service>,
        metrics: &Metrics,
        before: Option<&Self>,
    ) -> Result<Self, StartError> {
        let name = &options.name;
        let tokens = Tokens::of(&options.auth);
        let tokens = tokens.map_err(|error| StartError::Tokens(name.clone(), error))?;
        let route = |route: &RouteOptions| {
            let before = before.and_then(|before| {
                before.routes.iter().find(|other| other.options.name == route.name)
            });
            let before = before.map(|route| &**route);
            let made = Route::new(options, route, service, metrics, before).map(Arc::new);
            made.map_err(|error| StartError::Route(name.clone(), route.name.clone(), error))
        };
        Ok(Self {
            context: Arc::new(LogContext { event: options.event.clone(), gateway: name.clone() }),
            auth: tokens.map(|tokens| CallerAuth { header: options.token_header.clone(), tokens }),
            dimensions: options.dimensions.clone(),
            trusted_hops: options.trusted_hops,
            routes: options.routes.iter().map(route).collect::<Result<_, _>>()?,
        })
    }

    /// Checks the token before the route, so that unknown callers learn nothing about the routes.
    fn identify(&self, parts: &Parts) -> Result<IdentifiedRequest<'_>, Refusal> {
        identify::check_form(parts)?;
        let caller = identify::caller(self.auth.as_ref(), &parts.headers)?;
        let (route, rest) =
            identify::route(&self.routes, |route| &route.options, parts.uri.path())?;
        identify::check_route(&route.options, parts)?;
        identify::check_dimensions(&self.dimensions, &parts.headers)?;
        let target = target::target(&route.target, &parts.uri, rest)
            .ok_or(Refusal::BadRequest("the path can't be forwarded: send a valid URI path"))?;
        Ok(IdentifiedRequest { route, caller, target })
    }
}

/// Returns true if client and server may talk in turns within one request (gRPC and Connect).
fn is_streaming_rpc(parts: &Parts) -> bool {
    let kind = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let streaming: [&[u8]; 2] = [b"application/grpc", b"application/connect+"];
    kind.is_some_and(|kind| streaming.iter().any(|prefix| kind.starts_with(prefix)))
}

/// Returns true if the method is idempotent (RFC 9110, 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE)
}
