//! Fake upstreams that record their requests, a running gateway, and clients.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Response, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluicegate_config::{
    Auth, ByteSize, GatewayOptions, HeaderDimension, Listener, ListenerTls, PathPattern, ROUTE,
    RouteOptions, TokenHash, UpstreamUrl, WaitOptions, WaitOrder,
};
use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::time::Clock;
use sluicegate_core::{Group, Limiter, Rule, Ruleset, Span};
use sluicegate_gateway::{Gateway, Metrics};
use sluicegate_http::listener::{self, Stats};
use sluicegate_http::probe::Readiness;
use sluicegate_http::tls::Tls;
use sluicegate_service::Service;
use sluicegate_service::metrics::Registry;
use sluicegate_store::memory::Capacity;
use sluicegate_store::{Memory, MonotonicClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) const TOKEN: &str = "a-token-of-sixteen-letters";

/// Waits for a future; fails the test after 30 seconds.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it should have happened")
}

/// A request that an upstream received.
#[derive(Clone, Debug)]
pub(crate) struct SeenRequest {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl SeenRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }
}

/// An upstream that responds by the path: `/status/429`, `/held`, `/bytes/1000000`, `/answer` with
/// `x-answer-…` fields that it sends back.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Vec<SeenRequest>>>,
    /// Permits for `/held`; it responds when it gets one.
    pub(crate) held: Arc<Semaphore>,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("an address");
        let upstream = Self { address, seen: Arc::default(), held: Arc::new(Semaphore::new(0)) };
        let app = Router::new().fallback(Self::answer).with_state(upstream.clone());
        let stop = CancellationToken::new();
        let serving = listener::serve(
            socket,
            app,
            listener::Options::default(),
            None,
            Arc::new(Stats::default()),
            stop,
        );
        tokio::spawn(serving);
        upstream
    }

    async fn answer(State(upstream): State<Self>, request: Request) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        let mut response = Response::builder();
        for (name, value) in &parts.headers {
            if let Some(name) = name.as_str().strip_prefix("x-answer-") {
                response = response.header(name, value);
            }
        }
        let seen = SeenRequest {
            method: parts.method.to_string(),
            uri: parts.uri.to_string(),
            headers: parts.headers,
            body,
        };
        upstream.seen.lock().expect("the lock").push(seen.clone());
        let number = path.rsplit('/').next().and_then(|number| number.parse::<u64>().ok());
        match path.split('/').nth(1) {
            Some("status") => {
                let status = StatusCode::from_u16(number.unwrap_or(200) as u16).expect("a status");
                response.status(status).body(Body::from("said so")).expect("a response")
            }
            Some("held") => {
                upstream.held.acquire().await.expect("open").forget();
                response.body(Body::from("let go")).expect("a response")
            }
            Some("bytes") => {
                let part = Bytes::from(vec![b'x'; 1 << 16]);
                let parts = number.unwrap_or(0) >> 16;
                let stream = futures_util::stream::iter(
                    (0..parts).map(move |_| Ok::<_, std::io::Error>(part.clone())),
                );
                response.body(Body::from_stream(stream)).expect("a response")
            }
            _ => response.body(Body::from(seen.body)).expect("a response"),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().expect("the lock").len()
    }

    pub(crate) fn last(&self) -> SeenRequest {
        self.seen.lock().expect("the lock").last().expect("a request").clone()
    }
}

/// Starts an upstream that reads the head of a request and then runs `act`.
pub(crate) async fn odd_upstream<F: Future<Output = ()> + Send>(
    act: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = socket.local_addr().expect("an address");
    let act = Arc::new(act);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = socket.accept().await {
            let act = act.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_exact(&mut byte).await.is_err() {
                        return;
                    }
                    head.push(byte[0]);
                }
                act(stream).await;
            });
        }
    });
    address
}

/// Starts an HTTPS server for `localhost` and returns its port. Its certificate is `cert.pem` in the
/// folder.
pub(crate) async fn secure_server(folder: &Path, app: Router) -> u16 {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let tls = Tls::load(ListenerTls { cert, key, client_ca: None }).expect("TLS");
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = socket.local_addr().expect("an address").port();
    let (bounds, stop) = (listener::Options::default(), CancellationToken::new());
    let stats = Arc::new(Stats::default());
    tokio::spawn(listener::serve(socket, app, bounds, Some(Arc::new(tls)), stats, stop));
    port
}

/// Returns a route to an upstream that accepts every request and has no limits.
pub(crate) fn route(upstream: impl std::fmt::Display) -> RouteOptions {
    let upstream = upstream.to_string();
    let upstream = if upstream.contains("://") { upstream } else { format!("http://{upstream}") };
    let after = upstream.split_once("://").map_or("", |(_, rest)| rest);
    RouteOptions {
        name: "all".to_owned(),
        path: PathPattern::Prefix("/".to_owned()),
        methods: Vec::new(),
        upstream: UpstreamUrl {
            has_path: after.contains('/'),
            uri: upstream.parse().expect("an address"),
        },
        http2: false,
        ca: None,
        credentials: None,
        limits: Vec::new(),
        wait: WaitOptions { max: Span::ZERO, depth: 100, burst: None, order: WaitOrder::Fifo },
        connect_timeout: Span::from_secs(5),
        timeout: Span::from_secs(20),
        idle_timeout: Span::from_secs(20),
        deadline: None,
        body_limit: ByteSize(1 << 20),
        body_buffer: ByteSize(64 << 10),
        retries: 0,
        count_if_ok: false,
        upgrades: false,
        graphql: false,
        learn: None,
    }
}

/// Returns the same route with a limit.
pub(crate) fn limited(
    upstream: impl std::fmt::Display,
    limit: &str,
    wait: Duration,
) -> RouteOptions {
    let mut route = route(upstream);
    route.limits = vec![limit.parse().expect("a limit")];
    route.wait.max = wait.into();
    route
}

pub(crate) fn options(routes: Vec<RouteOptions>) -> GatewayOptions {
    let header = |name: &str| name.parse().expect("a name");
    let tenant = HeaderDimension { header: header("x-tenant-id"), required: false };
    GatewayOptions {
        name: "test".to_owned(),
        listen: Listener {
            address: "127.0.0.1:0".parse().expect("an address"),
            tls: None,
            insecure: false,
        },
        token_header: header("x-internal-token"),
        auth: tokens(&[TOKEN]),
        dimensions: [("tenantId".to_owned(), tenant)].into(),
        trusted_hops: 0,
        event: "test_request".to_owned(),
        routes,
    }
}

/// Returns the tokens of the only caller.
pub(crate) fn tokens(tokens: &[&str]) -> Auth {
    let hashes = tokens.iter().map(|token| TokenHash::of(token)).collect();
    Auth { tokens: [("scheduler".to_owned(), hashes)].into(), ..Auth::default() }
}

/// A running gateway.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) service: Arc<Service>,
    pub(crate) metrics: Registry,
    /// Shuts down the listener.
    pub(crate) shutdown: CancellationToken,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A response with its whole body.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// Returns the error code of a rejection.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/json", "{}", self.text());
        let answer: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
        assert!(answer["error"]["message"].is_string(), "{answer}");
        answer["error"]["code"].as_str().expect("a code").to_owned()
    }
}

impl Proxy {
    pub(crate) async fn start(route: RouteOptions) -> Self {
        Self::with(options(vec![route]), Vec::new()).await
    }

    pub(crate) async fn with(options: GatewayOptions, more: Vec<Group>) -> Self {
        Self::with_clock(options, more, MonotonicClock::new()).await
    }

    pub(crate) async fn with_clock(
        options: GatewayOptions,
        more: Vec<Group>,
        clock: impl Clock + 'static,
    ) -> Self {
        let mut groups = more;
        for route in options.routes.iter().filter(|r| !r.limits.is_empty() || r.learn.is_some()) {
            let key = options.route_key(route);
            let rule = match route.limits.as_slice() {
                [] => Rule::unlimited(key.clone()),
                limits => Rule::new(key.clone(), limits.to_vec()),
            };
            let rule = rule.per(&[ROUTE]).gated().when(ROUTE, Pattern::exactly(key.clone()));
            groups.push(Group::new(key, [rule]));
        }
        let rules = Ruleset::new(groups, Settings::default()).expect("rules");
        let limiter = Limiter::new(rules, Memory::new(Capacity::default()).into());
        let service = Arc::new(Service::new(limiter, clock, Vec::new()));
        let metrics = Registry::default();
        let gateway = Gateway::new(&options, service.clone(), Metrics::new(&metrics));
        let gateway = gateway.expect("a gateway");
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("an address");
        let app = gateway.router(Arc::new(|| Readiness::Ready));
        let bounds = listener::Options {
            expose_peer: true,
            mark_ambiguous_length: true,
            body_timeout: None,
            parse_error_bodies: sluicegate_gateway::PARSE_ERROR_BODIES,
            answers_while_draining: true,
            ..listener::Options::default()
        };
        let shutdown = CancellationToken::new();
        let stats = Arc::new(Stats::default());
        tokio::spawn(listener::serve(socket, app, bounds, None, stats, shutdown.clone()));
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        Self { address, gateway, service, metrics, shutdown, client }
    }

    /// Opens an HTTP/2 connection.
    pub(crate) async fn http2(&self) -> SendRequest<Full<Bytes>> {
        let stream = TokioIo::new(TcpStream::connect(self.address).await.expect("a connection"));
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        sender
    }

    /// Returns a request builder with a valid token.
    pub(crate) fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let uri = format!("http://{}{path}", self.address);
        axum::http::Request::builder().method(method).uri(uri).header("x-internal-token", TOKEN)
    }

    pub(crate) async fn send(
        &self,
        request: axum::http::request::Builder,
        body: impl Into<Bytes>,
    ) -> Answer {
        let request = request.body(Full::new(body.into())).expect("a request");
        let response = soon(self.client.request(request)).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = soon(body.collect()).await.expect("a body").to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path), "").await
    }

    /// Returns the number of requests of the only route with this status.
    pub(crate) fn requests(&self, status: u16) -> f64 {
        let labels = format!(r#"gateway="test",route="all",status="{status}""#);
        self.metric(&format!("sluicegate_gateway_requests_total{{{labels}}}"))
    }

    /// Returns the number of requests of the only route that the upstream failed with this code.
    pub(crate) fn upstream_errors(&self, code: &str) -> f64 {
        let labels = format!(r#"code="{code}",gateway="test",route="all""#);
        self.metric(&format!("sluicegate_gateway_upstream_errors_total{{{labels}}}"))
    }

    /// Opens a connection and sends raw bytes.
    pub(crate) async fn connect(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("a connection");
        stream.write_all(bytes.as_ref()).await.expect("written");
        stream
    }

    /// Sends raw bytes; returns the response until the connection ends or is idle.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect(bytes).await;
        let mut answer = Vec::new();
        let mut part = vec![0; 4096];
        while let Ok(Ok(length @ 1..)) =
            tokio::time::timeout(Duration::from_millis(500), stream.read(&mut part)).await
        {
            answer.extend_from_slice(&part[..length]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Returns the value of a metric; 0 if it does not exist.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.render();
        let values: HashMap<_, _> = text.lines().filter_map(|line| line.rsplit_once(' ')).collect();
        values.get(name).map_or(0.0, |value| value.parse().expect("a number"))
    }
}
