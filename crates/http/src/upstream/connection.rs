//! [`ReadyConnection`]: an open connection that one request is sent on.

use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::HOST;
use axum::http::{Request, Response, Uri, Version, uri};
use hyper::body::Incoming;

use super::client::with_causes;
use super::connector::{Http1Sender, Sender};
use super::latest_start::LatestStart;
use super::pool::Pool;

/// A connection that a request can be sent on at once. Dropped without a request, it goes back to
/// the pool.
pub struct ReadyConnection {
    /// `None` once a request was sent.
    sender: Option<Sender>,
    reused: bool,
    pool: Arc<Pool>,
}

/// A request that got no response on an open connection.
#[derive(Debug, thiserror::Error)]
#[error("{}", with_causes(.error))]
pub struct ExchangeError {
    /// The error of the connection.
    #[source]
    pub error: hyper::Error,
    /// The request, if nothing of it was sent.
    pub unsent: Option<Box<Request<Body>>>,
    /// True if the upstream had probably closed the connection before the request reached it: it
    /// was open before, and now it is closed. The request may have been sent, so only an idempotent
    /// one may be repeated.
    pub stale: bool,
    /// True if nothing was sent because the [`LatestStart`] of the request was over.
    pub late: bool,
}

impl ReadyConnection {
    pub(super) fn new(sender: Sender, reused: bool, pool: Arc<Pool>) -> Self {
        Self { sender: Some(sender), reused, pool }
    }

    /// Returns true if the connection was open before it was checked out. The upstream may be about
    /// to close it.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Returns true if the upstream has not closed the connection, as far as is known.
    pub fn is_open(&self) -> bool {
        self.sender.as_ref().is_some_and(Sender::is_ready)
    }

    /// Sends a request and waits for the head of the response. Dropping the future cancels the
    /// request.
    ///
    /// If the request has a [`LatestStart`] as an extension, HTTP/1.1 checks it right before the first
    /// byte is written.
    ///
    /// An HTTP/1.1 connection goes back to the pool at the end of the response body. If the body is
    /// dropped before, the connection is closed.
    pub async fn send(
        mut self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, ExchangeError> {
        let sender = self.sender.take().expect("a connection has a sender until it is used");
        let (answered, is_closed, late) = match sender {
            Sender::Http2(mut sender) => {
                let answered = sender.try_send_request(request).await;
                // An error of a single stream leaves the connection open.
                (answered, sender.is_closed(), false)
            }
            Sender::Http1(mut http1) => {
                if let Some(latest) = request.extensions_mut().remove::<LatestStart>() {
                    http1.check.set(latest);
                }
                request.headers_mut().entry(HOST).or_insert_with(|| self.pool.host.clone());
                let target = origin_form(request.uri());
                *request.uri_mut() = target;
                *request.version_mut() = Version::HTTP_11;
                let answered = http1.sender.try_send_request(request).await;
                let late = http1.check.has_refused();
                if answered.is_ok() {
                    put_back_when_ready(&self.pool, http1);
                }
                (answered, true, late)
            }
        };
        answered.map_err(|mut failed| {
            let unsent = failed.take_message().map(|mut request| {
                *request.uri_mut() = absolute_form(request.uri(), &self.pool.uri);
                Box::new(request)
            });
            let error = failed.into_error();
            let stale = self.reused && is_closed && !late && !error.is_parse() && !error.is_user();
            ExchangeError { error, unsent, stale, late }
        })
    }
}

impl Drop for ReadyConnection {
    fn drop(&mut self) {
        // An HTTP/2 connection is in the pool already.
        if let Some(Sender::Http1(http1)) = self.sender.take()
            && http1.sender.is_ready()
        {
            self.pool.put_back(http1, true);
        }
    }
}

impl fmt::Debug for ReadyConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadyConnection({})", self.pool.uri)
    }
}

/// Puts a connection back as soon as it is ready for another request, which is at the end of the
/// response body.
fn put_back_when_ready(pool: &Arc<Pool>, mut http1: Http1Sender) {
    if http1.sender.is_ready() {
        pool.put_back(http1, true);
        return;
    }
    let pool = pool.clone();
    tokio::spawn(async move {
        // Fails if the connection is closed, or used for another protocol after an upgrade.
        if http1.sender.ready().await.is_ok() {
            pool.put_back(http1, true);
        }
    });
}

/// Returns path and query, which is the request target of HTTP/1.1.
fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned();
    path.map(Uri::from).unwrap_or_default()
}

/// Returns the path and query of one URI at the address of another.
fn absolute_form(uri: &Uri, base: &Uri) -> Uri {
    let mut parts: uri::Parts = base.clone().into();
    if let Some(path) = uri.path_and_query() {
        parts.path_and_query = Some(path.clone());
    }
    Uri::from_parts(parts).expect("the parts of two valid URIs")
}
