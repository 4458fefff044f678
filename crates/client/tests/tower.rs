//! Tests of the tower layer in real servers of axum and tonic.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::pin::Pin;

use axum::body::{Body, Bytes};
use axum::extract::Extension;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, http};
use futures_util::{Stream, stream};
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use sluicegate::tower::{CostMeter, Header, Path, PeerAddress, RateLimitLayer};
use sluicegate::{Cost, Limiter, Rule, UnavailablePolicy};
use sluicegate_testkit::eventually_async;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceExt as _;

fn limiter(rules: impl IntoIterator<Item = Rule>) -> Limiter {
    let builder = Limiter::builder();
    rules.into_iter().fold(builder, |builder, rule| builder.rule(rule)).build().expect("valid")
}

fn user(limit: &str) -> Limiter {
    limiter([Rule::new("USER").per(["userId"]).limit(limit)])
}

fn by_user(limiter: Limiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter).key("userId", Header::new("x-user-id"))
}

async fn get_path(app: &Router, path: &str, user: &str) -> Response {
    let request = Request::get(path).header("x-user-id", user).body(Body::empty());
    app.clone().oneshot(request.expect("a request")).await.expect("a response")
}

async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn field<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).map(|value| value.to_str().expect("text")).unwrap_or("missing")
}

#[tokio::test]
async fn every_response_has_the_header_fields_and_a_denial_says_why() {
    let app = Router::new()
        .route("/", get(|| ready("hello")))
        .route("/broken", get(|| ready(StatusCode::INTERNAL_SERVER_ERROR)))
        .layer(by_user(user("2/min")));
    for (path, status, remaining) in [("/", 200, "1"), ("/broken", 500, "0")] {
        let response = get_path(&app, path, "ann").await;
        assert_eq!(response.status(), status);
        let headers = response.headers();
        assert_eq!(field(headers, "x-ratelimit-limit"), "2");
        assert_eq!(field(headers, "x-ratelimit-remaining"), remaining);
        assert!(field(headers, "x-ratelimit-reset").parse::<u64>().is_ok());
        assert_eq!(field(headers, "ratelimit-policy"), "\"USER\";q=2;w=60");
        assert!(field(headers, "ratelimit").starts_with(&format!("\"USER\";r={remaining};t=")));
        assert_eq!(field(headers, "retry-after"), "missing");
    }
    let response = get_path(&app, "/", "ann").await;
    assert_eq!(response.status(), 429);
    let seconds: u64 = field(response.headers(), "retry-after").parse().expect("whole seconds");
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert_eq!(field(response.headers(), "x-ratelimit-remaining"), "0");
    assert_eq!(field(response.headers(), "content-type"), "application/json");
    let body: serde_json::Value = serde_json::from_str(&text(response).await).expect("JSON");
    assert_eq!(body["detail"], "Rate limit exceeded: 2 requests per minute");
    assert_eq!((&body["allowed"], &body["reason"]), (&false.into(), &"HIT_USER_LIMIT".into()));
    assert_eq!(get_path(&app, "/", "bob").await.status(), 200);
}

#[tokio::test]
async fn nested_layers_write_the_fields_of_the_tightest_limit() {
    let layer =
        |name: &str, limit: &str| by_user(limiter([Rule::new(name).per(["userId"]).limit(limit)]));
    let inner =
        |limit| Router::new().route("/", get(|| ready("hello"))).layer(layer("INNER", limit));
    let fields = |response: &Response| {
        let headers = response.headers();
        let names =
            ["x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit-policy", "retry-after"];
        (response.status().as_u16(), names.map(|name| field(headers, name).to_owned()))
    };
    let both = "\"OUTER\";q=9;w=60, \"INNER\";q=1;w=60";
    let app = inner("1/min").layer(layer("OUTER", "9/min"));
    let (status, [limit, remaining, policy, _]) = fields(&get_path(&app, "/", "ann").await);
    assert_eq!((status, &*limit, &*remaining, &*policy), (200, "1", "0", both));
    // The denial of the inner layer keeps its fields.
    let (status, [limit, remaining, policy, wait]) = fields(&get_path(&app, "/", "ann").await);
    assert_eq!((status, &*limit, &*remaining, &*policy), (429, "1", "0", both));
    assert!(wait.parse::<u64>().is_ok(), "{wait}");

    let app = inner("9/min").layer(layer("OUTER", "2/min"));
    let (status, [limit, remaining, ..]) = fields(&get_path(&app, "/", "ann").await);
    assert_eq!((status, &*limit, &*remaining), (200, "2", "1"));

    // Fields that no layer wrote, such as those of an upstream, are replaced.
    let upstream = get(|| ready(([("x-ratelimit-remaining", "0")], "hello")));
    let app = Router::new().route("/", upstream).layer(layer("OUTER", "9/min"));
    let (_, [limit, remaining, ..]) = fields(&get_path(&app, "/", "ann").await);
    assert_eq!((&*limit, &*remaining), ("9", "8"));
}

#[tokio::test]
async fn keys_come_from_headers_addresses_paths_and_closures() {
    let rules = [
        Rule::new("ADDRESS").per(["ip"]).limit("100/min"),
        Rule::new("PATH").per(["path"]).limit("1/min"),
        Rule::new("HOST").per(["host"]).limit("2/min"),
    ];
    let layer = RateLimitLayer::new(limiter(rules))
        .key("ip", PeerAddress)
        .key("path", Path)
        .key("host", |request: &Parts| Some(request.headers.get("host")?.to_str().ok()?.to_owned()))
        .skip(|request| request.uri.path() == "/health");
    let app = Router::new().fallback(|| ready("hello")).layer(layer);
    let ask = async |path: &str, host: &str, address: Option<&str>| {
        let mut request = Request::get(path).header("host", host).body(Body::empty()).expect("one");
        if let Some(address) = address {
            let address: SocketAddr = address.parse().expect(address);
            request.extensions_mut().insert(address);
        }
        let response = app.clone().oneshot(request).await.expect("a response");
        (response.status().as_u16(), text(response).await)
    };
    let peer = Some("192.0.2.7:1234");
    assert_eq!(ask("/a", "x", peer).await.0, 200);
    assert_eq!(ask("/a", "x", peer).await.0, 429);
    let long = format!("/{}", "b".repeat(3_000));
    assert_eq!(ask(&long, "x", peer).await.0, 200);
    assert_eq!(ask("/c", "x", peer).await.0, 429, "two of one host");
    assert_eq!(ask("/c", "y", peer).await.0, 200);
    let (status, body) = ask("/d", "y", None).await;
    assert_eq!(status, 400, "{body}");
    assert!(body.starts_with("{\"detail\":\"ip: is required"), "{body}");
    for _ in 0..5 {
        assert_eq!(ask("/health", "x", None).await, (200, "hello".to_owned()));
    }
}

/// A body that sends one piece, and ends when it is told to.
fn open_body() -> (Body, tokio::sync::oneshot::Sender<()>) {
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let last = async move {
        let _ = ended.await;
        Ok(Bytes::from_static(b"last"))
    };
    let first = ready(Ok::<_, Infallible>(Bytes::from_static(b"first")));
    let pieces: Pin<Box<dyn Stream<Item = _> + Send>> =
        Box::pin(stream::select(stream::once(first), stream::once(last)));
    (Body::from_stream(pieces), end)
}

/// Bodies that handlers take, in the order of their requests.
type Bodies = std::sync::Arc<std::sync::Mutex<Vec<Body>>>;

async fn next_body(Extension(bodies): Extension<Bodies>) -> Response {
    let body = bodies.lock().expect("a list").pop();
    body.map_or_else(|| "done".into_response(), |body| body.into_response())
}

#[tokio::test]
async fn a_slot_is_held_until_the_body_ends() {
    let (body, end) = open_body();
    let bodies: Bodies = std::sync::Arc::new(std::sync::Mutex::new(vec![body]));
    let layer = RateLimitLayer::new(limiter([Rule::new("SLOTS").limit("1 concurrent")]));
    let app =
        Router::new().route("/", get(next_body)).layer(layer).layer(Extension(bodies.clone()));
    let response = get_path(&app, "/", "ann").await;
    assert_eq!(response.status(), 200);
    let mut stream = response.into_body();
    let first = stream.frame().await.expect("a piece").expect("no error");
    assert_eq!(first.into_data().expect("data"), "first");
    assert_eq!(get_path(&app, "/", "ann").await.status(), 429, "the body is not over");
    end.send(()).expect("it waits");
    assert_eq!(stream.collect().await.expect("the rest").to_bytes(), "last");
    let response = get_path(&app, "/", "ann").await;
    assert_eq!(response.status(), 200);
    assert_eq!(text(response).await, "done");

    // A client that goes away frees the slot, too.
    let (body, _end) = open_body();
    bodies.lock().expect("a list").push(body);
    let response = get_path(&app, "/", "ann").await;
    assert_eq!(get_path(&app, "/", "ann").await.status(), 429);
    drop(response);
    assert_eq!(text(get_path(&app, "/", "ann").await).await, "done");
}

#[tokio::test]
async fn a_handler_that_is_cancelled_or_panics_frees_its_slot() {
    let layer = RateLimitLayer::new(limiter([Rule::new("SLOTS").limit("1 concurrent")]));
    let never = get(std::future::pending::<&'static str>);
    let fails = get(async || -> &'static str { panic!("the handler of the test fails") });
    let app = Router::new()
        .route("/never", never)
        .route("/fails", fails)
        .route("/", get(|| ready("hello")))
        .layer(layer);
    let waiting = tokio::spawn({
        let app = app.clone();
        async move { get_path(&app, "/never", "ann").await.status() }
    });
    eventually_async(async || get_path(&app, "/", "ann").await.status() == 429).await;
    waiting.abort();
    eventually_async(async || get_path(&app, "/", "ann").await.status() == 200).await;
    let failing = tokio::spawn({
        let app = app.clone();
        async move { get_path(&app, "/fails", "ann").await.status() }
    });
    assert!(failing.await.expect_err("a panic").is_panic());
    eventually_async(async || get_path(&app, "/", "ann").await.status() == 200).await;
}

#[tokio::test]
async fn the_actual_cost_is_settled_when_the_body_ends() {
    let dollars = |text: &str| Cost::new().money(text.parse().expect("an amount"));
    let budget = limiter([Rule::new("BUDGET").per(["userId"]).limit("5.00 USD/day")]);
    let used = async || budget.usage([("userId", "ann")]).await.expect("usage")[0].used;
    let handler = async move |Extension(meter): Extension<CostMeter>| {
        let last = async move {
            meter.set(dollars("0.0012"));
            Ok::<_, Infallible>(Bytes::from_static(b"the cost is known now"))
        };
        Body::from_stream(Box::pin(stream::once(last)) as Pin<Box<dyn Stream<Item = _> + Send>>)
    };
    let app = Router::new()
        .route("/", get(handler))
        .route("/unknown", get(|| ready("hello")))
        .route("/head", get(|| ready(([("x-cost", "0.005")], "hello"))))
        .route(
            "/skipped",
            get(async |Extension(meter): Extension<CostMeter>| meter.set(Cost::new())),
        )
        .layer(
            by_user(budget.clone())
                .reserve(move |_| dollars("0.01"))
                .settle(|response| {
                    let cost = response.headers.get("x-cost")?.to_str().ok()?;
                    Some(Cost::new().money(cost.parse().ok()?))
                })
                .skip(|request| request.uri.path() == "/skipped"),
        );
    let response = get_path(&app, "/", "ann").await;
    assert_eq!(used().await, 10_000_000, "the estimate");
    assert_eq!(text(response).await, "the cost is known now");
    assert_eq!(used().await, 1_200_000, "the actual cost");
    assert_eq!(text(get_path(&app, "/head", "ann").await).await, "hello");
    assert_eq!(used().await, 6_200_000);
    assert_eq!(text(get_path(&app, "/unknown", "ann").await).await, "hello");
    assert_eq!(used().await, 16_200_000, "an estimate without an actual cost stays");
    // The handler extracts the meter also of a request that is not limited.
    assert_eq!(get_path(&app, "/skipped", "ann").await.status(), 200);
    assert_eq!(used().await, 16_200_000);
}

#[tokio::test]
async fn a_store_or_a_service_that_does_not_answer_is_a_503_or_admits() {
    let rule = || Rule::new("USER").per(["userId"]).limit("5/min");
    let app = |limiter| Router::new().route("/", get(|| ready("hello"))).layer(by_user(limiter));
    let redis =
        Limiter::builder().rule(rule()).redis("redis://127.0.0.1:1").build().expect("valid");
    let remote = |policy| {
        Limiter::remote("http://127.0.0.1:1").on_unavailable(policy).build().expect("valid")
    };
    for (limiter, reason) in
        [(redis, "STORE_UNAVAILABLE"), (remote(UnavailablePolicy::Closed), "LIMITER_UNAVAILABLE")]
    {
        let response = get_path(&app(limiter), "/", "ann").await;
        assert_eq!(response.status(), 503);
        assert_eq!(field(response.headers(), "retry-after"), "1");
        assert!(text(response).await.contains(reason), "{reason}");
    }
    let response = get_path(&app(remote(UnavailablePolicy::Error)), "/", "ann").await;
    assert_eq!(response.status(), 503);
    assert!(text(response).await.contains("does not answer"));
    let open = remote(UnavailablePolicy::Open);
    assert_eq!(text(get_path(&app(open.clone()), "/", "ann").await).await, "hello");
    assert_eq!((open.stats().allowed, open.stats().failed_open), (1, 1));
}

#[tokio::test]
async fn axum_tells_the_layer_the_address_of_the_peer() {
    let rule = Rule::new("ADDRESS").per(["ip"]).limit("1/min");
    let layer = RateLimitLayer::new(limiter([rule])).key("ip", PeerAddress);
    let app = Router::new().route("/", get(|| ready("hello"))).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let served = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, served).await });
    for expected in ["HTTP/1.1 200", "HTTP/1.1 429"] {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with(expected), "{answer}");
    }
    server.abort();
}

/// A health service of tonic behind a layer, which ends with the test.
struct Health {
    client: HealthClient<tonic::transport::Channel>,
    reporter: tonic_health::server::HealthReporter,
    server: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Health {
    async fn start(layer: RateLimitLayer) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (reporter, health) = tonic_health::server::health_reporter();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = tonic::transport::Server::builder().layer(layer).add_service(health);
        let server = tokio::spawn(server.serve_with_incoming(incoming));
        let channel = tonic::transport::Channel::from_shared(url).expect("a URL").connect_lazy();
        Self { client: HealthClient::new(channel), reporter, server }
    }
}

#[tokio::test]
async fn tonic_clients_get_a_status_for_each_kind_of_refusal() {
    use tonic::Code;
    let down = Limiter::remote("http://127.0.0.1:1").build().expect("valid");
    let banned = limiter([Rule::new("ADDRESS").per(["ip"]).limit("0")]);
    let missing = limiter([Rule::new("USER").per(["userId"]).limit("5/min")]);
    for (limiter, code, message) in [
        (down, Code::Unavailable, "the rate limiter does not answer: retry later"),
        (banned, Code::PermissionDenied, ""),
        (missing, Code::InvalidArgument, "userId: is required"),
    ] {
        let layer = RateLimitLayer::new(limiter).key("ip", PeerAddress);
        let mut health = Health::start(layer).await;
        let request = HealthCheckRequest { service: String::new() };
        let status = health.client.check(request).await.expect_err("refused");
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().starts_with(message), "{status}");
        health.server.abort();
    }
}

#[tokio::test]
async fn tonic_is_limited_by_method_and_address_also_while_it_streams() {
    let rules = [
        Rule::new("CHECK").when("path", "*/Check").per(["ip"]).limit("2/min"),
        Rule::new("WATCH").when("path", "*/Watch").per(["ip"]).limit("1 concurrent"),
    ];
    let limiter = Limiter::builder().group("method", rules).build().expect("valid");
    let layer = RateLimitLayer::new(limiter).key("ip", PeerAddress).key("path", Path);
    let Health { mut client, reporter, server } = Health::start(layer).await;
    let request = || HealthCheckRequest { service: String::new() };

    for _ in 0..2 {
        let answer = client.check(request()).await.expect("allowed");
        assert_eq!(field(&answer.metadata().clone().into_headers(), "x-ratelimit-limit"), "2");
    }
    let status = client.check(request()).await.expect_err("denied");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert_eq!(status.message(), "Rate limit exceeded: 2 requests per minute");
    let headers = status.metadata().clone().into_headers();
    let pushback: u64 = field(&headers, "grpc-retry-pushback-ms").parse().expect("milliseconds");
    assert!((1..=60_000).contains(&pushback), "{pushback}");
    assert!(field(&headers, "retry-after").parse::<u64>().is_ok());

    let mut watched = client.watch(request()).await.expect("allowed").into_inner();
    assert!(watched.message().await.expect("no error").is_some());
    let status = client.watch(request()).await.expect_err("the stream is open");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    drop(watched);
    // The server notices it by the next write.
    eventually_async(async || {
        reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
        client.watch(request()).await.is_ok()
    })
    .await;
    server.abort();
}
