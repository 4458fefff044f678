//! [`WithTraceId`]: a format of log lines that adds `trace_id` to lines that belong to a trace.

use std::fmt;

use sluicegate_service::trace::current_trace;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Name of the field. The lines of gateways already have it.
const FIELD: &str = "trace_id";

/// A format of log lines, with the id of the trace that a line belongs to.
pub(crate) struct WithTraceId<F> {
    format: F,
    is_json: bool,
}

impl<F> WithTraceId<F> {
    /// Wraps a format that writes one JSON object per line.
    pub(crate) const fn json(format: F) -> Self {
        Self { format, is_json: true }
    }

    /// Wraps a format that writes lines of text.
    pub(crate) const fn text(format: F) -> Self {
        Self { format, is_json: false }
    }
}

impl<S, N, F> FormatEvent<S, N> for WithTraceId<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let trace = current_trace().filter(|_| event.metadata().fields().field(FIELD).is_none());
        let Some(trace) = trace else {
            return self.format.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        let line = line.trim_end_matches('\n');
        match line.strip_suffix('}').filter(|_| self.is_json) {
            Some(object) => writeln!(writer, "{object},\"{FIELD}\":\"{trace}\"}}"),
            None => writeln!(writer, "{line} {FIELD}={trace}"),
        }
    }
}
