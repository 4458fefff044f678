//! From a bound socket to an application: accepts connections, speaks HTTP/1.1 and HTTP/2 on
//! them, with TLS if asked to, and ends in good order.
//!
//! Whoever connects is a stranger until proven otherwise, so everything that a client can hold
//! has a bound:
//!
//! | the client                                | is cut off                                  |
//! |-------------------------------------------|---------------------------------------------|
//! | comes when `connections_max` are open     | at once                                     |
//! | doesn't finish its TLS handshake          | after `header_timeout`                      |
//! | doesn't finish its first request's header | after `header_timeout`                      |
//! | trickles a request body                   | after `body_timeout`, by an error in it     |
//! | has answers waiting that it doesn't read  | after one to two `idle_timeout`             |
//! | has nothing more to say, or very slowly   | after one to two `idle_timeout`             |
//! | sends a header above `header_bytes_max`   | at once, with 431                           |
//! | opens and resets HTTP/2 streams in floods | at once, by GOAWAY                          |
//! | is still served when we shut down         | after `shutdown_grace`                      |
//!
//! A later request's header is part of the idle time: a client that trickles it costs what a
//! client that keeps silent costs, and gets no more time.

mod accept;
mod body;
mod connection;
mod framing;
mod gathered;
mod pulse;
mod service;
mod stats;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use self::body::BodyTimeout;
pub use self::framing::Doubtful;
pub use self::stats::{Counts, Stats};

use self::accept::{Troubles, accept};
use self::connection::Connector;
use crate::tls::Tls;

/// The bounds of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Connections open at a time; those beyond are closed at once. Each takes a file descriptor.
    pub connections_max: usize,
    /// From the connection to the TLS session, and from there to the first request. No longer
    /// than `idle_timeout`.
    pub header_timeout: Duration,
    /// From the header of a request to the end of its body. `None` is for protocols whose
    /// requests are streams that end when the client likes.
    pub body_timeout: Option<Duration>,
    /// How long a connection may stay open on which nothing happens.
    pub idle_timeout: Duration,
    /// Size of the header of a request. HTTP/1 takes at least 8192.
    pub header_bytes_max: u32,
    /// Requests at a time on one HTTP/2 connection.
    pub streams_max: u32,
    /// How long requests in flight may take to finish when the server shuts down.
    pub shutdown_grace: Duration,
    /// Whether answers are short, and many of them on one connection, as those of gRPC are: they
    /// are gathered into one write.
    pub gathers: bool,
    /// Whether the extensions of a request tell its [`Peer`].
    pub tell_peer: bool,
    /// Whether the extensions of a request tell that it is [`Doubtful`].
    pub tell_doubts: bool,
}

/// Who is at the other end of a request's connection, in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(
    /// Its address.
    pub SocketAddr,
);

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            header_timeout: Duration::from_secs(10),
            body_timeout: Some(Duration::from_secs(30)),
            // Longer than the 60 s of common load balancers: the side that sends requests
            // must be the one that closes, or a request crosses the closing and is lost.
            idle_timeout: Duration::from_secs(75),
            header_bytes_max: 32 * 1024,
            streams_max: 256,
            shutdown_grace: Duration::from_secs(30),
            gathers: false,
            tell_peer: false,
            tell_doubts: false,
        }
    }
}

/// Why a listener did not end in good order.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Requests were still in flight when the grace was over.
    #[error(
        "shutdown cut off {connections} connections that were still busy after {grace:?}: \
         raise shutdown_grace if their work takes longer"
    )]
    Unfinished {
        /// How many were cut off.
        connections: usize,
        /// The grace they were given.
        grace: Duration,
    },
}

/// Serves `app` to whoever connects to `listener`, until `shutdown` is cancelled.
///
/// Then it stops listening, gives up idle connections, and returns when the last request in
/// flight is answered or `shutdown_grace` is over. Dropping the future closes the listener and
/// every connection at once.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    options: Options,
    tls: Option<Arc<Tls>>,
    stats: Arc<Stats>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let Options { connections_max, shutdown_grace: grace, .. } = options;
    let connector = Arc::new(Connector::new(app, options, tls, Arc::clone(&stats)));
    let mut connections = JoinSet::new();
    let mut troubles = Troubles::new();
    loop {
        tokio::select! {
            // Those that ended are counted out before a new one is counted in.
            biased;
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => report(ended),
            () = troubles.report() => {}
            accepted = accept(|| listener.accept()) => match accepted {
                Err(error) => {
                    stats.add_accept_error();
                    troubles.failed(error);
                }
                Ok(_) if connections.len() >= connections_max => {
                    stats.add_refused();
                    troubles.refused();
                }
                Ok((stream, peer)) => {
                    let open = stats.open();
                    let connector = Arc::clone(&connector);
                    // A token of its own: every poll of a connection locks it.
                    let shutdown = shutdown.child_token();
                    connections.spawn(async move {
                        connector.run(stream, Peer(peer), shutdown).await;
                        drop(open);
                    });
                }
            }
        }
    }
    // From here on the system refuses whoever connects.
    drop(listener);
    info!(connections = connections.len(), "shutting down");
    let drained = timeout(grace, async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    });
    if drained.await.is_ok() {
        return Ok(());
    }
    let unfinished = connections.len();
    connections.shutdown().await;
    Err(Error::Unfinished { connections: unfinished, grace })
}

/// A handler that panics takes its connection with it, and nothing else.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(%error, "connection panicked");
    }
}
