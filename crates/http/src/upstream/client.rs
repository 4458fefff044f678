//! The way to one upstream: pooled connections, HTTP/1.1 or 2, encrypted if its address says so.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

/// How long a connection that nobody uses is kept; shorter than what servers usually keep theirs.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// A way to an upstream.
#[derive(Clone, Debug)]
pub struct Upstream {
    client: Client<HttpsConnector<HttpConnector>, Body>,
}

/// What a client is made of; where it stays the same, so do its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways {
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// HTTP/2 without asking, also in the clear.
    pub http2_only: bool,
    /// The authorities that its certificate is checked against, in PEM; without them, those of the
    /// system.
    pub ca: Option<PathBuf>,
}

/// A file of authorities that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// It can't be read as PEM.
    #[error("can't read the authorities in {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::pki_types::pem::Error,
    },
    /// A certificate in it, or TLS as a whole, can't be used.
    #[error("TLS can't be used: {0}")]
    Tls(#[from] rustls::Error),
    /// The system has no authorities.
    #[error("the system has no certificate authorities: {0}: install them, or name a file in `ca`")]
    System(io::Error),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// It took too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// There is no connection: nothing was sent.
    #[error("{}", with_causes(.0))]
    Unreachable(#[source] legacy::Error),
    /// The connection broke, or what came is not HTTP.
    #[error("{}", with_causes(.0))]
    Broken(#[source] legacy::Error),
}

impl Upstream {
    /// A way to whatever addresses its requests have.
    pub fn new(ways: &Ways) -> Result<Self, CaError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = match &ways.ca {
            None => config.with_native_roots().map_err(CaError::System)?,
            Some(path) => config.with_root_certificates(authorities(path)?),
        };
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(ways.connect_timeout));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(config.with_no_client_auth())
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .http2_only(ways.http2_only)
            .build(https);
        Ok(Self { client })
    }

    /// Sends a request and waits for the head of its answer, at most for `patience`.
    pub async fn send(
        &self,
        request: Request<Body>,
        patience: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        let answered = timeout(patience, self.request(request)).await;
        answered.unwrap_or(Err(SendError::Timeout(patience)))
    }

    /// The same, for as long as the caller waits: dropping the future ends the request.
    pub async fn request(&self, request: Request<Body>) -> Result<Response<Incoming>, SendError> {
        let answered = self.client.request(request).await;
        answered.map_err(|error| match error.is_connect() {
            true => SendError::Unreachable(error),
            false => SendError::Broken(error),
        })
    }
}

/// What went wrong, down to its cause.
fn with_causes(error: &legacy::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn authorities(path: &Path) -> Result<RootCertStore, CaError> {
    let unreadable = |source| CaError::Unreadable { path: path.to_owned(), source };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
        roots.add(certificate.map_err(unreadable)?)?;
    }
    Ok(roots)
}

/// Whether an address is one that a client can go to.
pub fn is_address(uri: &Uri) -> bool {
    matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
}
