//! [`TraceSpan`]: a span in progress, which is recorded when its last clone is dropped.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use sluicegate_core::time::Timestamp;

use super::context::{SpanId, TraceContext};
use super::current::Traced;
use super::tracer::TracerState;

/// The role of a span in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside the process.
    Internal,
    /// A request that the process answers.
    Server,
    /// A request that the process sends.
    Client,
    /// A message that the process sends.
    Producer,
    /// A message that the process receives.
    Consumer,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text that is known at compile time.
    Word(&'static str),
    /// Any other text.
    Text(String),
    /// A number.
    Number(i64),
    /// True or false.
    Flag(bool),
}

impl From<&'static str> for AttributeValue {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u16> for AttributeValue {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub struct SpanRecord {
    /// Name, with few different values.
    pub name: Cow<'static, str>,
    /// Role.
    pub kind: SpanKind,
    /// Ids.
    pub context: TraceContext,
    /// Id of the parent; `None` for the first span of a trace.
    pub parent: Option<SpanId>,
    /// True if the parent is a span of another process.
    pub parent_is_remote: bool,
    /// Start.
    pub started: Timestamp,
    /// End.
    pub ended: Timestamp,
    /// Attributes.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Error message, if the work failed.
    pub error: Option<String>,
}

/// A span in progress. Clones are the same span; it ends when the last of them is dropped.
///
/// It is empty if the tracer is off, or if there is no current span to be a child of. All methods
/// of an empty span do nothing.
#[derive(Clone, Default)]
pub struct TraceSpan(Option<Arc<OpenSpan>>);

pub(super) struct OpenSpan {
    tracer: Arc<TracerState>,
    context: TraceContext,
    /// `None` if the trace is not sampled.
    record: Option<Mutex<SpanRecord>>,
}

impl TraceSpan {
    pub(super) fn open(tracer: &Arc<TracerState>, record: SpanRecord) -> Self {
        let context = record.context.clone();
        let record = context.sampled.then(|| Mutex::new(record));
        Self(Some(Arc::new(OpenSpan { tracer: tracer.clone(), context, record })))
    }

    /// Returns the ids of the span.
    pub fn context(&self) -> Option<&TraceContext> {
        self.0.as_deref().map(|span| &span.context)
    }

    /// Returns the header fields that make the receiver of a request or message a child of this
    /// span.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.context().into_iter().flat_map(TraceContext::fields)
    }

    /// Adds the object of the work to the name, such as the name of a queue.
    #[must_use]
    pub fn about(self, object: &str) -> Self {
        self.change(|record| record.name = format!("{} {object}", record.name).into());
        self
    }

    /// Replaces the name. `name` is called only if the span is recorded.
    #[must_use]
    pub fn renamed(self, name: impl FnOnce() -> String) -> Self {
        self.change(|record| record.name = name().into());
        self
    }

    /// Sets an attribute. `value` is called only if the span is recorded.
    pub fn set<V: Into<AttributeValue>>(&self, name: &'static str, value: impl FnOnce() -> V) {
        self.change(|record| record.attributes.push((name, value().into())));
    }

    /// Marks the work as failed.
    pub fn fail(&self, message: impl FnOnce() -> String) {
        self.change(|record| record.error = Some(message()));
    }

    /// Runs a future inside the span: its child spans, log lines and decisions belong to the span.
    pub fn run<F: Future>(&self, future: F) -> Traced<F> {
        Traced::new(self.context().cloned(), future)
    }

    fn change(&self, change: impl FnOnce(&mut SpanRecord)) {
        if let Some(record) = self.0.as_deref().and_then(|span| span.record.as_ref()) {
            change(&mut record.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl std::fmt::Debug for TraceSpan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TraceSpan").field(&self.context()).finish()
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            let record = record.into_inner().unwrap_or_else(PoisonError::into_inner);
            self.tracer.end(record);
        }
    }
}
