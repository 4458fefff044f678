//! The listener: accepts connections on a bound socket, serves HTTP/1.1 and HTTP/2 on them,
//! optionally with TLS, and shuts down gracefully.
//!
//! No client is trusted, so everything that a client can occupy has a maximum:
//!
//! | the client                                 | is cut off                                 |
//! |--------------------------------------------|--------------------------------------------|
//! | connects while `connections_max` are open  | at once                                    |
//! | does not finish its TLS handshake          | after `header_timeout`                     |
//! | does not finish its first request's header | after `header_timeout`                     |
//! | sends a request body too slowly            | after `body_timeout`, by an error in it    |
//! | does not read its responses                | after one to two `idle_timeout`            |
//! | sends nothing, or very slowly              | after one to two `idle_timeout`            |
//! | sends a header above `header_bytes_max`    | at once, with 431                          |
//! | opens and resets HTTP/2 streams in floods  | at once, by GOAWAY                         |
//! | is still being served at shutdown          | after `shutdown_grace`                     |
//! | sends a request during shutdown            | after its response, if it is answered      |
//!
//! A later request's header is part of the idle time: a client that sends it slowly costs as much
//! as an idle client, and gets no more time.

mod accept;
mod activity;
mod body;
mod combined_writes;
mod connection;
mod framing;
mod in_flight;
mod parse_error;
mod service;
mod stats;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use sluicegate_config::ServerOptions;
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use self::body::BodyTimeout;
pub use self::framing::AmbiguousLength;
pub use self::parse_error::ParseErrorBody;
pub use self::stats::{ListenerCounts, Stats};

use self::accept::{AcceptProblems, accept};
use self::connection::ConnectionHandler;
use self::in_flight::InFlight;
use crate::tls::Tls;

/// Limits and options of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum number of open connections; more are closed at once. Each needs a file descriptor.
    pub connections_max: usize,
    /// Maximum time for the TLS handshake, and again for the first request's header. At most
    /// `idle_timeout`.
    pub header_timeout: Duration,
    /// Maximum time from the header of a request to the end of its body. `None` is for protocols
    /// whose requests are streams without a fixed end.
    pub body_timeout: Option<Duration>,
    /// Maximum time without activity before a connection is closed.
    pub idle_timeout: Duration,
    /// Maximum size of a request header. HTTP/1 accepts at least 8192.
    pub header_bytes_max: u32,
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    pub streams_max: u32,
    /// Maximum time for requests in flight to finish at shutdown.
    pub shutdown_grace: Duration,
    /// Combines responses into one write. For protocols with many short responses on one
    /// connection, such as gRPC.
    pub combine_writes: bool,
    /// Adds the client's address to the extensions of each request, as [`Peer`].
    pub expose_peer: bool,
    /// Adds [`AmbiguousLength`] to the extensions of each request with an ambiguous length.
    pub mark_ambiguous_length: bool,
    /// Bodies of the responses to requests that can't be parsed; without one the body is empty.
    pub parse_error_bodies: &'static [ParseErrorBody],
    /// At shutdown, answers new connections and requests until those in flight are finished. For
    /// applications that tell new clients where to go, and whose probes report the shutdown.
    pub answers_while_draining: bool,
}

/// The client at the other end of a request's connection, in the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(
    /// Address of the client.
    pub SocketAddr,
);

impl From<&ServerOptions> for Options {
    fn from(server: &ServerOptions) -> Self {
        Self {
            connections_max: server.connections_max,
            header_timeout: server.header_timeout.into(),
            body_timeout: Some(Duration::from_secs(30)),
            // Longer than the 60 s of common load balancers: the side that sends requests must
            // close first, or a request can cross the closing and be lost.
            idle_timeout: Duration::from_secs(75),
            header_bytes_max: 32 * 1024,
            streams_max: 256,
            shutdown_grace: server.shutdown_grace.into(),
            combine_writes: false,
            expose_peer: false,
            mark_ambiguous_length: false,
            parse_error_bodies: &[],
            answers_while_draining: false,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::from(&ServerOptions::default())
    }
}

/// An unclean end of a listener.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Requests were still in flight when the grace period was over.
    #[error(
        "shutdown cut off {connections} connections that were still busy after {grace:?}: \
         raise shutdown_grace if their work takes longer"
    )]
    Unfinished {
        /// Number of connections that were cut off.
        connections: usize,
        /// The grace period.
        grace: Duration,
    },
}

/// Serves `app` on `listener` until `shutdown` is cancelled.
///
/// Then it stops listening, closes idle connections, and returns when the last request in flight is
/// answered or `shutdown_grace` is over. With `answers_while_draining`, it stops listening only
/// after the last request in flight. Dropping the future closes the listener and every connection
/// at once.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    options: Options,
    tls: Option<Arc<Tls>>,
    stats: Arc<Stats>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let Options { connections_max, shutdown_grace: grace, answers_while_draining, .. } = options;
    let in_flight = Arc::new(InFlight::default());
    let mut server = Server {
        listener,
        connections_max,
        handler: Arc::new(ConnectionHandler::new(
            app,
            options,
            tls,
            Arc::clone(&stats),
            Arc::clone(&in_flight),
        )),
        stats,
        connections: JoinSet::new(),
        closing: CancellationToken::new(),
    };
    server.accept_until(shutdown.cancelled()).await;
    let mut grace_over = pin!(sleep(grace));
    if answers_while_draining {
        let finished = async {
            tokio::select! {
                () = in_flight.drain() => {}
                () = grace_over.as_mut() => {}
            }
        };
        server.accept_until(finished).await;
    }
    let Server { listener, mut connections, closing, .. } = server;
    // From here on the system refuses new connections.
    drop(listener);
    closing.cancel();
    info!(connections = connections.len(), "listener shutting down");
    let drained = async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    };
    tokio::select! {
        biased;
        () = drained => return Ok(()),
        () = grace_over => {}
    }
    let unfinished = connections.len();
    connections.shutdown().await;
    Err(Error::Unfinished { connections: unfinished, grace })
}

/// A bound listener and its connections.
struct Server {
    listener: TcpListener,
    connections_max: usize,
    handler: Arc<ConnectionHandler>,
    stats: Arc<Stats>,
    connections: JoinSet<()>,
    /// Cancelled when connections have to end.
    closing: CancellationToken,
}

impl Server {
    /// Accepts connections until `stop` is ready.
    async fn accept_until(&mut self, stop: impl Future<Output = ()>) {
        let Self { listener, connections_max, handler, stats, connections, closing } = self;
        let mut problems = AcceptProblems::new();
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                // Ended connections are removed before a new one is counted.
                biased;
                () = stop.as_mut() => return,
                Some(ended) = connections.join_next() => report(ended),
                () = problems.report() => {}
                accepted = accept(|| listener.accept()) => match accepted {
                    Err(error) => {
                        stats.add_accept_error();
                        problems.failed(error);
                    }
                    Ok(_) if connections.len() >= *connections_max => {
                        stats.add_refused();
                        problems.refused();
                    }
                    Ok((stream, peer)) => {
                        let open = stats.open();
                        let handler = Arc::clone(handler);
                        // A child token, because every poll of a connection locks its token.
                        let closing = closing.child_token();
                        connections.spawn(async move {
                            handler.run(stream, Peer(peer), closing).await;
                            drop(open);
                        });
                    }
                }
            }
        }
    }
}

/// Logs a panic. A handler that panics ends its own connection and nothing else.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(%error, "connection panicked");
    }
}
