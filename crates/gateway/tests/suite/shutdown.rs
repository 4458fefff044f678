//! Tests of a gateway that stops: every caller gets an answer.

use std::time::Duration;

use sluicegate_testkit::eventually_is_async;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::support::{Proxy, TOKEN, Upstream, limited, soon};

const DEPTH: &str = r#"sluicegate_gateway_queue_depth{gateway="test",route="all"}"#;

async fn read_all(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.expect("it is not reset");
    String::from_utf8_lossy(&answer).into_owned()
}

fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-internal-token: {TOKEN}\r\n\r\n").into_bytes()
}

#[track_caller]
fn assert_shutting_down(answer: &str) {
    let answer = answer.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 503"), "{answer}");
    for part in ["shutting_down", "retry-after: 1\r\n", "connection: close\r\n"] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
}

#[tokio::test]
async fn callers_without_a_response_are_answered_before_the_gateway_stops() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(limited(upstream.address, "2/h", Duration::from_secs(9_999))).await;
    assert_eq!(proxy.get("/").await.status, 200);
    // One is sent and not answered, one waits for its turn.
    let sent = proxy.connect(&request("/held")).await;
    eventually_is_async(|| upstream.count(), 2).await;
    let waiting = proxy.connect(&request("/")).await;
    eventually_is_async(|| proxy.metric(DEPTH), 1.0).await;
    let idle = proxy.connect(b"").await;

    proxy.gateway.start_draining();
    proxy.shutdown.cancel();
    // The listener still answers new requests, on new and on old connections.
    assert_shutting_down(&read_all(proxy.connect(&request("/")).await).await);
    assert_eq!(proxy.metric(DEPTH), 1.0, "those who wait keep their place");

    proxy.gateway.cut_off();
    assert_shutting_down(&read_all(sent).await);
    assert_shutting_down(&read_all(waiting).await);
    assert_eq!(read_all(idle).await, "", "a connection without a request is closed");
    assert_eq!(upstream.count(), 2);
    eventually_is_async(|| std::net::TcpStream::connect(proxy.address).is_err(), true).await;
}

#[tokio::test]
async fn callers_that_wait_are_served_while_the_gateway_drains() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(limited(upstream.address, "1/3s", Duration::from_secs(60))).await;
    assert_eq!(proxy.get("/").await.status, 200);
    let waiting = proxy.connect(&request("/")).await;
    eventually_is_async(|| proxy.metric(DEPTH), 1.0).await;
    proxy.gateway.start_draining();
    proxy.shutdown.cancel();
    let answer = read_all(waiting).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    eventually_is_async(|| std::net::TcpStream::connect(proxy.address).is_err(), true).await;
}
