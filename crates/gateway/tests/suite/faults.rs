//! Tests with upstreams that are slow, dead or send invalid data, and with clients that disconnect.

use std::time::Duration;

use sluicegate_testkit::eventually_is_async;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Proxy, TOKEN, Upstream, limited, odd_upstream, route, soon};

const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn an_upstream_that_is_dead_is_unreachable() {
    // The second one connects before it asks for its turn.
    for to in [route("127.0.0.1:1"), limited("127.0.0.1:1", "1/h", Duration::ZERO)] {
        let proxy = Proxy::start(to).await;
        let answer = proxy.get("/").await;
        assert_eq!((answer.status, answer.code().as_str()), (502, "UPSTREAM_UNREACHABLE"));
        assert_eq!(proxy.upstream_errors("UPSTREAM_UNREACHABLE"), 1.0);
    }
}

#[tokio::test]
async fn an_upstream_that_closes_early_or_sends_garbage_is_broken() {
    for garbage in ["", "SSH-2.0-OpenSSH_9.6\r\n", "HTTP/1.1 999999 X\r\n\r\n", "\0\0\0\0\0\0\0\0"]
    {
        let upstream = odd_upstream(move |mut stream: TcpStream| async move {
            let _ = stream.write_all(garbage.as_bytes()).await;
        })
        .await;
        let proxy = Proxy::start(route(upstream)).await;
        let answer = proxy.get("/").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (502, "UPSTREAM_BROKEN"),
            "{garbage:?}"
        );
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_times_out() {
    let upstream = Upstream::start().await;
    let mut to = route(upstream.address);
    to.timeout = SHORT.into();
    let proxy = Proxy::start(to).await;
    let answer = proxy.get("/held").await;
    assert_eq!((answer.status, answer.code().as_str()), (504, "UPSTREAM_TIMEOUT"));

    let mut to = route(upstream.address);
    to.deadline = Some(SHORT.into());
    let proxy = Proxy::start(to).await;
    assert_eq!(proxy.get("/held").await.code(), "UPSTREAM_TIMEOUT");
}

#[tokio::test]
async fn a_response_that_stalls_is_aborted() {
    let upstream = odd_upstream(|mut stream: TcpStream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
        std::future::pending::<()>().await;
    })
    .await;
    let mut to = route(upstream);
    to.idle_timeout = SHORT.into();
    let proxy = Proxy::start(to).await;
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\n\r\n");
    let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.ok();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("half"), "{answer}");
}

#[tokio::test]
async fn an_endless_response_ends_when_its_caller_disconnects() {
    let (ended, mut ends) = tokio::sync::mpsc::channel(1);
    let upstream = odd_upstream(move |mut stream: TcpStream| {
        let ended = ended.clone();
        async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await;
            while stream.write_all(&[b'x'; 65_536]).await.is_ok() {}
            let _ = ended.send(()).await;
        }
    })
    .await;
    let proxy = Proxy::start(route(upstream)).await;
    let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut some = vec![0; 1 << 20];
    soon(stream.read_exact(&mut some)).await.expect("a megabyte");
    drop(stream);
    soon(ends.recv()).await.expect("the upstream notices");
}

#[tokio::test]
async fn a_request_whose_client_disconnects_while_waiting_is_not_sent() {
    let upstream = Upstream::start().await;
    let proxy =
        Proxy::start(limited(upstream.address, "1/h", Duration::from_secs(3_600 * 2))).await;
    assert_eq!(proxy.get("/first").await.status, 200);
    // Requests without a body, with a complete body, with a body that is larger than all buffers on
    // the way, and with a body that is not sent yet.
    let head = |more: &str| {
        format!("POST /left HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\n{more}\r\n\r\n")
    };
    let depth = r#"sluicegate_gateway_queue_depth{gateway="test",route="all"}"#;
    for (head, body) in [
        (head("content-length: 0"), 0),
        (head("content-length: 100"), 100),
        (head("content-length: 900000"), 900_000),
        (head("content-length: 900000"), 10),
    ] {
        let mut stream = TcpStream::connect(proxy.address).await.expect("a connection");
        stream.write_all(head.as_bytes()).await.expect("written");
        soon(stream.write_all(&vec![b'x'; body])).await.expect("it is read while it waits");
        eventually_is_async(|| proxy.metric(depth), 1.0).await;
        drop(stream);
        eventually_is_async(|| proxy.metric(depth), 0.0).await;
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn only_idempotent_requests_are_retried_and_only_if_configured() {
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = tries.clone();
    // Closes the connection twice, then responds.
    let upstream = odd_upstream(move |mut stream: TcpStream| {
        let number = counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move {
            if number % 3 == 2 {
                let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
                let _ = stream.write_all(answer).await;
            }
        }
    })
    .await;
    let proxy = Proxy::start(route(upstream)).await;
    assert_eq!(proxy.get("/").await.code(), "UPSTREAM_BROKEN");
    tries.store(0, std::sync::atomic::Ordering::SeqCst);
    let mut to = route(upstream);
    to.retries = 2;
    let proxy = Proxy::start(to).await;
    assert_eq!(proxy.get("/").await.text(), "ok");
    assert_eq!(proxy.send(proxy.request("POST", "/"), "").await.code(), "UPSTREAM_BROKEN");
    assert_eq!(tries.load(std::sync::atomic::Ordering::SeqCst), 4);
}
