//! [`Upstream`]: a client with pooled connections, HTTP/1.1 or HTTP/2, and TLS for https
//! addresses.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::uri::{Authority, Scheme};
use axum::http::{Request, Response, Uri};
use hyper::body::Incoming;
use tokio::time::timeout;

use super::connection::ReadyConnection;
use super::connector::{ConnectError, Connector};
use super::latest_start::LatestStart;
use super::pool::{ExpectedRequest, Pool};

/// Maximum number of times that a request is sent again because nothing of it was sent.
const UNSENT_RETRIES_MAX: usize = 2;

/// An HTTP client with a pool of connections for each address.
#[derive(Clone)]
pub struct Upstream {
    connector: Arc<Connector>,
    /// One for each address that is used: those of the configuration.
    pools: Arc<Mutex<Pools>>,
}

type Pools = HashMap<(Scheme, Authority), Arc<Pool>>;

/// The connections to one address of an upstream.
#[derive(Clone)]
pub struct ConnectionPool(Arc<Pool>);

/// Options of a client. A reload keeps the connections if they are unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Maximum time to establish a connection, with TLS and HTTP handshakes.
    pub connect_timeout: Duration,
    /// Uses HTTP/2 without negotiation, also without TLS.
    pub http2_only: bool,
    /// PEM file with the CAs that the upstream's certificate is checked against; if absent, those
    /// of the system.
    pub ca: Option<PathBuf>,
}

/// CA certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The file cannot be read as PEM.
    #[error("cannot read the CA certificates in {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: rustls::pki_types::pem::Error,
    },
    /// The file contains no certificate, so that every upstream would be refused.
    #[error("the CA file {} contains no certificate: write certificates in PEM into it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A certificate in the file, or TLS as a whole, cannot be used.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The system has no CA certificates.
    #[error("the system has no CA certificates: {0}: install them, or set `ca` to a file")]
    System(io::Error),
}

/// Error of a request that got no valid response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The response took too long.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// The connection failed: nothing was sent.
    #[error(transparent)]
    Unreachable(#[from] ConnectError),
    /// Nothing was sent: the latest start of the request was over.
    #[error("too late to send the request")]
    Late,
    /// The connection broke, or the response is not HTTP.
    #[error("{}", with_causes(.0))]
    Broken(#[source] hyper::Error),
}

impl Upstream {
    /// Creates a client.
    pub fn new(options: &ClientOptions) -> Result<Self, CaError> {
        Ok(Self { connector: Arc::new(Connector::new(options)?), pools: Arc::default() })
    }

    /// Returns the connections to the address of a URI; its path does not matter. `None` if the URI
    /// has no scheme or no host.
    pub fn pool(&self, uri: &Uri) -> Option<ConnectionPool> {
        let (scheme, authority) = (uri.scheme()?, uri.authority()?);
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (scheme.clone(), authority.clone());
        if let Some(pool) = pools.get(&key) {
            return Some(ConnectionPool(pool.clone()));
        }
        let pool = Pool::new(&self.connector, scheme, authority)?;
        pools.insert(key, pool.clone());
        Some(ConnectionPool(pool))
    }

    /// Sends a request and waits at most `wait_max` for the head of the response.
    pub async fn send(
        &self,
        request: Request<Body>,
        wait_max: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        let answered = timeout(wait_max, self.request(request)).await;
        answered.unwrap_or(Err(SendError::Timeout(wait_max)))
    }

    /// Sends a request and waits without a timeout. Dropping the future cancels the request. If the
    /// request has a [`LatestStart`] as an extension, it is not sent later.
    pub async fn request(
        &self,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, SendError> {
        let pool = self.pool(request.uri()).ok_or_else(|| {
            ConnectError::Failed("the URL needs a scheme and a host: write http://host".into())
        })?;
        let latest = request.extensions().get::<LatestStart>().cloned();
        let mut connection = pool.checkout(Duration::MAX).await?;
        let mut unsent_retries = UNSENT_RETRIES_MAX;
        loop {
            if let Some(latest) = &latest {
                if latest.is_over() {
                    return Err(SendError::Late);
                }
                request.extensions_mut().insert(latest.clone());
            }
            let failed = match connection.send(request).await {
                Ok(response) => return Ok(response),
                Err(failed) if failed.late => return Err(SendError::Late),
                Err(failed) => failed,
            };
            let text = failed.to_string();
            request = match failed.unsent {
                None => return Err(SendError::Broken(failed.error)),
                Some(_) if unsent_retries == 0 => {
                    return Err(ConnectError::Failed(text.into()).into());
                }
                Some(unsent) => *unsent,
            };
            unsent_retries -= 1;
            connection = pool.checkout_new(Duration::MAX).await?;
        }
    }
}

impl ConnectionPool {
    /// Returns a connection that a request can be sent on at once: an open one from the pool, or a
    /// new one. Waits at most `wait_max` for it.
    pub async fn checkout(&self, wait_max: Duration) -> Result<ReadyConnection, ConnectError> {
        self.0.checkout(wait_max).await
    }

    /// Does the same after a connection from the pool turned out to be closed: idle connections are
    /// not used.
    pub async fn checkout_new(&self, wait_max: Duration) -> Result<ReadyConnection, ConnectError> {
        self.0.discard_idle();
        self.0.checkout(wait_max).await
    }

    /// Announces a request that will need a connection soon, until the returned value is dropped.
    /// Connections for such requests, at most `ready_max` at a time, are opened in the background.
    pub fn expect(&self, ready_max: usize) -> ExpectedRequest {
        self.0.expect(ready_max)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upstream")
    }
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionPool({})", self.0.uri)
    }
}

/// Formats an error with all its causes.
pub(super) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Returns true if a client can connect to the address: it is http or https and has a host.
pub fn is_address(uri: &Uri) -> bool {
    matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
}
