//! Reads `server`, `log`, `metrics` and `booking`: the options of one process, and of bookings.

use sluicegate_core::Span;
use sluicegate_core::ruleset::Settings;

use super::item::{Fields, Item};
use super::scalar;
use crate::config::{
    DecisionSampling, LogFormat, LogLevel, LogOptions, MetricsOptions, ServerOptions,
};
use crate::report::Report;

/// Reads the section `server`.
pub(super) fn server(item: Item<'_>, report: &mut Report) -> ServerOptions {
    let default = ServerOptions::default();
    let known =
        ["connections_max", "header_timeout", "body_limit", "shutdown_grace", "drain_timeout"];
    let Some(fields) = Fields::open(item, &known, report) else { return default };
    let connections =
        |item: &Item<'_>, report: &mut Report| scalar::count(item, report, 1..=1_000_000);
    let timeout = |item: &Item<'_>, report: &mut Report| {
        let remedy = "write at least 1ms";
        scalar::span_from(item, report, Span::from_millis(1), remedy)
    };
    ServerOptions {
        connections_max: fields.read(
            "connections_max",
            default.connections_max,
            report,
            connections,
        ),
        header_timeout: fields.read("header_timeout", default.header_timeout, report, timeout),
        body_limit: fields.read("body_limit", default.body_limit, report, scalar::size),
        shutdown_grace: fields.read("shutdown_grace", default.shutdown_grace, report, scalar::span),
        drain_timeout: fields.read_some("drain_timeout", report, scalar::span),
    }
}

/// Reads the section `log`.
pub(super) fn log(item: Item<'_>, report: &mut Report) -> LogOptions {
    let default = LogOptions::default();
    let Some(fields) = Fields::open(item, &["level", "format", "decisions"], report) else {
        return default;
    };
    let levels = [
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
    let formats = [("auto", LogFormat::Auto), ("json", LogFormat::Json), ("text", LogFormat::Text)];
    LogOptions {
        level: fields.read("level", default.level, report, |i, r| scalar::word(i, r, &levels)),
        format: fields.read("format", default.format, report, |i, r| scalar::word(i, r, &formats)),
        decisions: fields.read("decisions", default.decisions, report, decisions),
    }
}

fn decisions(item: &Item<'_>, report: &mut Report) -> Option<DecisionSampling> {
    let fields = Fields::open(item.clone(), &["allowed", "denied"], report)?;
    let default = DecisionSampling::default();
    Some(DecisionSampling {
        allowed: fields.read("allowed", default.allowed, report, scalar::share),
        denied: fields.read("denied", default.denied, report, scalar::share),
    })
}

/// Reads the section `metrics`.
pub(super) fn metrics(item: Item<'_>, report: &mut Report) -> MetricsOptions {
    let default = MetricsOptions::default();
    let known = ["label_values_max", "statsd"];
    let Some(fields) = Fields::open(item, &known, report) else { return default };
    let values = |item: &Item<'_>, report: &mut Report| scalar::count(item, report, 1..=100_000);
    MetricsOptions {
        label_values_max: fields.read("label_values_max", default.label_values_max, report, values),
        statsd: fields.read_some("statsd", report, scalar::address),
    }
}

/// Reads the section `booking` into the settings.
pub(super) fn booking(item: Item<'_>, settings: &mut Settings, report: &mut Report) {
    let Some(fields) = Fields::open(item, &["slack", "horizon"], report) else { return };
    settings.slack = fields.read_some("slack", report, |item, report| {
        let remedy = "write at least 1ms";
        scalar::span_from(item, report, Span::from_millis(1), remedy)
    });
    settings.horizon = fields.read("horizon", settings.horizon, report, scalar::span);
}
