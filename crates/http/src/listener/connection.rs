//! Serves one connection, from its TLS handshake to its end.

use std::pin::pin;
use std::sync::Arc;

use axum::{BoxError, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::activity::Activity;
use super::combined_writes::CombinedWrites;
use super::framing::inspect;
use super::in_flight::InFlight;
use super::parse_error::ExplainedErrors;
use super::service::App;
use super::{Options, Peer, Stats};
use crate::tls::Tls;

/// Minimum buffer of hyper's HTTP/1.
const HTTP1_BUFFER_MIN: usize = 8192;
/// Maximum number of streams that a client may reset before the server has looked at them; more is
/// a flood ("rapid reset").
const RESETS_PENDING_MAX: usize = 20;
/// Maximum number of streams that the server resets for client errors before it ends the
/// connection.
const RESETS_LOCAL_MAX: usize = 1024;

/// Everything that the connections of a listener share.
pub(super) struct ConnectionHandler {
    app: Router,
    options: Options,
    tls: Option<Arc<Tls>>,
    stats: Arc<Stats>,
    in_flight: Arc<InFlight>,
    http: auto::Builder<TokioExecutor>,
}

impl ConnectionHandler {
    pub(super) fn new(
        app: Router,
        options: Options,
        tls: Option<Arc<Tls>>,
        stats: Arc<Stats>,
        in_flight: Arc<InFlight>,
    ) -> Self {
        let http = http(&options);
        Self { app, options, tls, stats, in_flight, http }
    }

    /// Serves `stream` until the client closes it, it times out, or `shutdown` is cancelled and the
    /// last response is sent.
    pub(super) async fn run(&self, stream: TcpStream, peer: Peer, shutdown: CancellationToken) {
        // Each write is a complete message, so there is nothing to wait for.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "can't set TCP_NODELAY");
        }
        let ended = match &self.tls {
            None => self.drive(stream, peer, &shutdown).await,
            Some(tls) => match self.handshake(tls, stream, &shutdown).await {
                Some(stream) => self.drive(stream, peer, &shutdown).await,
                None => return,
            },
        };
        if let Err(error) = ended {
            // Debug level: any client can cause these at will.
            debug!(%error, "connection failed");
        }
    }

    async fn handshake(
        &self,
        tls: &Tls,
        stream: TcpStream,
        shutdown: &CancellationToken,
    ) -> Option<TlsStream<TcpStream>> {
        let handshake = TlsAcceptor::from(tls.config()).accept(stream);
        let shaken = tokio::select! {
            shaken = timeout(self.options.header_timeout, handshake) => shaken,
            () = shutdown.cancelled() => return None,
        };
        match shaken {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
            Err(_) => debug!("TLS handshake timed out"),
        }
        self.stats.add_handshake_error();
        None
    }

    /// Runs HTTP on `stream` and closes it if it is idle.
    async fn drive(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        shutdown: &CancellationToken,
    ) -> Result<(), BoxError> {
        let Options { header_timeout, idle_timeout, body_timeout, .. } = self.options;
        let peer = self.options.expose_peer.then_some(peer);
        let activity = Arc::new(Activity::default());
        let stream = CombinedWrites::new(stream, self.options.combine_writes);
        let (stream, inspection) = inspect(stream, self.options.mark_ambiguous_length);
        let bodies = self.options.parse_error_bodies;
        let stream = ExplainedErrors::new(stream, bodies, Arc::clone(&activity));
        let app = App {
            router: self.app.clone(),
            body_timeout,
            peer,
            inspection,
            activity: Arc::clone(&activity),
            in_flight: Arc::clone(&self.in_flight),
        };
        let io = TokioIo::new(stream);
        // A handler that answers 101 takes over the connection; most never do.
        let mut connection = pin!(self.http.serve_connection_with_upgrades(io, app));

        let mut wait = header_timeout.min(idle_timeout);
        let mut seen = 0;
        let mut is_closing = false;
        loop {
            tokio::select! {
                // The connection comes first: a request that has already arrived gets its response,
                // even if the time is over or the server shuts down.
                biased;
                ended = connection.as_mut() => return ended,
                () = shutdown.cancelled(), if !is_closing => {
                    if activity.has_no_requests() {
                        return Ok(());
                    }
                }
                () = sleep(wait) => {
                    if !activity.is_idle(&mut seen) {
                        wait = if is_closing { header_timeout } else { idle_timeout };
                        continue;
                    }
                    if !is_closing {
                        self.stats.add_timed_out();
                    }
                    // The connection was never used, or the client does not even read the closing
                    // message.
                    if is_closing || activity.has_no_requests() {
                        return Ok(());
                    }
                }
            }
            is_closing = true;
            wait = header_timeout;
            connection.as_mut().graceful_shutdown();
        }
    }
}

fn http(options: &Options) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    let header_bytes_max = usize::try_from(options.header_bytes_max).unwrap_or(usize::MAX);
    http.http1()
        .timer(TokioTimer::new())
        // hyper's own timeout would also end idle connections and needs a timer per request.
        .header_read_timeout(None)
        .max_buf_size(header_bytes_max.max(HTTP1_BUFFER_MIN));
    http.http2()
        .timer(TokioTimer::new())
        .max_header_list_size(options.header_bytes_max)
        .max_concurrent_streams(options.streams_max)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(RESETS_LOCAL_MAX)
        // Finds clients that vanished while the server works for them.
        .keep_alive_interval(options.idle_timeout)
        .keep_alive_timeout(options.header_timeout);
    http
}
