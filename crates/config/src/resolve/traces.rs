//! Reads `traces`: the collector of traces.

use http::{HeaderName, Uri};
use sluicegate_core::Span;

use super::item::{Fields, Item};
use super::scalar;
use super::upstream::{header_name, secret, url};
use crate::config::{SampleRate, SecretSource, TraceOptions, TraceProtocol, UpstreamUrl};
use crate::raw::Value;
use crate::report::Report;

const KNOWN: [&str; 7] =
    ["endpoint", "protocol", "sample_ratio", "headers", "service_name", "timeout", "ca"];
/// Path of traces at a collector that is given without one.
const PATH: &str = "/v1/traces";
/// Header fields that the exporter sets itself.
const OURS: [&str; 8] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "te",
    "upgrade",
    "user-agent",
];

/// Reads the section `traces`. Traces are off if the variable of the endpoint is empty.
pub(super) fn traces(item: Item<'_>, report: &mut Report) -> Option<TraceOptions> {
    let fields = Fields::open(item.clone(), &KNOWN, report)?;
    let protocols = [("http", TraceProtocol::Http), ("grpc", TraceProtocol::Grpc)];
    let protocol =
        fields.read("protocol", TraceProtocol::Http, report, |i, r| scalar::word(i, r, &protocols));
    let tenth: SampleRate = "0.1".parse().expect("a share");
    let timeout = |item: &Item<'_>, report: &mut Report| {
        scalar::span_from(item, report, Span::from_millis(1), "write at least 1ms")
    };
    let sample_ratio = fields.read("sample_ratio", tenth, report, scalar::share);
    let headers = fields.read("headers", Vec::new(), report, headers);
    let service_name = "sluicegate".to_owned();
    let service_name = fields.read("service_name", service_name, report, scalar::text);
    let timeout = fields.read("timeout", Span::from_secs(5), report, timeout);
    let ca = fields.read_some("ca", report, scalar::path);
    let endpoint = if is_off(&item) {
        None
    } else {
        let remedy = "write the URL of the collector, such as http://127.0.0.1:4318";
        fields.require("endpoint", remedy, report)
    };
    let endpoint = endpoint.and_then(|item| endpoint_of(&item, protocol, report))?;
    if ca.is_some()
        && endpoint.scheme_str() == Some("http")
        && let Some(item) = fields.get("ca")
    {
        item.fail(
            report,
            "the collector is not asked for a certificate",
            "write https:// in endpoint, or remove ca",
        );
    }
    Some(TraceOptions { endpoint, protocol, sample_ratio, headers, service_name, timeout, ca })
}

/// Returns true if the endpoint is a variable that is empty, such as `${COLLECTOR:-}`.
fn is_off(item: &Item<'_>) -> bool {
    let Value::Map(entries) = &item.node.value else { return false };
    let endpoint = entries.iter().find(|(key, _)| key.text == "endpoint");
    endpoint.is_some_and(|(_, node)| match &node.value {
        Value::Scalar(scalar) => scalar.is_omitted(),
        _ => false,
    })
}

fn endpoint_of(item: &Item<'_>, protocol: TraceProtocol, report: &mut Report) -> Option<Uri> {
    if item.scalar(report, "write a URL, such as http://127.0.0.1:4318")?.text().contains('@') {
        item.fail(report, "contains a user or a password", "move them to headers");
        return None;
    }
    let UpstreamUrl { uri, .. } = url(item, report)?;
    let has_path = uri.path() != "/";
    match protocol {
        TraceProtocol::Grpc if has_path => {
            let remedy = "write only the host and the port, such as http://127.0.0.1:4317";
            item.fail(report, "an address for gRPC has no path", remedy);
            None
        }
        TraceProtocol::Http if !has_path => {
            let mut parts = uri.into_parts();
            parts.path_and_query = Some(http::uri::PathAndQuery::from_static(PATH));
            Uri::from_parts(parts).ok()
        }
        _ => Some(uri),
    }
}

fn headers(item: &Item<'_>, report: &mut Report) -> Option<Vec<(HeaderName, SecretSource)>> {
    let form = "write a map from header fields to values";
    let mut found = Vec::new();
    for (key, item) in item.entries(report, form)? {
        // An empty variable leaves the field out.
        if matches!(&item.node.value, Value::Scalar(scalar) if scalar.is_omitted()) {
            continue;
        }
        let Some(value) = secret(&item, report) else { continue };
        let Some(name) = header_name(&key.text) else {
            item.fail(report, "not a valid header field name", "write a name such as x-api-key");
            continue;
        };
        let text = name.as_str();
        if OURS.contains(&text) || text.starts_with("grpc-") || text.ends_with("-bin") {
            item.fail(report, "this header field is set by the exporter", "remove it");
            continue;
        }
        found.push((name, value));
    }
    Some(found)
}
