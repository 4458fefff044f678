//! Traces: [`Tracer`] creates the spans of requests and messages, and [`TraceContext`] is the part
//! of a span that travels to other processes (W3C Trace Context).
//!
//! ```text
//! traceparent ─→ Tracer::root ─→ TraceSpan ─ run(future) ─→ current() ─→ Tracer::child, log lines
//!                                    └─ dropped ─→ SpanSink (the exporter)
//! ```
//!
//! A tracer that is off creates empty spans: nothing is allocated, measured or looked up. A trace
//! that is not sampled has ids, which logs and other processes see, but its spans are not recorded.

mod context;
mod current;
mod observer;
mod span;
mod tracer;

pub use context::{SpanId, TraceContext, TraceId};
pub use current::{Traced, current, current_trace};
pub(crate) use observer::SpanObserver;
pub use span::{AttributeValue, SpanKind, SpanRecord, TraceSpan};
pub use tracer::{EventTrace, SpanSink, Tracer};
