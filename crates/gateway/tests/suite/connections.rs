//! Tests of the order of connection, body and turn: a request takes its turn when it can be sent at
//! once.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use sluicegate_config::{ByteSize, RouteOptions};
use sluicegate_core::Span;
use sluicegate_testkit::eventually_is_async;
use sluicegate_testkit::proxy::FaultProxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    Proxy, TOKEN, Upstream, limited, odd_upstream, options, route, secure_server, soon,
};

const DEPTH: &str = r#"sluicegate_gateway_queue_depth{gateway="test",route="all"}"#;
const WAITED: &str = r#"sluicegate_gateway_wait_seconds_count{gateway="test",route="all"}"#;
/// Longer than 20 turns of a limit of 1/h.
const DAYS: Duration = Duration::from_secs(400_000);

/// An upstream with TLS behind a proxy that can hold back handshakes.
struct SecureUpstream {
    proxy: FaultProxy,
    /// Number of requests that arrived.
    seen: Arc<AtomicUsize>,
    folder: tempfile::TempDir,
}

impl SecureUpstream {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let seen = Arc::new(AtomicUsize::new(0));
        let count = |State(seen): State<Arc<AtomicUsize>>| async move {
            seen.fetch_add(1, Ordering::SeqCst);
        };
        let app = axum::Router::new().fallback(count).with_state(seen.clone());
        let port = secure_server(folder.path(), app).await;
        Self { proxy: FaultProxy::start(port), seen, folder }
    }

    fn address(&self) -> String {
        format!("https://localhost:{}", self.proxy.port)
    }

    fn route(&self, limit: &str, wait: Duration) -> RouteOptions {
        let ca = Some(Path::join(self.folder.path(), "cert.pem"));
        RouteOptions { ca, ..limited(self.address(), limit, wait) }
    }

    fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

/// Returns the head of a request.
fn head(method: &str, more: &str) -> String {
    format!("{method} / HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\n{more}\r\n")
}

/// Reads until the server has sent this text.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = String::new();
    while !read.contains(end) {
        let byte = soon(stream.read_u8()).await;
        read.push(char::from(byte.unwrap_or_else(|_| panic!("{end:?} is missing in {read:?}"))));
    }
    read
}

/// A turn that is taken before the handshake is used one handshake later than the limiter counts.
#[tokio::test]
async fn no_turn_is_taken_before_the_handshake_with_the_upstream_is_done() {
    let (upstream, other) = (SecureUpstream::start().await, Upstream::start().await);
    let proxy = Proxy::start(upstream.route("1/h", Duration::ZERO)).await;
    upstream.proxy.hold_new_connections();
    let _stuck = proxy.connect(head("GET", "")).await;
    eventually_is_async(|| upstream.proxy.connections(), 1).await;
    // The same route and limit, at an address that can be reached.
    let changed = options(vec![limited(other.address, "1/h", Duration::ZERO)]);
    proxy.gateway.apply(proxy.gateway.prepare(&changed).expect("sound"));
    assert_eq!(proxy.get("/").await.status, 200, "the request in its handshake used up the turn");
    assert_eq!(proxy.get("/").await.status, 429);
    assert_eq!(upstream.seen(), 0);
}

/// While the upstream accepts no connections, requests fail after the connect timeout, however many
/// there are.
#[tokio::test]
async fn requests_to_an_upstream_without_an_answer_do_not_queue_up() {
    let upstream = SecureUpstream::start().await;
    let mut to = upstream.route("1/s", Duration::from_secs(60));
    to.connect_timeout = Span::from_millis(200);
    let proxy = Proxy::start(to).await;
    upstream.proxy.hold_new_connections();
    let answers = futures_util::future::join_all((0..500).map(|_| proxy.get("/"))).await;
    for answer in answers {
        assert_eq!((answer.status, answer.code().as_str()), (502, "UPSTREAM_UNREACHABLE"));
    }
}

#[tokio::test]
async fn a_request_that_waits_finds_a_connection_whose_handshake_is_done() {
    let upstream = SecureUpstream::start().await;
    let proxy = Proxy::start(upstream.route("2/s", Duration::from_secs(60))).await;
    assert_eq!(proxy.get("/").await.status, 200);
    // From here on, a new connection would never be ready.
    upstream.proxy.hold_new_connections();
    let answers = futures_util::future::join_all((0..5).map(|_| proxy.get("/"))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!((upstream.seen(), upstream.proxy.connections()), (6, 1));
    assert!(proxy.metric(WAITED) >= 3.0);
}

/// A connection for each of thousands of waiting requests would overload a strict upstream.
#[tokio::test]
async fn waiting_requests_open_only_as_many_connections_as_one_second_needs() {
    let upstream = Upstream::start().await;
    let counted = FaultProxy::start(upstream.address.port());
    let address = format!("127.0.0.1:{}", counted.port);
    let proxy = Proxy::start(limited(address, "1/h", DAYS)).await;
    // The first request has its turn, and its response keeps the connection busy.
    let mut busy = proxy.connect(head("GET", "").replace("GET /", "GET /held")).await;
    eventually_is_async(|| upstream.count(), 1).await;
    let _first = proxy.connect(head("GET", "")).await;
    // Another connection is ready before the turn.
    eventually_is_async(|| counted.connections(), 2).await;
    eventually_is_async(|| proxy.metric(DEPTH), 1.0).await;
    let mut waiting = Vec::new();
    for number in 2..=20 {
        waiting.push(proxy.connect(head("GET", "")).await);
        eventually_is_async(|| proxy.metric(DEPTH), f64::from(number)).await;
    }
    // One is busy and one is ready. The first that waited held another one until it knew that it
    // has to wait.
    let opened = counted.connections();
    assert!(opened <= 3, "{opened}");
    upstream.held.add_permits(1);
    assert!(read_until(&mut busy, "let go").await.starts_with("HTTP/1.1 200"));
    assert_eq!((upstream.count(), counted.connections()), (1, opened));
}

/// Denied requests look at a connection as well. They must share those that there are.
#[tokio::test]
async fn denied_requests_open_no_further_connections() {
    let upstream = SecureUpstream::start().await;
    let proxy = Proxy::start(upstream.route("1/h", Duration::ZERO)).await;
    assert_eq!(proxy.get("/").await.status, 200);
    let answers = futures_util::future::join_all((0..50).map(|_| proxy.get("/"))).await;
    assert!(answers.iter().all(|answer| answer.status == 429));
    assert_eq!((upstream.seen(), upstream.proxy.connections()), (1, 1));
}

/// Starts an upstream that answers the first request of each connection and closes the connection
/// when a second one arrives. Returns its address and the number of requests that arrived.
async fn closing_upstream() -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    let address = odd_upstream(move |mut stream: TcpStream| {
        let counted = counted.clone();
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            let _ = stream.write_all(answer).await;
            if let Ok(1..) = stream.read(&mut [0; 1024]).await {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    (address, seen)
}

#[tokio::test]
async fn an_idempotent_request_on_a_connection_that_the_upstream_closes_is_repeated() {
    let (upstream, seen) = closing_upstream().await;
    let proxy = Proxy::start(route(upstream)).await;
    assert_eq!(proxy.get("/").await.text(), "ok");
    // The connection is back in the pool at some time after the end of the response.
    soon(async {
        loop {
            let before = seen.load(Ordering::SeqCst);
            let answer = proxy.send(proxy.request("PUT", "/"), "body").await;
            assert_eq!((answer.status, answer.text()), (200, "ok"));
            if seen.load(Ordering::SeqCst) - before == 2 {
                break;
            }
        }
    })
    .await;
    assert_eq!(proxy.upstream_errors("UPSTREAM_BROKEN"), 0.0, "its caller has an answer");
}

/// The upstream may have acted on it.
#[tokio::test]
async fn a_request_that_is_not_idempotent_is_not_repeated_after_it_was_sent() {
    let (upstream, seen) = closing_upstream().await;
    let proxy = Proxy::start(route(upstream)).await;
    assert_eq!(proxy.get("/").await.text(), "ok");
    soon(async {
        loop {
            let before = seen.load(Ordering::SeqCst);
            let answer = proxy.send(proxy.request("POST", "/"), "body").await;
            assert_eq!(seen.load(Ordering::SeqCst) - before, 1, "{answer:?}");
            if answer.status == 502 {
                assert_eq!(answer.code(), "UPSTREAM_BROKEN");
                break;
            }
        }
    })
    .await;
    assert_eq!(proxy.upstream_errors("UPSTREAM_BROKEN"), 1.0);
}

/// A repeated request that reached the upstream twice counts twice.
#[tokio::test]
async fn a_repeated_request_takes_a_turn_of_its_own() {
    let (upstream, seen) = closing_upstream().await;
    let proxy = Proxy::start(limited(upstream, "20/h", Duration::ZERO)).await;
    soon(async { while proxy.get("/").await.status == 200 {} }).await;
    assert_eq!(seen.load(Ordering::SeqCst), 20);
}

/// With `Expect: 100-continue` the client learns that the gateway reads its body.
const SLOW: &str = "expect: 100-continue\r\ncontent-length: 10\r\n";

#[tokio::test]
async fn a_slow_body_takes_no_turn_before_it_is_complete() {
    let upstream = Upstream::start().await;
    for wait in [Duration::ZERO, Duration::from_secs(1)] {
        let proxy = Proxy::start(limited(upstream.address, "1/h", wait)).await;
        let mut slow = proxy.connect(head("POST", SLOW)).await;
        read_until(&mut slow, "100 Continue\r\n\r\n").await;
        slow.write_all(b"half ").await.expect("written");
        // It came later, and it is ready to go.
        assert_eq!(proxy.get("/").await.status, 200);
        slow.write_all(b"other").await.expect("written");
        let answer = read_until(&mut slow, "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_slow_body_holds_no_connection_to_the_upstream() {
    let upstream = SecureUpstream::start().await;
    let proxy = Proxy::start(upstream.route("5/h", Duration::ZERO)).await;
    let mut slow = proxy.connect(head("POST", SLOW)).await;
    read_until(&mut slow, "100 Continue\r\n\r\n").await;
    assert_eq!(upstream.proxy.connections(), 0);
    slow.write_all(b"0123456789").await.expect("written");
    assert!(read_until(&mut slow, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_body_that_stops_in_the_middle_is_refused_without_a_turn() {
    let upstream = Upstream::start().await;
    let mut to = limited(upstream.address, "1/h", Duration::ZERO);
    to.idle_timeout = Span::from_millis(200);
    let proxy = Proxy::start(to).await;
    let mut stuck = proxy.connect(head("POST", "content-length: 10\r\n")).await;
    let answer = read_until(&mut stuck, "REQUEST_TIMEOUT").await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(proxy.get("/").await.status, 200);
}

/// A client of a streaming call waits for the response before it sends the rest.
#[tokio::test]
async fn long_bodies_and_streaming_calls_are_forwarded_while_they_arrive() {
    for (more, begin) in [
        ("content-length: 100000\r\n", "begin"),
        (
            "transfer-encoding: chunked\r\ncontent-type: application/grpc+proto\r\n",
            "5\r\nbegin\r\n",
        ),
        ("transfer-encoding: chunked\r\ncontent-type: application/connect+json\r\n", ""),
    ] {
        let upstream = odd_upstream(|mut stream: TcpStream| async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await;
        let proxy = Proxy::start(route(upstream)).await;
        let mut stream = proxy.connect(head("POST", more) + begin).await;
        assert!(read_until(&mut stream, "\r\n\r\nok").await.starts_with("HTTP/1.1 200"), "{more}");
    }
}

#[tokio::test]
async fn without_a_buffer_all_bodies_are_forwarded_while_they_arrive() {
    let upstream = odd_upstream(|mut stream: TcpStream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let proxy = Proxy::start(RouteOptions { body_buffer: ByteSize(0), ..route(upstream) }).await;
    for more in ["content-length: 10\r\n", "transfer-encoding: chunked\r\n"] {
        let mut stream = proxy.connect(head("POST", more)).await;
        assert!(read_until(&mut stream, "\r\n\r\nok").await.starts_with("HTTP/1.1 200"), "{more}");
    }
}
