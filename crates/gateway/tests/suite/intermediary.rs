//! Tests of the duties of an HTTP intermediary: methods, hosts, upgrades, and who is to blame if an
//! exchange breaks off.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::Method;
use sluicegate_config::{ByteSize, GatewayOptions, RouteOptions};
use sluicegate_testkit::eventually_is_async;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::support::{Proxy, TOKEN, Upstream, odd_upstream, options, route, soon};

const SHORT: Duration = Duration::from_millis(200);

/// Returns a raw request with a token; `more` are further header lines and the body.
fn raw(line: &str, more: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\n{more}").into_bytes()
}

/// Returns two routes: one reads small bodies before it forwards them, one streams all bodies.
fn buffered_and_streamed(upstream: SocketAddr) -> [RouteOptions; 2] {
    [route(upstream), RouteOptions { body_buffer: ByteSize(0), ..route(upstream) }]
}

/// Reads until the connection ends.
async fn read_all(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

// Methods.

#[tokio::test]
async fn trace_does_not_return_the_credentials_of_the_upstream() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    for method in ["TRACE", "TRACK", "trace"] {
        let answer = proxy.send(proxy.request(method, "/"), "").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (405, "METHOD_NOT_ALLOWED"),
            "{method}"
        );
        assert_eq!(answer.headers["allow"], "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_route_that_lists_trace_accepts_it() {
    let upstream = Upstream::start().await;
    let mut to = route(upstream.address);
    to.methods = vec![Method::GET, Method::TRACE];
    let proxy = Proxy::start(to).await;
    assert_eq!(proxy.send(proxy.request("TRACE", "/"), "").await.status, 200);
    assert_eq!(upstream.last().method, "TRACE");
}

#[tokio::test]
async fn connect_is_never_forwarded_even_if_a_route_lists_it() {
    let upstream = Upstream::start().await;
    let mut to = route(upstream.address);
    to.methods = vec![Method::CONNECT];
    let proxy = Proxy::start(to).await;
    let answer = proxy.raw(&raw("CONNECT evil:443", "\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert!(answer.contains("allow: GET") && answer.contains("METHOD_NOT_ALLOWED"), "{answer}");
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn extension_methods_pass_a_route_without_methods() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    assert_eq!(proxy.send(proxy.request("PROPFIND", "/"), "").await.status, 200);
}

// Hosts.

#[tokio::test]
async fn a_request_without_a_valid_host_is_rejected() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    let token = format!("x-internal-token: {TOKEN}\r\n");
    for host in
        ["", "host:\r\n", "host: x/../y\r\n", "host: a b\r\n", "host: a@b\r\n", "host: a:b\r\n"]
    {
        let answer = proxy.raw(format!("GET / HTTP/1.1\r\n{host}{token}\r\n").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{host:?}\n{answer}");
        assert!(answer.contains("BAD_REQUEST") && answer.contains("ost"), "{host:?}\n{answer}");
    }
    assert_eq!(upstream.count(), 0);
    for (version, host) in
        [("1.1", "host: a.example:8080\r\n"), ("1.1", "host: [::1]\r\n"), ("1.0", "")]
    {
        let request = format!("GET / HTTP/{version}\r\n{host}{token}\r\n");
        let answer = proxy.raw(request.as_bytes()).await;
        assert!(answer.contains(" 200 OK"), "{host:?}\n{answer}");
    }
}

// Upgrades.

#[tokio::test]
async fn an_offer_of_h2c_is_ignored_and_the_request_is_served() {
    let upstream = Upstream::start().await;
    for upgrades in [false, true] {
        let mut to = route(upstream.address);
        to.upgrades = upgrades;
        let proxy = Proxy::start(to).await;
        let offer =
            "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n";
        let answer = proxy.raw(&raw("GET /x", &format!("{offer}\r\n"))).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let seen = upstream.last();
        assert_eq!((seen.header("upgrade"), seen.header("http2-settings")), (None, None));
        assert_eq!(seen.header("connection"), None);
    }
}

#[tokio::test]
async fn an_upgrade_that_connection_does_not_name_is_ignored() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    let answer = proxy.raw(&raw("GET /", "upgrade: websocket\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(upstream.last().header("upgrade"), None);
}

#[tokio::test]
async fn an_upstream_can_not_switch_protocols_on_its_own() {
    let upstream = odd_upstream(|mut stream: TcpStream| async move {
        let switch =
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: evil\r\n\r\n";
        let _ = stream.write_all(switch).await;
        std::future::pending::<()>().await;
    })
    .await;
    let mut to = route(upstream);
    to.upgrades = true;
    let proxy = Proxy::start(to).await;
    for wish in ["", "connection: upgrade\r\nupgrade: websocket\r\n"] {
        let answer = proxy.raw(&raw("GET /", &format!("{wish}\r\n"))).await;
        assert!(answer.starts_with("HTTP/1.1 502"), "{wish:?}\n{answer}");
        assert!(answer.contains("UPSTREAM_BROKEN"), "{wish:?}\n{answer}");
    }
    assert_eq!(proxy.upstream_errors("UPSTREAM_BROKEN"), 2.0);
}

// Who broke the exchange.

#[tokio::test]
async fn malformed_chunks_are_the_callers_fault() {
    let upstream = Upstream::start().await;
    for to in buffered_and_streamed(upstream.address) {
        let proxy = Proxy::start(to).await;
        let request = raw("POST /", "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n");
        let answer = proxy.raw(&request).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("BAD_REQUEST") && answer.contains("chunks"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        assert_eq!((proxy.requests(400), proxy.requests(502)), (1.0, 0.0));
        assert_eq!(proxy.upstream_errors("UPSTREAM_BROKEN"), 0.0);
    }
}

#[tokio::test]
async fn an_aborted_upload_is_not_counted_as_an_upstream_error() {
    let upstream = Upstream::start().await;
    for to in buffered_and_streamed(upstream.address) {
        let proxy = Proxy::start(to).await;
        for framing in
            ["content-length: 100\r\n\r\nhalf", "transfer-encoding: chunked\r\n\r\n9\r\nhalf"]
        {
            let before = proxy.requests(499);
            drop(proxy.connect(&raw("POST /", framing)).await);
            eventually_is_async(|| proxy.requests(499), before + 1.0).await;
        }
        assert_eq!(proxy.requests(502), 0.0);
        assert_eq!(proxy.upstream_errors("UPSTREAM_BROKEN"), 0.0);
    }
}

#[tokio::test]
async fn a_caller_that_disconnects_before_its_response_is_logged_as_499() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    let stream = proxy.connect(&raw("GET /held", "\r\n")).await;
    eventually_is_async(|| upstream.count(), 1).await;
    drop(stream);
    eventually_is_async(|| proxy.requests(499), 1.0).await;
}

#[tokio::test]
async fn a_request_body_that_goes_silent_has_its_own_timeout() {
    let upstream = Upstream::start().await;
    for mut to in buffered_and_streamed(upstream.address) {
        let idle_timeout = to.idle_timeout;
        to.idle_timeout = SHORT.into();
        let proxy = Proxy::start(to.clone()).await;
        let stream = proxy.connect(&raw("POST /", "content-length: 100\r\n\r\nhalf")).await;
        let answer = read_all(stream).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("REQUEST_TIMEOUT"), "{answer}");
        assert_eq!((proxy.requests(408), proxy.requests(504)), (1.0, 0.0));
        assert_eq!(proxy.upstream_errors("UPSTREAM_TIMEOUT"), 0.0);

        // The same at the deadline, if the caller is waited for.
        (to.deadline, to.idle_timeout) = (Some(SHORT.into()), idle_timeout);
        let proxy = Proxy::start(to).await;
        let stream = proxy.connect(&raw("POST /", "content-length: 100\r\n\r\nhalf")).await;
        let answer = read_all(stream).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
}

#[tokio::test]
async fn a_slow_upload_does_not_use_the_time_of_the_upstream() {
    let upstream = Upstream::start().await;
    let mut to = RouteOptions { body_buffer: ByteSize(0), ..route(upstream.address) };
    to.timeout = (SHORT * 5).into();
    let proxy = Proxy::start(to).await;
    let head = raw("POST /", "connection: close\r\ncontent-length: 10\r\n\r\n");
    let mut stream = proxy.connect(&head).await;
    // Twice as long as the upstream may take.
    let mut pause = tokio::time::interval(SHORT);
    for _ in 0..10 {
        pause.tick().await;
        stream.write_all(b"x").await.expect("written");
    }
    let answer = read_all(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("xxxxxxxxxx"), "{answer}");
    // It still has no more time than before once it has the whole request.
    let answer = proxy.send(proxy.request("POST", "/held"), "x").await;
    assert_eq!(answer.code(), "UPSTREAM_TIMEOUT");
    assert_eq!(proxy.upstream_errors("UPSTREAM_TIMEOUT"), 1.0);
}

#[tokio::test]
async fn a_silent_caller_may_listen_to_a_response_that_has_begun() {
    // Answers at once, and ends the response when the request ends.
    let upstream = odd_upstream(|mut stream: TcpStream| async move {
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
        let _ = stream.write_all(head).await;
        let mut rest = Vec::new();
        let mut byte = [0];
        while !rest.ends_with(b"0\r\n\r\n") && stream.read_exact(&mut byte).await.is_ok() {
            rest.push(byte[0]);
        }
        let _ = stream.write_all(b"4\r\nlast\r\n0\r\n\r\n").await;
    })
    .await;
    let mut to = RouteOptions { body_buffer: ByteSize(0), ..route(upstream) };
    to.idle_timeout = (SHORT * 10).into();
    let proxy = Proxy::start(to).await;
    let mut stream =
        proxy.connect(&raw("POST /", "transfer-encoding: chunked\r\n\r\n1\r\na\r\n")).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"first\r\n") {
        answer.push(soon(stream.read_u8()).await.expect("the first part"));
    }
    // The caller is silent for as long as a body may pause; the response is idle as well, and ends it.
    let rest = read_all(stream).await;
    assert!(!rest.contains("408"), "{rest}");
    assert_eq!(proxy.requests(200), 1.0);
    assert_eq!(proxy.upstream_errors("UPSTREAM_TIMEOUT"), 1.0);
}

#[tokio::test]
async fn a_response_that_breaks_in_the_middle_is_counted_as_broken() {
    // The upstream closes the connection once the caller has the first half.
    let close = CancellationToken::new();
    let closes = close.clone();
    let upstream = odd_upstream(move |mut stream: TcpStream| {
        let closes = closes.clone();
        async move {
            let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
            let _ = stream.write_all(half).await;
            closes.cancelled().await;
        }
    })
    .await;
    let proxy = Proxy::start(route(upstream)).await;
    let mut stream = proxy.connect(&raw("GET /", "\r\n")).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nhalf") {
        answer.push(soon(stream.read_u8()).await.expect("the first half"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    close.cancel();
    assert_eq!(read_all(stream).await, "");
    eventually_is_async(|| proxy.upstream_errors("UPSTREAM_BROKEN"), 1.0).await;
    assert_eq!(proxy.requests(200), 1.0);
}

// Refusals of the HTTP parser.

#[tokio::test]
async fn refusals_of_the_parser_look_like_all_others() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    let long = "x".repeat(70_000);
    for (request, status, code) in [
        (raw("GET /", &format!("x: {long}\r\n\r\n")), "431", "HEADERS_TOO_LARGE"),
        (raw("GET /", "bad name: x\r\n\r\n"), "400", "BAD_REQUEST"),
        (b"nonsense\r\n\r\n".to_vec(), "400", "BAD_REQUEST"),
    ] {
        let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
        // The gateway may answer and close before it has read everything.
        let _ = stream.write_all(&request).await;
        let answer = read_all(stream).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(head.contains("content-type: application/json"), "{answer}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["error"]["code"], code);
        assert!(body["error"]["message"].is_string());
    }
}

#[tokio::test]
async fn an_empty_400_of_the_upstream_stays_empty() {
    let upstream = odd_upstream(|mut stream: TcpStream| async move {
        let answer = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let _ = stream.write_all(answer).await;
    })
    .await;
    let proxy = Proxy::start(route(upstream)).await;
    let answer = read_all(proxy.connect(&raw("GET /", "connection: close\r\n\r\n")).await).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

// Who sent a request.

#[tokio::test]
async fn clients_can_not_forge_their_address() {
    let upstream = Upstream::start().await;
    let forged = [
        ("x-real-ip", "6.6.6.6"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-port", "443"),
        ("forwarded", "for=6.6.6.6"),
    ];
    let proxy = Proxy::start(route(upstream.address)).await;
    let request = forged
        .iter()
        .fold(proxy.request("GET", "/"), |request, (name, value)| request.header(*name, *value));
    assert_eq!(proxy.send(request, "").await.status, 200);
    let seen = upstream.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    for name in ["x-real-ip", "x-forwarded-port", "forwarded"] {
        assert_eq!(seen.header(name), None, "{name}");
    }

    // Behind one trusted proxy, which appended the address of the client.
    let behind = GatewayOptions { trusted_hops: 1, ..options(vec![route(upstream.address)]) };
    let proxy = Proxy::with(behind, Vec::new()).await;
    let request = proxy
        .request("GET", "/")
        .header("x-forwarded-for", "6.6.6.6, 1.1.1.1")
        .header("x-real-ip", "6.6.6.6")
        .header("forwarded", "for=6.6.6.6, for=1.1.1.1")
        .header("x-forwarded-port", "443");
    assert_eq!(proxy.send(request, "").await.status, 200);
    let seen = upstream.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("1.1.1.1, 127.0.0.1"));
    assert_eq!(seen.header("x-real-ip"), Some("1.1.1.1"));
    assert_eq!(seen.header("forwarded"), Some("for=1.1.1.1, for=127.0.0.1;proto=http"));
    assert_eq!(seen.header("x-forwarded-port"), Some("443"));
}
