//! [`Pool`]: the connections to one upstream, each of them ready for a request.
//!
//! A limit counts requests at the moment at which they reach the upstream. A request that takes its
//! turn first and connects afterwards arrives one TCP and TLS handshake late; the next one, on a
//! connection that is open already, arrives in time; so together they arrive in a shorter time than
//! the limit allows. This is why a caller takes the connection first ([`Pool::checkout`]), then its
//! turn, and then sends, which needs no further waiting.
//!
//! | connection | checked out | back in the pool |
//! |---|---|---|
//! | HTTP/1.1 | by one request | at the end of the response body, unless that is left unread or the upstream closes |
//! | HTTP/2 | by any number of requests | it stays there until the upstream closes it |
//!
//! Requests that wait for their turn hold no connection, because hundreds of them would open
//! hundreds of connections. They announce themselves instead ([`Pool::expect`]): the pool keeps as
//! many connections ready as requests are expected, up to a bound, and opens them in the background.
//! So a request that takes a connection right after its turn gets one at once.
//!
//! Each waiting checkout is backed by a connection that is being opened, but it gets the first
//! connection that becomes free, whichever that is. Over TLS the first connection shows which
//! protocol the upstream speaks; until then only one is opened.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderValue, Uri, uri};
use hyper::client::conn::http2;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::connection::ReadyConnection;
use super::connector::{ConnectError, Connector, Http1Sender, Protocol, Sender};

/// Time between two looks at idle connections.
const TICK: Duration = Duration::from_secs(1);
/// Maximum idle time of a connection, in ticks; shorter than what servers usually allow.
const IDLE_TICKS_MAX: u64 = 30;
/// Maximum number of idle connections to one upstream.
const IDLE_MAX: usize = 256;

/// The connections to one upstream.
pub(super) struct Pool {
    connector: Arc<Connector>,
    /// Scheme and authority of the upstream.
    pub(super) uri: Uri,
    /// Value of the `Host` header field.
    pub(super) host: HeaderValue,
    state: Mutex<State>,
}

struct State {
    protocol: Protocol,
    /// Idle HTTP/1.1 connections, the last used one at the end.
    idle: Vec<Idle>,
    /// The HTTP/2 connection, and the tick at which it was last checked out.
    shared: Option<(http2::SendRequest<Body>, u64)>,
    waiting: VecDeque<oneshot::Sender<Result<ReadyConnection, ConnectError>>>,
    /// Number of connections that are being opened.
    opening: usize,
    /// Number of requests that will need a connection soon.
    expected: usize,
    /// Maximum number of connections that are kept ready for expected requests.
    expected_max: usize,
    /// Number of ticks so far.
    tick: u64,
    /// True while the task runs that looks after idle connections.
    ticking: bool,
}

struct Idle {
    sender: Http1Sender,
    /// Tick at which it became idle.
    since: u64,
}

/// An announced request. The pool keeps a connection ready for it until this is dropped.
pub struct ExpectedRequest(Arc<Pool>);

impl Pool {
    /// Creates a pool without connections. `None` if the address has no valid host.
    pub(super) fn new(
        connector: &Arc<Connector>,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Option<Arc<Self>> {
        let mut parts = uri::Parts::default();
        parts.scheme = Some(scheme.clone());
        parts.authority = Some(authority.clone());
        parts.path_and_query = Some(uri::PathAndQuery::from_static("/"));
        let uri = Uri::from_parts(parts).ok()?;
        let default_port = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        let host = match authority.port_u16().filter(|port| *port != default_port) {
            None => HeaderValue::from_str(authority.host()),
            Some(port) => HeaderValue::try_from(format!("{}:{port}", authority.host())),
        };
        let state = State {
            protocol: connector.protocol(&uri),
            idle: Vec::new(),
            shared: None,
            waiting: VecDeque::new(),
            opening: 0,
            expected: 0,
            expected_max: 0,
            tick: 0,
            ticking: false,
        };
        let (connector, state) = (connector.clone(), Mutex::new(state));
        Some(Arc::new(Self { connector, uri, host: host.ok()?, state }))
    }

    /// Returns a connection that a request can be sent on at once: an open one, or a new one.
    pub(super) async fn checkout(
        self: &Arc<Self>,
        wait_max: Duration,
    ) -> Result<ReadyConnection, ConnectError> {
        let handed = {
            let mut state = self.lock();
            if let Some(sender) = state.take() {
                return Ok(ReadyConnection::new(sender, true, self.clone()));
            }
            let (hand, handed) = oneshot::channel();
            state.waiting.push_back(hand);
            self.open_missing(&mut state);
            handed
        };
        match timeout(wait_max, handed).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(_)) => Err(ConnectError::Failed("the process is shutting down".into())),
            Err(_) => Err(ConnectError::Deadline(wait_max)),
        }
    }

    /// Drops all idle connections after one of them turned out to be closed: the upstream has
    /// probably closed the others, too.
    pub(super) fn discard_idle(&self) {
        let mut state = self.lock();
        let discarded = (std::mem::take(&mut state.idle), state.shared.take());
        drop(state);
        drop(discarded);
    }

    /// Announces a request that will need a connection soon. For all of them together, at most
    /// `ready_max` connections are kept ready.
    pub(super) fn expect(self: &Arc<Self>, ready_max: usize) -> ExpectedRequest {
        let mut state = self.lock();
        state.expected += 1;
        state.expected_max = ready_max;
        state.discard_closed();
        self.open_missing(&mut state);
        self.start_ticking(&mut state);
        ExpectedRequest(self.clone())
    }

    /// Takes an HTTP/1.1 connection that is ready for the next request. `reused` is false if it was
    /// just opened.
    pub(super) fn put_back(self: &Arc<Self>, sender: Http1Sender, reused: bool) {
        let mut state = self.lock();
        if let Some(waiting) = state.next_waiting() {
            drop(state);
            let connection = ReadyConnection::new(Sender::Http1(sender), reused, self.clone());
            // If the checkout has ended, the connection is dropped here and returns to the pool.
            drop(waiting.send(Ok(connection)));
        } else if state.idle.len() < IDLE_MAX {
            let since = state.tick;
            state.idle.push(Idle { sender, since });
            self.start_ticking(&mut state);
        }
    }

    /// Opens as many connections as are missing, in the background.
    fn open_missing(self: &Arc<Self>, state: &mut State) {
        let missing = state.missing();
        state.opening += missing;
        for _ in 0..missing {
            let pool = self.clone();
            tokio::spawn(async move {
                let opened = pool.connector.open(&pool.uri).await;
                pool.opened(opened);
            });
        }
    }

    /// Distributes a new connection, or the reason why there is none.
    fn opened(self: &Arc<Self>, opened: Result<Sender, ConnectError>) {
        let mut state = self.lock();
        state.opening -= 1;
        match opened {
            Ok(Sender::Http1(sender)) => {
                state.protocol = Protocol::Http1;
                drop(state);
                self.put_back(sender, false);
                // Checkouts that waited to learn the protocol get their own connections.
                self.open_missing(&mut self.lock());
            }
            Ok(Sender::Http2(sender)) => {
                state.protocol = Protocol::Http2;
                // Another connection may have been first; then this one is closed again.
                let sender = state.take_shared().unwrap_or(sender);
                let tick = state.tick;
                state.shared = Some((sender.clone(), tick));
                let waiting = std::mem::take(&mut state.waiting);
                self.start_ticking(&mut state);
                drop(state);
                for waiting in waiting {
                    let sender = Sender::Http2(sender.clone());
                    let connection = ReadyConnection::new(sender, false, self.clone());
                    drop(waiting.send(Ok(connection)));
                }
            }
            Err(error) => {
                let failed = state.without_backing();
                drop(state);
                for waiting in failed {
                    drop(waiting.send(Err(error.clone())));
                }
            }
        }
    }

    /// Starts the task that looks after idle connections, unless it runs.
    fn start_ticking(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.ticking, true) {
            tokio::spawn(Self::tick_while_needed(Arc::downgrade(self)));
        }
    }

    /// Discards connections that are closed or were idle for too long, and opens new ones for
    /// expected requests, once per tick. This also bounds the rate of attempts while the upstream
    /// refuses connections.
    async fn tick_while_needed(pool: Weak<Self>) {
        loop {
            sleep(TICK).await;
            let Some(pool) = pool.upgrade() else { return };
            let mut state = pool.lock();
            state.tick += 1;
            state.discard_closed();
            let tick = state.tick;
            let is_old = |since: u64| tick - since > IDLE_TICKS_MAX;
            state.idle.retain(|idle| !is_old(idle.since));
            if state.shared.as_ref().is_some_and(|(_, used)| is_old(*used)) {
                state.shared = None;
            }
            pool.open_missing(&mut state);
            if state.idle.is_empty() && state.shared.is_none() && state.expected == 0 {
                state.ticking = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the connection that was used last: it is the least likely to be closed soon.
    fn take(&mut self) -> Option<Sender> {
        if let Some(sender) = self.take_shared() {
            let shared = (sender.clone(), self.tick);
            self.shared = Some(shared);
            return Some(Sender::Http2(sender));
        }
        while let Some(Idle { sender, .. }) = self.idle.pop() {
            let sender = Sender::Http1(sender);
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    /// Takes the HTTP/2 connection if it is open.
    fn take_shared(&mut self) -> Option<http2::SendRequest<Body>> {
        self.shared.take().map(|(sender, _)| sender).filter(|sender| sender.is_ready())
    }

    /// Takes the first checkout that still waits.
    fn next_waiting(&mut self) -> Option<oneshot::Sender<Result<ReadyConnection, ConnectError>>> {
        std::iter::from_fn(|| self.waiting.pop_front()).find(|waiting| !waiting.is_closed())
    }

    /// Returns the number of connections that have to be opened.
    fn missing(&mut self) -> usize {
        self.waiting.retain(|waiting| !waiting.is_closed());
        let wanted = self.waiting.len() + self.expected.min(self.expected_max);
        let ready = match self.protocol {
            Protocol::Http1 => return wanted.saturating_sub(self.idle.len() + self.opening),
            Protocol::Http2 | Protocol::Unknown => {
                usize::from(self.shared.is_some()) + self.idle.len() + self.opening
            }
        };
        usize::from(wanted > 0 && ready == 0)
    }

    /// Takes the checkouts for which no connection is being opened any more.
    fn without_backing(
        &mut self,
    ) -> VecDeque<oneshot::Sender<Result<ReadyConnection, ConnectError>>> {
        self.waiting.retain(|waiting| !waiting.is_closed());
        let backed = match self.protocol {
            Protocol::Http1 => self.opening.min(self.waiting.len()),
            // One connection serves all.
            _ if self.opening > 0 => self.waiting.len(),
            _ => 0,
        };
        let failed = self.waiting.len() - backed;
        self.waiting.drain(..failed).collect()
    }

    /// Discards idle connections that the upstream has closed.
    fn discard_closed(&mut self) {
        self.idle.retain(|idle| !idle.sender.sender.is_closed());
        if self.shared.as_ref().is_some_and(|(sender, _)| sender.is_closed()) {
            self.shared = None;
        }
    }
}

impl Drop for ExpectedRequest {
    fn drop(&mut self) {
        self.0.lock().expected -= 1;
    }
}
