//! Exports spans to a collector over OTLP, the OpenTelemetry protocol.
//!
//! ```text
//! Tracer ─ try_send → bounded queue ─ batches → OTLP over HTTP or gRPC → collector
//!             └─ full: dropped and counted         └─ failed: dropped and counted
//! ```
//!
//! A request never waits for the collector.

mod collector;
mod export;
mod span_data;

pub use collector::CollectorError;
pub use export::{ExportStats, TraceExporter};
