//! The connection to a collector: OTLP over the HTTP client of gateways and handlers, or over gRPC.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
    WithTonicConfig as _,
};
use sluicegate_config::{TraceOptions, TraceProtocol};
use sluicegate_http::upstream::{CaError, ClientOptions, SecretError, Upstream, read_secret};
use tokio::time::timeout;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// Maximum size of a response; it says how many spans were rejected.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// The reason why traces can't be exported.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// A secret can't be read.
    #[error("headers.{0}: {1}")]
    Secret(String, SecretError),
    /// A secret is not the value of a header field.
    #[error("headers.{0}: not valid in a header field: write printable characters only")]
    Header(String),
    /// The certificate authorities can't be used.
    #[error("ca: {0}")]
    Ca(#[from] CaError),
    /// The file of the certificate authorities can't be read.
    #[error("ca: cannot read {}: {source}", path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The address can't be used for gRPC.
    #[error("endpoint: {0}")]
    Endpoint(#[from] tonic::transport::Error),
    /// The exporter refuses an environment variable of OpenTelemetry.
    #[error("{0}")]
    Exporter(#[from] ExporterBuildError),
}

/// Creates the exporter. It connects with the first export. Must be called in a runtime.
pub(crate) fn connect(options: &TraceOptions) -> Result<SpanExporter, CollectorError> {
    let wait_max = Duration::from(options.timeout);
    let headers = headers(options)?;
    let builder = SpanExporter::builder();
    match options.protocol {
        TraceProtocol::Http => {
            let upstream = Upstream::new(&ClientOptions {
                connect_timeout: wait_max,
                http2_only: false,
                ca: options.ca.clone(),
            })?;
            let text = |(name, value): (_, &HeaderValue)| {
                let value = value.to_str().unwrap_or_default().to_owned();
                (axum::http::HeaderName::to_string(name), value)
            };
            Ok(builder
                .with_http()
                .with_http_client(CollectorClient { upstream, wait_max })
                .with_headers(headers.iter().map(text).collect::<HashMap<_, _>>())
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(options.endpoint.to_string())
                .with_timeout(wait_max)
                .build()?)
        }
        TraceProtocol::Grpc => Ok(builder
            .with_tonic()
            .with_channel(channel(options, wait_max)?)
            .with_metadata(MetadataMap::from_headers(headers))
            .with_timeout(wait_max)
            .build()?),
    }
}

fn headers(options: &TraceOptions) -> Result<HeaderMap, CollectorError> {
    let mut headers = HeaderMap::new();
    for (name, source) in &options.headers {
        let secret =
            read_secret(source).map_err(|error| CollectorError::Secret(name.to_string(), error))?;
        let value = HeaderValue::try_from(secret).ok().filter(|value| value.to_str().is_ok());
        let mut value = value.ok_or_else(|| CollectorError::Header(name.to_string()))?;
        value.set_sensitive(true);
        headers.insert(name.clone(), value);
    }
    Ok(headers)
}

fn channel(options: &TraceOptions, wait_max: Duration) -> Result<Channel, CollectorError> {
    let endpoint = Endpoint::from_shared(options.endpoint.to_string())?;
    let endpoint = endpoint.connect_timeout(wait_max).timeout(wait_max).tcp_nodelay(true);
    if options.endpoint.scheme_str() != Some("https") {
        return Ok(endpoint.connect_lazy());
    }
    let tls = match &options.ca {
        None => ClientTlsConfig::new().with_native_roots(),
        Some(path) => {
            let pem = std::fs::read(path);
            let pem =
                pem.map_err(|source| CollectorError::CaFile { path: path.clone(), source })?;
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
        }
    };
    Ok(endpoint.tls_config(tls)?.connect_lazy())
}

/// The HTTP client of the exporter.
#[derive(Debug)]
struct CollectorClient {
    upstream: Upstream,
    wait_max: Duration,
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let exchange = async {
            let response = self.upstream.request(request.map(Body::from)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        timeout(self.wait_max, exchange).await?
    }
}
