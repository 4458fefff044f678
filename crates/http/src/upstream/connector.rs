//! [`Connector`]: opens connections to an upstream. A connection is open when TCP, TLS and the
//! HTTP handshake are done, so that a request can be sent on it at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Uri;
use hyper::client::conn::{http1, http2};
use hyper::rt::{Read, Write};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;
use tower_service::Service;
use tracing::debug;

use super::client::{CaError, ClientOptions, with_causes};
use super::latest_start::{CheckedStream, StartCheck};

/// Opens connections.
pub(super) struct Connector {
    https: HttpsConnector<HttpConnector>,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    http2_only: bool,
    timeout: Duration,
}

/// The sending half of an open connection.
pub(super) enum Sender {
    /// HTTP/1.1: one request at a time.
    Http1(Http1Sender),
    /// HTTP/2: any number of requests.
    Http2(http2::SendRequest<Body>),
}

/// The sending half of an HTTP/1.1 connection.
pub(super) struct Http1Sender {
    pub(super) sender: http1::SendRequest<Body>,
    /// Checks the latest start of each request right before it is written.
    pub(super) check: StartCheck,
}

/// The HTTP version that an upstream is known to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// TLS negotiates it, and no connection was made yet.
    Unknown,
    Http1,
    Http2,
}

/// No connection to the upstream: nothing was sent.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connection took longer than the connect timeout.
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    /// The caller's deadline passed before there was a connection.
    #[error("no connection within the {0:?} that the request had left")]
    Deadline(Duration),
    /// The connection failed.
    #[error("no connection: {0}")]
    Failed(Arc<str>),
}

impl Connector {
    pub(super) fn new(options: &ClientOptions) -> Result<Self, CaError> {
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
        // Shared by all addresses of a host, so that one dead address leaves time for the others.
        http.set_connect_timeout(Some(options.connect_timeout));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(config.with_no_client_auth())
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(http);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2.timer(TokioTimer::new());
        let (http1, http2_only) = (http1::Builder::new(), options.http2_only);
        Ok(Self { https, http1, http2, http2_only, timeout: options.connect_timeout })
    }

    /// Returns the protocol of an address, as far as it is known before the first connection.
    pub(super) fn protocol(&self, uri: &Uri) -> Protocol {
        match (self.http2_only, uri.scheme_str()) {
            (true, _) => Protocol::Http2,
            (false, Some("https")) => Protocol::Unknown,
            (false, _) => Protocol::Http1,
        }
    }

    /// Opens a connection and waits until a request can be sent on it.
    pub(super) async fn open(&self, uri: &Uri) -> Result<Sender, ConnectError> {
        let opened = timeout(self.timeout, self.handshakes(uri)).await;
        opened.unwrap_or(Err(ConnectError::Timeout(self.timeout)))
    }

    async fn handshakes(&self, uri: &Uri) -> Result<Sender, ConnectError> {
        let mut https = self.https.clone();
        std::future::poll_fn(|cx| https.poll_ready(cx)).await.map_err(|error| failed(&*error))?;
        let stream = https.call(uri.clone()).await.map_err(|error| failed(&*error))?;
        if self.http2_only || stream.connected().is_negotiated_h2() {
            self.http2(stream).await.map_err(|error| failed(&error))
        } else {
            self.http1(stream).await.map_err(|error| failed(&error))
        }
    }

    async fn http1<S>(&self, stream: S) -> hyper::Result<Sender>
    where
        S: Read + Write + Unpin + Send + 'static,
    {
        let check = StartCheck::default();
        let stream = CheckedStream::new(stream, check.clone());
        let (mut sender, connection) = self.http1.handshake(stream).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                debug!(%error, "upstream connection failed");
            }
        });
        sender.ready().await?;
        Ok(Sender::Http1(Http1Sender { sender, check }))
    }

    async fn http2<S>(&self, stream: S) -> hyper::Result<Sender>
    where
        S: Read + Write + Unpin + Send + 'static,
    {
        let (mut sender, connection) = self.http2.handshake(stream).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "upstream connection failed");
            }
        });
        sender.ready().await?;
        Ok(Sender::Http2(sender))
    }
}

impl Sender {
    /// Returns true if a request can be sent now. False if the upstream has closed the connection.
    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Http1(http1) => http1.sender.is_ready() && !http1.sender.is_closed(),
            Self::Http2(sender) => sender.is_ready(),
        }
    }
}

fn failed(error: &(dyn std::error::Error + 'static)) -> ConnectError {
    ConnectError::Failed(with_causes(error).into())
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
