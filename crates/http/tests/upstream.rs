//! Tests of the client's connection pool over real sockets: connections that are ready before they
//! are needed, reused, closed by the upstream or left in an unknown state.
#![allow(clippy::unwrap_used, reason = "in tests, a panic is the message")]

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::future::join_all;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use sluicegate_config::ListenerTls;
use sluicegate_http::tls::Tls;
use sluicegate_http::upstream::{
    ClientOptions, ConnectError, ConnectionPool, LatestStart, SendError, Upstream,
};
use sluicegate_testkit::eventually_async;
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use support::{Gate, LONG, SHORT, Server, app, patient, soon};

/// A server behind a proxy that counts and holds connections, and the options of a client for it.
struct Setup {
    server: Server,
    gate: Gate,
    proxy: FaultProxy,
    options: ClientOptions,
    scheme: &'static str,
    _folder: TempDir,
}

/// The protocol of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Plain,
    Http2WithoutTls,
    TlsHttp1,
    TlsHttp2,
}

impl Setup {
    async fn new(speaks: Speaks) -> Self {
        let folder = TempDir::new().unwrap();
        let (certificate, key) = identity(&folder);
        let is_tls = matches!(speaks, Speaks::TlsHttp1 | Speaks::TlsHttp2);
        let tls = (speaks == Speaks::TlsHttp2).then(|| {
            let files =
                ListenerTls { cert: certificate.clone(), key: key.clone(), client_ca: None };
            Arc::new(Tls::load(files).unwrap())
        });
        let gate = Gate::new();
        let server = Server::start(app(&gate), patient(), tls).await;
        let port = match speaks {
            Speaks::TlsHttp1 => terminate_tls(&certificate, &key, server.address.port()).await,
            _ => server.address.port(),
        };
        let options = ClientOptions {
            connect_timeout: LONG,
            http2_only: speaks == Speaks::Http2WithoutTls,
            ca: is_tls.then_some(certificate),
        };
        let scheme = if is_tls { "https" } else { "http" };
        Self { server, gate, proxy: FaultProxy::start(port), options, scheme, _folder: folder }
    }

    fn client(&self) -> Upstream {
        Upstream::new(&self.options).unwrap()
    }

    fn pool(&self, client: &Upstream) -> ConnectionPool {
        client.pool(self.get("/").uri()).unwrap()
    }

    fn get(&self, path: &str) -> Request<Body> {
        let uri = format!("{}://localhost:{}{path}", self.scheme, self.proxy.port);
        Request::get(uri).body(Body::empty()).unwrap()
    }

    async fn hello(&self, client: &Upstream) {
        let response = soon(client.request(self.get("/hello"))).await.unwrap();
        assert_eq!(text(response).await, "hello");
    }

    /// Waits until so many connections were made.
    async fn connections(&self, count: u64) {
        eventually_async(async || self.proxy.connections() == count).await;
    }
}

fn identity(folder: &TempDir) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate, key)
}

/// Terminates TLS without ALPN in front of a plain server, so that clients use HTTP/1.1.
async fn terminate_tls(certificate: &PathBuf, key: &PathBuf, server: u16) -> u16 {
    let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut plain = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut plain).await;
            });
        }
    });
    port
}

async fn text(response: Response<Incoming>) -> String {
    let body = soon(response.into_body().collect()).await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn a_connection_is_used_again_after_the_end_of_a_response() {
    for speaks in [Speaks::Plain, Speaks::Http2WithoutTls, Speaks::TlsHttp1, Speaks::TlsHttp2] {
        let setup = Setup::new(speaks).await;
        let client = setup.client();
        let pool = setup.pool(&client);
        for _ in 0..3 {
            setup.hello(&client).await;
            // A task puts the connection back. A checkout before that opens a second one, and gets
            // the first if that is back sooner.
            assert!(soon(pool.checkout(LONG)).await.unwrap().is_open());
        }
        assert!(setup.proxy.connections() <= 2, "{speaks:?}: {}", setup.proxy.connections());
    }
}

/// A request that has its turn must not wait for a handshake.
#[tokio::test]
async fn expected_requests_find_connections_whose_handshakes_are_done() {
    for (speaks, opened) in [(Speaks::Plain, 3), (Speaks::TlsHttp1, 3), (Speaks::TlsHttp2, 1)] {
        let setup = Setup::new(speaks).await;
        let client = setup.client();
        let pool = setup.pool(&client);
        // Five requests are expected, and three connections are allowed for them.
        let expected: Vec<_> = (0..5).map(|_| pool.expect(3)).collect();
        setup.connections(opened).await;
        setup.proxy.hold_new_connections();
        drop(expected);
        let taken = join_all((0..3).map(|_| soon(pool.checkout(LONG)))).await;
        for connection in taken {
            let response = soon(connection.unwrap().send(setup.get("/hello"))).await.unwrap();
            assert_eq!(text(response).await, "hello", "{speaks:?}");
        }
        assert_eq!(setup.proxy.connections(), opened, "{speaks:?}");
    }
}

#[tokio::test]
async fn closed_connections_are_replaced_while_requests_are_expected() {
    let setup = Setup::new(Speaks::Plain).await;
    let client = setup.client();
    let pool = setup.pool(&client);
    let _expected = pool.expect(1);
    setup.connections(1).await;
    setup.proxy.set(NetworkState::Cut);
    setup.proxy.set(NetworkState::Healthy);
    setup.connections(2).await;
}

#[tokio::test]
async fn a_connection_that_nobody_used_goes_back_to_the_pool() {
    let setup = Setup::new(Speaks::TlsHttp1).await;
    let client = setup.client();
    let pool = setup.pool(&client);
    let first = soon(pool.checkout(LONG)).await.unwrap();
    assert!(!first.is_reused() && first.is_open());
    drop(first);
    let second = soon(pool.checkout(LONG)).await.unwrap();
    assert!(second.is_reused());
    assert_eq!(setup.proxy.connections(), 1);
}

/// The connection that an abandoned checkout began is for the next one.
#[tokio::test]
async fn an_abandoned_checkout_wastes_no_connection() {
    let setup = Setup::new(Speaks::TlsHttp1).await;
    setup.proxy.hold_new_connections();
    let client = setup.client();
    let pool = setup.pool(&client);
    let left = soon(pool.checkout(SHORT)).await;
    assert!(matches!(left, Err(ConnectError::Deadline(SHORT))), "{left:?}");
    setup.connections(1).await;
    let (next, ()) = tokio::join!(pool.checkout(LONG), async {
        setup.proxy.release_new_connections();
    });
    next.unwrap();
    assert_eq!(setup.proxy.connections(), 1);
}

#[tokio::test]
async fn a_checkout_takes_a_connection_that_becomes_free_before_a_new_one() {
    let setup = Setup::new(Speaks::TlsHttp1).await;
    let client = setup.client();
    let pool = setup.pool(&client);
    let first = soon(pool.checkout(LONG)).await.unwrap();
    setup.proxy.hold_new_connections();
    let (second, ()) = tokio::join!(pool.checkout(LONG), async {
        setup.connections(2).await;
        drop(first);
    });
    let response = soon(second.unwrap().send(setup.get("/hello"))).await.unwrap();
    assert_eq!(text(response).await, "hello");
}

/// Until the first handshake shows that the upstream speaks HTTP/2, nobody knows that one
/// connection is enough.
#[tokio::test]
async fn many_first_requests_open_one_http2_connection() {
    for speaks in [Speaks::TlsHttp2, Speaks::Http2WithoutTls] {
        let setup = Setup::new(speaks).await;
        let client = setup.client();
        join_all((0..50).map(|_| setup.hello(&client))).await;
        assert_eq!(setup.proxy.connections(), 1, "{speaks:?}");
    }
}

#[tokio::test]
async fn many_first_requests_over_http1_all_get_a_connection() {
    for speaks in [Speaks::TlsHttp1, Speaks::Plain] {
        let setup = Setup::new(speaks).await;
        let client = setup.client();
        let slow = join_all((0..5).map(|_| client.request(setup.get("/slow"))));
        let (slow, ()) = tokio::join!(slow, async {
            for _ in 0..5 {
                setup.gate.entered().await;
            }
            setup.gate.release();
        });
        assert_eq!(slow.into_iter().filter(Result::is_ok).count(), 5, "{speaks:?}");
        assert_eq!(setup.proxy.connections(), 5, "{speaks:?}");
    }
}

/// The rest of an unread response would be taken for the answer to the next request.
#[tokio::test]
async fn a_connection_with_an_unread_response_is_not_used_again() {
    let setup = Setup::new(Speaks::Plain).await;
    let client = setup.client();
    for number in 1..=3 {
        let mut response = soon(client.request(setup.get("/endless"))).await.unwrap();
        soon(response.body_mut().frame()).await.unwrap().unwrap();
        assert_eq!(setup.proxy.connections(), number);
        drop(response);
    }
    setup.hello(&client).await;
    assert_eq!(setup.proxy.connections(), 4);
}

#[tokio::test]
async fn a_cancelled_request_closes_its_connection() {
    let setup = Setup::new(Speaks::Plain).await;
    let client = setup.client();
    let cancelled = client.send(setup.get("/slow"), SHORT);
    assert!(matches!(soon(cancelled).await, Err(SendError::Timeout(SHORT))));
    setup.hello(&client).await;
    assert_eq!(setup.proxy.connections(), 2);
    eventually_async(async || setup.server.stats.counts().active == 1).await;
}

/// A process may be suspended after it has decided to send a request and before it writes the
/// request. The turn of the request can be over when it continues.
#[tokio::test]
async fn a_request_that_is_too_late_when_it_is_written_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let options = ClientOptions { connect_timeout: LONG, http2_only: false, ca: None };
    let client = Upstream::new(&options).unwrap();
    let bodies = [Body::empty(), Body::from("a body")];
    for body in bodies {
        // The first check is before the request is handed to the connection.
        let checks = AtomicUsize::new(0);
        let latest = LatestStart::new(move || checks.fetch_add(1, Ordering::Relaxed) > 0);
        let mut request = Request::post(format!("http://127.0.0.1:{port}/")).body(body).unwrap();
        request.extensions_mut().insert(latest);
        let (sent, received) = tokio::join!(soon(client.request(request)), async {
            let (mut stream, _) = soon(listener.accept()).await.unwrap();
            let mut received = Vec::new();
            soon(stream.read_to_end(&mut received)).await.unwrap();
            received
        });
        assert!(matches!(sent, Err(SendError::Late)), "{sent:?}");
        assert_eq!(String::from_utf8(received).unwrap(), "");
    }
}

#[tokio::test]
async fn a_request_that_is_not_late_is_sent_and_its_connection_used_again() {
    for speaks in [Speaks::Plain, Speaks::Http2WithoutTls, Speaks::TlsHttp1, Speaks::TlsHttp2] {
        let setup = Setup::new(speaks).await;
        let client = setup.client();
        for _ in 0..3 {
            let mut request = setup.get("/hello");
            request.extensions_mut().insert(LatestStart::new(|| false));
            assert_eq!(text(soon(client.request(request)).await.unwrap()).await, "hello");
        }
        let mut request = setup.get("/hello");
        request.extensions_mut().insert(LatestStart::new(|| true));
        let late = soon(client.request(request)).await;
        assert!(matches!(late, Err(SendError::Late)), "{speaks:?}: {late:?}");
        setup.hello(&client).await;
        assert_eq!(setup.proxy.connections(), 1, "{speaks:?}");
    }
}

#[tokio::test]
async fn a_connection_that_the_upstream_closes_while_it_is_idle_is_not_handed_out() {
    let setup = Setup::new(Speaks::TlsHttp1).await;
    let client = setup.client();
    let pool = setup.pool(&client);
    let connection = soon(pool.checkout(LONG)).await.unwrap();
    setup.proxy.set(NetworkState::Cut);
    eventually_async(async || !connection.is_open()).await;
    setup.proxy.set(NetworkState::Healthy);
    drop(connection);
    assert!(!soon(pool.checkout(LONG)).await.unwrap().is_reused());
}

/// The upstream closes an idle connection in the same moment in which a request is sent on it.
#[tokio::test]
async fn a_request_that_was_not_sent_is_sent_on_a_new_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let request = || Request::post(&uri).body(Body::from("body")).unwrap();
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let client =
        Upstream::new(&ClientOptions { connect_timeout: LONG, http2_only: false, ca: None })
            .unwrap();
    let serving = async {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"body") {
                let mut part = [0; 1024];
                let length = stream.read(&mut part).await.unwrap();
                read.extend_from_slice(&part[..length]);
            }
            // Dropped afterwards, so that the connection closes as soon as it is idle.
            stream.write_all(answer).await.unwrap();
        }
    };
    let asking = async {
        for _ in 0..2 {
            let response = soon(client.request(request())).await.unwrap();
            assert_eq!(text(response).await, "ok");
        }
    };
    soon(async { tokio::join!(serving, asking) }).await;
}

#[tokio::test]
async fn a_handshake_that_does_not_end_counts_as_a_connect_timeout() {
    let mut setup = Setup::new(Speaks::TlsHttp1).await;
    setup.proxy.hold_new_connections();
    setup.options.connect_timeout = SHORT;
    let client = setup.client();
    let failed = join_all((0..5).map(|_| soon(client.request(setup.get("/hello"))))).await;
    for failed in failed {
        let error = failed.unwrap_err();
        let timed_out = matches!(error, SendError::Unreachable(ConnectError::Timeout(SHORT)));
        assert!(timed_out, "{error}");
    }
}

#[tokio::test]
async fn a_refused_connection_names_the_reason() {
    let client =
        Upstream::new(&ClientOptions { connect_timeout: LONG, http2_only: false, ca: None })
            .unwrap();
    let request = Request::get("http://127.0.0.1:1/").body(Body::empty()).unwrap();
    let error = soon(client.request(request)).await.unwrap_err().to_string();
    assert!(error.contains("refused"), "{error}");
    let relative = Request::get("/path").body(Body::empty()).unwrap();
    let error = soon(client.request(relative)).await.unwrap_err().to_string();
    assert!(error.contains("write http://host"), "{error}");
}

#[tokio::test]
async fn idle_connections_are_closed_after_a_while() {
    let setup = Setup::new(Speaks::Plain).await;
    let client = setup.client();
    setup.hello(&client).await;
    assert_eq!(setup.server.stats.counts().active, 1);
    // Virtual time: it moves on whenever everybody waits.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(35)).await;
    tokio::time::resume();
    eventually_async(async || setup.server.stats.counts().active == 0).await;
}
