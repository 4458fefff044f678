//! A listener on a free port, an application to serve, and clients that can misbehave.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluicegate_http::listener::{self, Error, Options, Stats};
use sluicegate_http::tls::Tls;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

/// A timeout of the server that a test waits for.
pub const SHORT: Duration = Duration::from_millis(200);
/// A timeout that never expires in a test.
pub const LONG: Duration = Duration::from_secs(600);

/// Returns options with timeouts that never expire: a test shortens the one that it is about.
pub fn patient() -> Options {
    Options {
        header_timeout: LONG,
        body_timeout: Some(LONG),
        idle_timeout: LONG,
        shutdown_grace: LONG,
        ..Options::default()
    }
}

/// Waits for `future`, and fails the test after 30 s.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), future).await.expect("it should have happened by now")
}

/// A running listener.
pub struct Server {
    pub address: SocketAddr,
    pub shutdown: CancellationToken,
    pub stats: Arc<Stats>,
    pub running: JoinHandle<Result<(), Error>>,
}

impl Server {
    pub async fn start(app: Router, options: Options, tls: Option<Arc<Tls>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let stats = Arc::new(Stats::default());
        let serving =
            listener::serve(listener, app, options, tls, Arc::clone(&stats), shutdown.clone());
        Self { address, shutdown, stats, running: tokio::spawn(serving) }
    }

    pub async fn tcp(&self) -> TcpStream {
        soon(TcpStream::connect(self.address)).await.unwrap()
    }

    /// Opens a connection for HTTP/1.1.
    pub async fn connect(&self) -> Client<TcpStream> {
        Client::new(self.tcp().await)
    }

    /// Opens a connection for HTTP/2 with prior knowledge.
    pub async fn connect_http2(&self) -> Http2 {
        Http2::new(self.tcp().await).await
    }

    /// Returns true if a new client is served.
    pub async fn serves(&self) -> bool {
        match TcpStream::connect(self.address).await {
            Ok(stream) => Client::new(stream).try_get("/hello").await.is_some(),
            Err(_) => false,
        }
    }

    /// Shuts down and returns the result of the listener.
    pub async fn end(self) -> Result<(), Error> {
        self.shutdown.cancel();
        soon(self.running).await.unwrap()
    }
}

/// A client that writes HTTP/1.1 as raw text.
pub struct Client<S> {
    pub stream: BufReader<S>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub fn new(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub async fn send(&mut self, text: impl AsRef<[u8]>) {
        soon(self.stream.write_all(text.as_ref())).await.unwrap();
        soon(self.stream.flush()).await.unwrap();
    }

    /// Reads the next response; `None` if the connection was closed instead.
    pub async fn answer(&mut self) -> Option<Answer> {
        soon(self.read_answer()).await
    }

    /// Sends `GET path` and returns the response.
    pub async fn get(&mut self, path: &str) -> Answer {
        self.try_get(path).await.expect("the server should have answered")
    }

    pub async fn try_get(&mut self, path: &str) -> Option<Answer> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
        soon(self.stream.write_all(request.as_bytes())).await.ok()?;
        soon(self.stream.flush()).await.ok()?;
        self.answer().await
    }

    /// Reads until the server closes or resets the connection.
    pub async fn closed(&mut self) -> String {
        let mut rest = Vec::new();
        let _ = soon(self.stream.read_to_end(&mut rest)).await;
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// Sends single bytes until the server closes, and returns what the server sent.
    pub async fn trickle(&mut self, byte: u8) -> String {
        let (reader, mut writer) = tokio::io::split(&mut self.stream);
        let writing = async {
            let mut pause = interval(Duration::from_millis(10));
            while writer.write_all(&[byte]).await.is_ok() && writer.flush().await.is_ok() {
                pause.tick().await;
            }
            // The reader finds the end.
            std::future::pending().await
        };
        let mut said = Vec::new();
        let mut reader = BufReader::new(reader);
        soon(async {
            tokio::select! {
                _ = reader.read_to_end(&mut said) => {}
                () = writing => {}
            }
        })
        .await;
        String::from_utf8_lossy(&said).into_owned()
    }

    async fn read_answer(&mut self) -> Option<Answer> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head).await.ok()? == 0 {
                return None;
            }
        }
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(Answer { status, head, body: String::from_utf8(body).unwrap() })
    }
}

/// An HTTP/2 client.
pub struct Http2 {
    pub sender: SendRequest<Empty<Bytes>>,
    /// The task of the connection.
    pub running: JoinHandle<()>,
}

impl Http2 {
    pub async fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let io = TokioIo::new(stream);
        let shaking = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
        let (sender, connection) = soon(shaking).await.unwrap();
        let running = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { sender, running }
    }

    /// Sends `GET path` and returns status and body; `None` if it failed.
    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        let uri = format!("http://test{path}");
        let request = hyper::Request::get(uri).body(Empty::new()).unwrap();
        let mut sender = self.sender.clone();
        let response = soon(sender.send_request(request)).await.ok()?;
        let status = response.status().as_u16();
        let body = soon(response.into_body().collect()).await.ok()?.to_bytes();
        Some((status, String::from_utf8(body.to_vec()).unwrap()))
    }
}

/// A gate that blocks the responses of `/slow` and `/stream`.
#[derive(Clone)]
pub struct Gate {
    entered: Arc<Semaphore>,
    released: CancellationToken,
}

impl Gate {
    pub fn new() -> Self {
        Self { entered: Arc::new(Semaphore::new(0)), released: CancellationToken::new() }
    }

    /// Waits until one more request has reached the gate.
    pub async fn entered(&self) {
        soon(self.entered.acquire()).await.unwrap().forget();
    }

    pub fn release(&self) {
        self.released.cancel();
    }

    async fn pass(self) {
        self.entered.add_permits(1);
        self.released.cancelled().await;
    }
}

/// Returns the application: `/hello` answers at once, `/echo` with the request body, `/slow` when the
/// gate opens; `/stream` begins at once and continues after the gate, `/endless` never ends, `/panic`
/// panics.
pub fn app(gate: &Gate) -> Router {
    let (slow, begun) = (gate.clone(), gate.clone());
    let slow = || async {
        slow.pass().await;
        "slow"
    };
    let endless = || async {
        let part = Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 1024]));
        Body::from_stream(stream::repeat(part))
    };
    let stream = || async {
        let parts = stream::unfold(0, move |part| {
            let gate = begun.clone();
            async move {
                match part {
                    0 => Some((Ok::<_, Infallible>("begin "), 1)),
                    1 => {
                        gate.pass().await;
                        Some((Ok("end"), 2))
                    }
                    _ => None,
                }
            }
        });
        Body::from_stream(parts)
    };
    Router::new()
        .route("/hello", get(|| async { "hello" }))
        .route("/echo", post(|body: String| async { body }))
        .route("/slow", get(slow))
        .route("/stream", get(stream))
        .route("/endless", get(endless))
        .route("/panic", get(panics))
}

async fn panics() {
    panic!("on purpose");
}
