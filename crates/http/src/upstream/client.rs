//! [`Upstream`]: a client for one upstream, with pooled connections, HTTP/1.1 or HTTP/2, and TLS
//! for https addresses.

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

/// Maximum idle time of a pooled connection; shorter than what servers usually allow.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// An HTTP client with a connection pool.
#[derive(Clone, Debug)]
pub struct Upstream {
    client: Client<HttpsConnector<HttpConnector>, Body>,
}

/// Options of a client. A reload keeps the connections if they are unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Maximum time to establish a connection.
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

/// A request without a response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The response took too long.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// The connection failed: nothing was sent.
    #[error("{}", with_causes(.0))]
    Unreachable(#[source] legacy::Error),
    /// The connection broke, or the response is not HTTP.
    #[error("{}", with_causes(.0))]
    Broken(#[source] legacy::Error),
}

impl Upstream {
    /// Creates a client.
    pub fn new(options: &ClientOptions) -> Result<Self, CaError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = match &options.ca {
            None => config.with_native_roots().map_err(CaError::System)?,
            Some(path) => config.with_root_certificates(authorities(path)?),
        };
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(options.connect_timeout));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(config.with_no_client_auth())
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .http2_only(options.http2_only)
            .build(https);
        Ok(Self { client })
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

    /// Sends a request and waits without a timeout. Dropping the future cancels the request.
    pub async fn request(&self, request: Request<Body>) -> Result<Response<Incoming>, SendError> {
        let answered = self.client.request(request).await;
        answered.map_err(|error| match error.is_connect() {
            true => SendError::Unreachable(error),
            false => SendError::Broken(error),
        })
    }
}

/// Formats an error with all its causes.
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
    if roots.is_empty() {
        return Err(CaError::Empty { path: path.to_owned() });
    }
    Ok(roots)
}

/// Returns true if a client can connect to the address: it is http or https and has a host.
pub fn is_address(uri: &Uri) -> bool {
    matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
}
