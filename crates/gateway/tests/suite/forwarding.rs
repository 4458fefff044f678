//! Tests of forwarding in both directions, and of authentication.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_config::{
    ByteSize, Credentials, GatewayOptions, Login, PathPattern, ROUTE, SecretSource,
};
use sluicegate_core::Span;
use sluicegate_core::query::Query;
use sluicegate_service::DecisionMode;
use sluicegate_service::answer::Answer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Proxy, TOKEN, Upstream, limited, odd_upstream, options, route, soon, tokens};

#[tokio::test]
async fn a_request_and_its_answer_pass_unchanged() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    let request =
        proxy.request("POST", "/a/b?c=d&e").header("x-mine", "1").header("x-answer-etag", "7");
    let answer = proxy.send(request, "hello").await;
    assert_eq!((answer.status, answer.text()), (200, "hello"));
    assert_eq!(answer.headers["etag"], "7");
    let seen = upstream.last();
    assert_eq!((seen.method.as_str(), seen.uri.as_str()), ("POST", "/a/b?c=d&e"));
    assert_eq!(seen.body, "hello");
    assert_eq!(seen.header("x-mine"), Some("1"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("host"), Some(upstream.address.to_string().as_str()));
    assert_eq!(seen.header("x-forwarded-host"), Some(proxy.address.to_string().as_str()));
    assert_eq!(seen.header("x-request-id").map(str::len), Some(32));
}

#[tokio::test]
async fn the_path_of_an_upstream_replaces_that_of_the_route() {
    let upstream = Upstream::start().await;
    let base = format!("http://{}/base", upstream.address);
    let mut to = route(base);
    to.path = PathPattern::Prefix("/vendor/".to_owned());
    let proxy = Proxy::start(to).await;
    assert_eq!(proxy.get("/vendor/v1/x?y=1").await.status, 200);
    assert_eq!(upstream.last().uri, "/base/v1/x?y=1");
    assert_eq!(proxy.get("/other").await.code(), "NO_ROUTE");
    for path in ["/vendor/../admin", "/vendor/%2e%2e/admin"] {
        assert_eq!(proxy.get(path).await.code(), "BAD_REQUEST");
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_token_is_required_and_never_sent_to_the_upstream() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    let stranger = |token: &str| {
        let uri = format!("http://{}/", proxy.address);
        axum::http::Request::builder().uri(uri).header("x-internal-token", token)
    };
    for token in ["", "wrong", "a-token-of-sixteen-letter"] {
        let answer = proxy.send(stranger(token), "").await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "UNAUTHORIZED"));
    }
    let twice = stranger(TOKEN).header("x-internal-token", "another");
    assert_eq!(proxy.send(twice, "").await.status, 401);
    assert_eq!(upstream.count(), 0);
    assert_eq!(proxy.get("/").await.status, 200);
    assert_eq!(upstream.last().header("x-internal-token"), None);
}

#[tokio::test]
async fn a_leaked_token_is_replaced_without_a_restart() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(route(upstream.address)).await;
    let change = |known: &[&str]| {
        let changed =
            GatewayOptions { auth: tokens(known), ..options(vec![route(upstream.address)]) };
        proxy.gateway.apply(proxy.gateway.prepare(&changed).expect("sound"));
    };
    let new = || {
        let uri = format!("http://{}/", proxy.address);
        axum::http::Request::builder().uri(uri).header("x-internal-token", "the-new-token-of-them")
    };
    assert_eq!((proxy.get("/").await.status, proxy.send(new(), "").await.status), (200, 401));
    change(&[TOKEN, "the-new-token-of-them"]);
    assert_eq!((proxy.get("/").await.status, proxy.send(new(), "").await.status), (200, 200));
    change(&["the-new-token-of-them"]);
    assert_eq!((proxy.get("/").await.status, proxy.send(new(), "").await.status), (401, 200));
}

#[tokio::test]
async fn credentials_replace_those_of_the_caller() {
    let upstream = Upstream::start().await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "from a file\n").expect("written");
    let text = SecretSource::from;
    for (credentials, header, expected) in [
        (
            Credentials::Basic { user: text("ann"), password: text("pass") },
            "authorization",
            "Basic YW5uOnBhc3M=",
        ),
        (Credentials::Bearer(text("xyz")), "authorization", "Bearer xyz"),
        (
            Credentials::Headers(vec![(
                "x-api-key".parse().expect("a name"),
                SecretSource::File(file.path().to_owned()),
            )]),
            "x-api-key",
            "from a file",
        ),
    ] {
        let mut to = route(upstream.address);
        to.credentials = Some(credentials);
        let proxy = Proxy::start(to).await;
        let theirs = proxy.request("GET", "/").header(header, "Bearer of-the-caller");
        let answer = proxy.send(theirs, "").await;
        assert_eq!(upstream.last().header(header), Some(expected));
        assert_eq!(upstream.last().headers.get_all(header).iter().count(), 1);
        assert!(!format!("{:?}", answer.headers).contains(expected));
    }
}

/// Returns credentials that log in at this address.
fn login_at(address: SocketAddr) -> Credentials {
    Credentials::Login(Box::new(Login {
        url: format!("http://{address}/login").parse().expect("an address"),
        body: r#"{"user":"ann","password":"pass"}"#.into(),
        content_type: "application/json".to_owned(),
        token: "/data/token".to_owned(),
        expires_in: "/expires_in".to_owned(),
        ttl: Span::from_secs(60),
        header: "authorization".parse().expect("a name"),
        scheme: "Bearer".to_owned(),
    }))
}

/// A slot is valid only for a moment, so a request must not take one before its login.
#[tokio::test]
async fn a_login_comes_before_a_slot_is_taken() {
    let upstream = Upstream::start().await;
    // The first login fails.
    let failed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let login = odd_upstream(move |mut stream: TcpStream| {
        let fails = !failed.swap(true, std::sync::atomic::Ordering::SeqCst);
        async move {
            let status = if fails { "500 Oh" } else { "200 OK" };
            let body = r#"{"data":{"token":"t"}}"#;
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
            let answer = format!("{head}connection: close\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.read(&mut [0; 1024]).await;
        }
    })
    .await;
    let mut to = limited(upstream.address, "1/h", Duration::ZERO);
    to.credentials = Some(login_at(login));
    let proxy = Proxy::start(to).await;
    let refused = proxy.get("/").await;
    assert_eq!((refused.status, refused.code().as_str()), (502, "LOGIN_FAILED"));
    assert_eq!(proxy.get("/").await.status, 200, "nothing was charged for the first");
    assert_eq!(proxy.get("/").await.status, 429);
}

#[tokio::test]
async fn a_login_is_cached_and_repeated_when_the_upstream_rejects_it() {
    let upstream = Upstream::start().await;
    // A login server that counts its requests.
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = asked.clone();
    let login = odd_upstream(move |mut stream: TcpStream| {
        let number = counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
        async move {
            let body = format!(r#"{{"data":{{"token":"t{number}"}},"expires_in":3600}}"#);
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
            // Read the rest of the request: closing before would reset the connection.
            let _ = stream.read(&mut [0; 1024]).await;
        }
    })
    .await;
    let mut to = route(upstream.address);
    to.credentials = Some(login_at(login));
    let proxy = Proxy::start(to).await;
    let many = futures_util::future::join_all((0..20).map(|_| proxy.get("/")));
    assert!(many.await.iter().all(|answer| answer.status == 200));
    assert_eq!(upstream.last().header("authorization"), Some("Bearer t1"));
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert_eq!(proxy.get("/status/401").await.status, 401);
    assert_eq!(proxy.get("/").await.status, 200);
    assert_eq!(upstream.last().header("authorization"), Some("Bearer t2"));
}

#[tokio::test]
async fn a_login_is_cached_if_its_lifetime_is_a_text_or_has_decimals() {
    let upstream = Upstream::start().await;
    for expires_in in [r#""3600""#, "3599.5", r#""3599.5""#] {
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = asked.clone();
        let login = odd_upstream(move |mut stream: TcpStream| {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            async move {
                let body = format!(r#"{{"data":{{"token":"t"}},"expires_in":{expires_in}}}"#);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", body.len());
                let answer = format!("{head}connection: close\r\n\r\n{body}");
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.read(&mut [0; 1024]).await;
            }
        })
        .await;
        let Credentials::Login(mut credentials) = login_at(login) else { panic!("a login") };
        // If the lifetime could not be read, each request would log in.
        credentials.ttl = Span::ZERO;
        let mut to = route(upstream.address);
        to.credentials = Some(Credentials::Login(credentials));
        let proxy = Proxy::start(to).await;
        for _ in 0..3 {
            assert_eq!(proxy.get("/").await.status, 200);
        }
        assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 1, "{expires_in}");
    }
}

#[tokio::test]
async fn requests_that_a_route_does_not_allow_are_rejected_without_a_charge() {
    let upstream = Upstream::start().await;
    let mut to = route(upstream.address);
    to.methods = vec![axum::http::Method::POST];
    to.body_limit = ByteSize(10);
    let proxy = Proxy::start(to).await;
    let get = proxy.get("/").await;
    assert_eq!((get.status, get.code().as_str()), (405, "METHOD_NOT_ALLOWED"));
    assert_eq!(get.headers["allow"], "POST");
    let large = proxy.send(proxy.request("POST", "/"), "12345678901").await;
    assert_eq!((large.status, large.code().as_str()), (413, "BODY_TOO_LARGE"));
    let chunked = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\ntransfer-encoding: chunked\r\n\r\n\
         6\r\n123456\r\n6\r\n123456\r\n0\r\n\r\n"
    );
    assert!(proxy.raw(chunked.as_bytes()).await.starts_with("HTTP/1.1 413"));
    assert_eq!(proxy.send(proxy.request("POST", "/"), "1234567890").await.status, 200);
}

#[tokio::test]
async fn the_probes_are_on_the_gateways_own_port() {
    let proxy = Proxy::start(route("127.0.0.1:1")).await;
    let uri = |path: &str| axum::http::Request::get(format!("http://{}{path}", proxy.address));
    let health = proxy.send(uri("/health"), "").await;
    assert_eq!((health.status, health.text()), (200, r#"{"status":"healthy"}"#));
    let ready = proxy.send(uri("/ready"), "").await;
    assert_eq!((ready.status, ready.text()), (200, r#"{"status":"ready"}"#));
}

/// Starts an upstream that switches to a protocol in which it repeats what it receives.
async fn echo_upstream() -> SocketAddr {
    odd_upstream(|mut stream: TcpStream| async move {
        let agreed =
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        let _ = stream.write_all(agreed).await;
        let mut said = [0; 4];
        while stream.read_exact(&mut said).await.is_ok() {
            let _ = stream.write_all(&said).await;
        }
    })
    .await
}

/// Returns a request for that protocol.
fn echo_request() -> String {
    format!(
        "GET / HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"
    )
}

/// Opens a tunnel to that upstream.
async fn open_tunnel(proxy: &Proxy) -> TcpStream {
    let mut stream = proxy.connect(echo_request().as_bytes()).await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.expect("a head"));
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

#[tokio::test]
async fn a_connection_is_upgraded_only_where_the_route_allows_it() {
    let upstream = echo_upstream().await;
    let closed = Proxy::start(route(upstream)).await;
    assert!(closed.raw(echo_request().as_bytes()).await.starts_with("HTTP/1.1 501"));

    let mut to = route(upstream);
    to.upgrades = true;
    let open = Proxy::start(to).await;
    let mut stream = open_tunnel(&open).await;
    for said in [b"ping", b"pong"] {
        stream.write_all(said).await.expect("written");
        let mut heard = [0; 4];
        soon(stream.read_exact(&mut heard)).await.expect("an echo");
        assert_eq!(&heard, said);
    }
}

/// A tunnel holds its slot until one side closes it, or the process ends.
#[tokio::test]
async fn a_tunnel_that_is_open_at_the_end_of_the_process_releases_its_slot() {
    let mut to = limited(echo_upstream().await, "1 concurrent", Duration::ZERO);
    to.upgrades = true;
    let proxy = Proxy::start(to).await;
    let mut tunnel = open_tunnel(&proxy).await;
    assert_eq!(proxy.get("/").await.status, 429);
    proxy.gateway.cut_off();
    soon(proxy.service.finish(Duration::from_secs(3_600))).await;
    let mut query = Query::new(proxy.service.request_id());
    query.insert_own(ROUTE, "test/all");
    let is_free = |answer: &Answer<'_, '_>| answer.decision().is_allowed();
    assert_eq!(proxy.service.decide(&[query], DecisionMode::Peek, is_free).await, Ok(true));
    let mut rest = Vec::new();
    soon(tunnel.read_to_end(&mut rest)).await.expect("it is closed");
}
