//! [`TraceOptions`]: the collector that traces are exported to, and the share of requests that is
//! traced.

use std::path::PathBuf;

use http::{HeaderName, Uri};
use sluicegate_core::Span;

use super::{SampleRate, SecretSource};

/// Options of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Address of the collector. Over HTTP it includes the path.
    pub endpoint: Uri,
    /// Protocol of the collector. Default: HTTP.
    pub protocol: TraceProtocol,
    /// Share of new traces that is recorded. Default: 0.1. A trace that a client began is recorded
    /// if the client records it.
    pub sample_ratio: SampleRate,
    /// Header fields of requests to the collector, such as an API key. Default: none.
    pub headers: Vec<(HeaderName, SecretSource)>,
    /// Name of this service in its spans. Default: sluicegate.
    pub service_name: String,
    /// Maximum time of an export. Default: 5s.
    pub timeout: Span,
    /// PEM file with the CAs of the collector's certificate. Default: those of the system.
    pub ca: Option<PathBuf>,
}

/// A protocol of OTLP, the OpenTelemetry protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceProtocol {
    /// Protobuf over HTTP.
    Http,
    /// gRPC.
    Grpc,
}
