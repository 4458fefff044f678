//! Tests of the listener over real sockets: it serves well-behaved clients, drops others, and shuts
//! down gracefully.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the message")]

mod support;

use std::error::Error as _;
use std::net::TcpStream as StdTcpStream;
use std::process::Command;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::routing::post;
use http_body_util::BodyExt;
use sluicegate_http::listener::{BodyTimeout, Error, Options};
use sluicegate_testkit::eventually_async;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use support::{Gate, LONG, SHORT, Server, app, patient, soon};

async fn start(options: Options) -> Server {
    Server::start(app(&Gate::new()), options, None).await
}

async fn start_gated(options: Options) -> (Server, Gate) {
    let gate = Gate::new();
    (Server::start(app(&gate), options, None).await, gate)
}

// Serving.

#[tokio::test]
async fn http1_requests_share_a_connection() {
    let server = start(patient()).await;
    let mut client = server.connect().await;
    for _ in 0..3 {
        let answer = client.get("/hello").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "hello"));
    }
    client.send("POST /echo HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nback").await;
    assert_eq!(client.answer().await.unwrap().body, "back");
    assert_eq!(server.stats.counts().accepted, 1);
    drop(client);
    assert_eq!(server.end().await, Ok(()));
}

#[tokio::test]
async fn http2_requests_overtake_each_other_on_a_connection() {
    let (server, gate) = start_gated(patient()).await;
    let client = server.connect_http2().await;
    let slow = async {
        let answer = client.get("/slow").await;
        answer.unwrap().1
    };
    let fast = async {
        gate.entered().await;
        let (_, body) = client.get("/hello").await.unwrap();
        gate.release();
        body
    };
    assert_eq!(tokio::join!(slow, fast), ("slow".to_owned(), "hello".to_owned()));
    assert_eq!(server.stats.counts().accepted, 1);
}

// Slow clients.

#[tokio::test]
async fn a_client_that_does_not_ask_is_dropped() {
    let server = start(Options { header_timeout: SHORT, ..patient() }).await;
    for partial in ["", "G", "GET /hello HTTP/1.1\r\nhost: te", "PRI * HTTP/2.0\r\n\r\nSM"] {
        let mut client = server.connect().await;
        client.send(partial).await;
        assert_eq!(client.closed().await, "", "{partial:?}");
    }
    eventually_async(async || server.stats.counts().timed_out == 4).await;
    eventually_async(async || server.serves().await).await;
}

#[tokio::test]
async fn a_client_that_trickles_its_header_is_dropped() {
    let server = start(Options { header_timeout: SHORT, ..patient() }).await;
    let mut client = server.connect().await;
    client.send("GET /hello HTTP/1.1\r\nx: ").await;
    assert_eq!(client.trickle(b'x').await, "");
    eventually_async(async || server.serves().await).await;
}

#[tokio::test]
async fn a_client_that_trickles_its_second_header_is_dropped() {
    let server = start(Options { idle_timeout: SHORT, ..patient() }).await;
    let mut client = server.connect().await;
    client.get("/hello").await;
    client.send("GET /hello HTTP/1.1\r\nx: ").await;
    client.trickle(b'x').await;
}

#[tokio::test]
async fn an_http2_client_that_does_not_ask_is_dropped() {
    let server = start(Options { header_timeout: SHORT, ..patient() }).await;
    let client = server.connect_http2().await;
    soon(client.running).await.unwrap();
}

#[tokio::test]
async fn a_client_that_trickles_its_body_is_answered_and_dropped() {
    let server = start(Options { body_timeout: Some(SHORT), ..patient() }).await;
    for framing in ["content-length: 1000000", "transfer-encoding: chunked"] {
        let mut client = server.connect().await;
        client.send(format!("POST /echo HTTP/1.1\r\nhost: test\r\n{framing}\r\n\r\n")).await;
        let said = client.trickle(b'1').await;
        // The response may be lost: closing a socket with unread bytes resets it.
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400"), "{said}");
    }
    assert!(server.serves().await);
}

#[tokio::test]
async fn an_application_can_tell_that_a_body_came_too_late() {
    let read = |body: Body| async {
        let error = body.collect().await.err().unwrap();
        let mut cause = error.source();
        while let Some(error) = cause {
            if error.downcast_ref::<BodyTimeout>() == Some(&BodyTimeout(SHORT)) {
                return StatusCode::REQUEST_TIMEOUT;
            }
            cause = error.source();
        }
        StatusCode::BAD_REQUEST
    };
    let options = Options { body_timeout: Some(SHORT), ..patient() };
    let server = Server::start(Router::new().route("/", post(read)), options, None).await;
    let mut client = server.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\nabc").await;
    assert_eq!(client.answer().await.unwrap().status, 408);
    client.closed().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let server = start(Options { idle_timeout: SHORT, ..patient() }).await;
    let mut client = server.connect().await;
    client.get("/hello").await;
    assert_eq!(client.closed().await, "");

    let client = server.connect_http2().await;
    client.get("/hello").await.unwrap();
    soon(client.running).await.unwrap();
}

/// Waits several times as long as the idle timeout.
async fn outlast_idle_connections(server: &Server) {
    for _ in 0..3 {
        let mut witness = server.connect().await;
        witness.try_get("/hello").await;
        witness.closed().await;
    }
}

#[tokio::test]
async fn a_connection_that_waits_for_us_is_not_idle() {
    for (path, expected) in [("/slow", "slow"), ("/stream", "begin end")] {
        let options = Options { idle_timeout: SHORT, header_timeout: SHORT, ..patient() };
        let (server, gate) = start_gated(options).await;
        let mut http1 = server.connect().await;
        http1.send(format!("GET {path} HTTP/1.0\r\n\r\n")).await;
        let http2 = server.connect_http2().await;
        let asking = tokio::spawn(async move { http2.get(path).await });
        gate.entered().await;
        gate.entered().await;
        outlast_idle_connections(&server).await;
        gate.release();
        assert!(http1.closed().await.ends_with(expected));
        assert_eq!(soon(asking).await.unwrap(), Some((200, expected.to_owned())));
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_dropped() {
    let options = Options { idle_timeout: SHORT, header_timeout: SHORT, ..patient() };
    let server = start(options).await;
    let mut client = server.connect().await;
    client.send("GET /endless HTTP/1.1\r\nhost: test\r\n\r\n").await;
    eventually_async(async || server.stats.counts().accepted == 1).await;
    eventually_async(async || server.stats.counts().active == 0).await;
}

// Many clients.

#[tokio::test]
async fn connections_beyond_the_cap_are_refused_until_one_ends() {
    let server = start(Options { connections_max: 2, ..patient() }).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    first.get("/hello").await;
    second.get("/hello").await;
    for _ in 0..3 {
        assert!(!server.serves().await);
    }
    assert_eq!(server.stats.counts().refused, 3);
    assert_eq!(server.stats.counts().active, 2);
    assert_eq!(first.get("/hello").await.status, 200);
    assert_eq!(second.get("/hello").await.status, 200);

    drop(first);
    eventually_async(async || server.serves().await).await;
    assert_eq!(second.get("/hello").await.status, 200);
}

/// Runs itself again with few file descriptors, because the limit applies to the whole process.
#[test]
fn a_server_that_ran_out_of_file_descriptors_recovers() {
    if std::env::var_os("SLUICEGATE_FEW_FILES").is_none() {
        let name = "a_server_that_ran_out_of_file_descriptors_recovers";
        let child = Command::new("sh")
            .args(["-c", r#"ulimit -n 64 && exec "$0" --exact "$1""#])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env("SLUICEGATE_FEW_FILES", "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = start(patient()).await;
        assert!(server.serves().await);
        // The server runs in this thread, too, so it cannot accept any of these meanwhile.
        let clients: Vec<_> =
            std::iter::from_fn(|| StdTcpStream::connect(server.address).ok()).collect();
        assert!(!clients.is_empty());
        eventually_async(async || server.stats.counts().accept_errors > 0).await;
        drop(clients);
        eventually_async(async || server.serves().await).await;
    });
}

// Malformed requests.

#[tokio::test]
async fn nonsense_ends_a_connection_and_not_the_server() {
    let server = start(patient()).await;
    let client_hello = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03".to_vec();
    let bad_frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".iter().copied().chain([0xff; 64]);
    let noise = (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    let no_http = b"EHLO example.com\r\n\r\n".to_vec();
    for bytes in [client_hello, bad_frames.collect(), noise.collect(), no_http, vec![0; 4096]] {
        let mut stream = server.tcp().await;
        // The server may close before it has read everything.
        let _ = soon(stream.write_all(&bytes)).await;
        let _ = stream.shutdown().await;
        support::Client::new(stream).closed().await;
        assert!(server.serves().await);
    }
}

#[tokio::test]
async fn a_header_that_is_too_large_is_refused() {
    let server = start(Options { header_bytes_max: 16 * 1024, ..patient() }).await;
    let header = |size| {
        let filler = "x".repeat(size);
        format!("GET /hello HTTP/1.1\r\nhost: test\r\nfiller: {filler}\r\n\r\n")
    };
    let mut client = server.connect().await;
    client.send(header(8 * 1024)).await;
    assert_eq!(client.answer().await.unwrap().status, 200);
    client.send(header(16 * 1024)).await;
    assert_eq!(client.answer().await.unwrap().status, 431);
}

#[tokio::test]
async fn a_flood_of_resets_ends_the_connection() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let server = start(patient()).await;
    let mut flood = PREFACE.to_vec();
    for stream in (1_u32..).step_by(2).take(200) {
        // HEADERS: GET http /, end of header and stream.
        flood.extend([0, 0, 3, 1, 5]);
        flood.extend(stream.to_be_bytes());
        flood.extend([0x82, 0x86, 0x84]);
        // RST_STREAM: CANCEL.
        flood.extend([0, 0, 4, 3, 0]);
        flood.extend(stream.to_be_bytes());
        flood.extend([0, 0, 0, 8]);
    }
    let mut client = server.connect().await;
    let _ = soon(client.stream.write_all(&flood)).await;
    client.closed().await;
    assert!(server.serves().await);
}

#[tokio::test]
async fn a_handler_that_panics_takes_its_connection_only() {
    let server = start(patient()).await;
    let mut other = server.connect().await;
    other.get("/hello").await;
    let mut client = server.connect().await;
    assert_eq!(client.try_get("/panic").await, None);
    assert_eq!(other.get("/hello").await.status, 200);
    assert!(server.serves().await);
}

// Shutdown.

#[tokio::test]
async fn shutdown_finishes_what_is_in_flight_and_refuses_the_rest() {
    let (server, gate) = start_gated(patient()).await;
    let mut idle = server.connect().await;
    idle.get("/hello").await;
    let mut fresh = server.connect().await;
    let idle_http2 = server.connect_http2().await;
    idle_http2.get("/hello").await.unwrap();

    let mut http1 = server.connect().await;
    http1.send("GET /slow HTTP/1.1\r\nhost: test\r\n\r\n").await;
    let http2 = server.connect_http2().await;
    let asking = tokio::spawn(async move { http2.get("/slow").await });
    gate.entered().await;
    gate.entered().await;

    server.shutdown.cancel();
    assert_eq!(idle.closed().await, "");
    assert_eq!(fresh.closed().await, "");
    soon(idle_http2.running).await.unwrap();
    eventually_async(async || TcpStream::connect(server.address).await.is_err()).await;
    assert!(!server.running.is_finished());

    gate.release();
    let answer = http1.answer().await.unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (200, "slow"));
    assert!(answer.head.contains("connection: close"), "{}", answer.head);
    assert_eq!(http1.closed().await, "");
    assert_eq!(soon(asking).await.unwrap(), Some((200, "slow".to_owned())));
    assert_eq!(server.stats.counts().timed_out, 0);
    assert_eq!(server.end().await, Ok(()));
}

#[tokio::test]
async fn what_is_unfinished_after_the_grace_is_cut_off() {
    let (server, gate) = start_gated(Options { shutdown_grace: SHORT, ..patient() }).await;
    let mut http1 = server.connect().await;
    http1.send("GET /slow HTTP/1.1\r\nhost: test\r\n\r\n").await;
    let http2 = server.connect_http2().await;
    let asking = tokio::spawn(async move { http2.get("/slow").await });
    gate.entered().await;
    gate.entered().await;

    let stats = server.stats.clone();
    let error = server.end().await.unwrap_err();
    assert_eq!(error, Error::Unfinished { connections: 2, grace: SHORT });
    assert_eq!(http1.closed().await, "");
    assert_eq!(soon(asking).await.unwrap(), None);
    assert_eq!(stats.counts().active, 0);
}

#[tokio::test]
async fn a_client_that_takes_no_farewell_does_not_delay_the_end() {
    let options = Options { header_timeout: SHORT, shutdown_grace: LONG, ..patient() };
    let server = start(options).await;
    let mut client = server.connect().await;
    client.send("GET /endless HTTP/1.1\r\nhost: test\r\n\r\n").await;
    client.answer().await.unwrap();
    assert_eq!(server.end().await, Ok(()));
}

#[tokio::test]
async fn dropping_the_server_closes_its_connections() {
    let server = start(patient()).await;
    let mut client = server.connect().await;
    client.get("/hello").await;
    server.running.abort();
    assert_eq!(client.closed().await, "");
    eventually_async(async || server.stats.counts().active == 0).await;
    assert!(TcpStream::connect(server.address).await.is_err());
}
