//! Traces of jobs: the headers of a message carry the context of the span that sent it.

use sluicegate_queue::{Error, Message, Queue};
use sluicegate_service::trace::{SpanKind, TraceContext, TraceSpan, Tracer};

/// Processes a received message as a span, whose parent is the span that sent the message.
pub(crate) async fn receive(
    span: TraceSpan,
    work: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let outcome = span.run(work).await;
    if let Err(error) = &outcome {
        span.fail(|| error.to_string());
    }
    outcome
}

/// Starts the span of a received message.
pub(crate) fn received(
    tracer: &Tracer,
    name: &'static str,
    queue: &Queue,
    message: &Message,
) -> TraceSpan {
    let span = tracer.root(name, SpanKind::Consumer, || {
        TraceContext::of_fields(|name| message.headers.get(name).map(String::as_bytes).into_iter())
    });
    let span = about(span, queue);
    span.set("sluicegate.job", || message.meta.job.to_string());
    span.set("sluicegate.attempt", || message.meta.attempt + 1);
    span
}

/// Starts the span of messages that are sent to a queue.
pub(crate) fn sending(tracer: &Tracer, queue: &Queue) -> TraceSpan {
    about(tracer.child("send", SpanKind::Producer), queue)
}

/// Makes the receiver of a message continue the trace of a span.
pub(crate) fn stamp(message: &mut Message, span: &TraceSpan) {
    message.headers.extend(span.fields().map(|(name, value)| (name.to_owned(), value)));
}

fn about(span: TraceSpan, queue: &Queue) -> TraceSpan {
    span.set("messaging.system", || queue.capabilities().broker);
    span.set("messaging.destination.name", || queue.name().to_owned());
    span.about(queue.name())
}
