//! Converts our spans into those of the OpenTelemetry SDK.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind as OtelKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use sluicegate_core::Timestamp;
use sluicegate_service::trace::{AttributeValue, SpanKind, SpanRecord};

/// Converts a span.
pub(crate) fn span_data(span: SpanRecord, scope: &InstrumentationScope) -> SpanData {
    let SpanRecord { name, kind, context, parent, parent_is_remote, .. } = span;
    let state = context.state.as_deref().and_then(|text| TraceState::from_str(text).ok());
    let span_context = SpanContext::new(
        TraceId::from_bytes(context.trace.to_bytes()),
        SpanId::from_bytes(context.span.to_bytes()),
        TraceFlags::SAMPLED,
        false,
        state.unwrap_or_default(),
    );
    SpanData {
        span_context,
        parent_span_id: parent
            .map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.to_bytes())),
        parent_span_is_remote: parent_is_remote,
        span_kind: match kind {
            SpanKind::Internal => OtelKind::Internal,
            SpanKind::Server => OtelKind::Server,
            SpanKind::Client => OtelKind::Client,
            SpanKind::Producer => OtelKind::Producer,
            SpanKind::Consumer => OtelKind::Consumer,
        },
        name,
        start_time: system_time(span.started),
        end_time: system_time(span.ended),
        attributes: span.attributes.into_iter().map(attribute).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: span.error.map_or(Status::Unset, Status::error),
        instrumentation_scope: scope.clone(),
    }
}

fn attribute((name, value): (&'static str, AttributeValue)) -> KeyValue {
    let value: Value = match value {
        AttributeValue::Word(word) => word.into(),
        AttributeValue::Text(text) => text.into(),
        AttributeValue::Number(number) => number.into(),
        AttributeValue::Flag(flag) => flag.into(),
    };
    KeyValue::new(name, value)
}

fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(at.as_micros())
}
