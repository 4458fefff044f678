//! [`Tracer`]: creates spans, decides which traces are recorded, and passes spans to a sink.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::time::{Clock, Timestamp};

use super::context::{SpanId, TraceContext, TraceId};
use super::current::current;
use super::span::{SpanKind, SpanRecord, TraceSpan};

/// A receiver of spans that have ended. It must neither block nor fail.
pub trait SpanSink: Send + Sync {
    /// Takes a span.
    fn record(&self, span: SpanRecord);
}

/// Creates spans. Clones share everything. The default is off.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<TracerState>>);

pub(super) struct TracerState {
    /// A trace is sampled if its id, as a 32-bit number, is below this value.
    sampled_below: u64,
    clock: Box<dyn Clock>,
    sink: Box<dyn SpanSink>,
    ids: IdSource,
}

/// The span of an event that observers receive.
#[derive(Clone, Debug)]
pub struct EventTrace {
    /// Ids of the span.
    pub context: TraceContext,
    /// Id of the span that it is a part of.
    pub parent: SpanId,
}

impl Tracer {
    /// Creates a tracer that samples this many traces per million. A trace that another process
    /// started is recorded if that process records it.
    pub fn new(
        sampled_per_million: u32,
        clock: impl Clock + 'static,
        sink: impl SpanSink + 'static,
    ) -> Self {
        let sampled_below = (u64::from(sampled_per_million) << 32) / 1_000_000;
        let (clock, sink) = (Box::new(clock), Box::new(sink));
        Self(Some(Arc::new(TracerState { sampled_below, clock, sink, ids: IdSource::new() })))
    }

    /// Returns false if the tracer does nothing.
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts the span of a request or message from outside. `remote` reads the trace context that
    /// it carries; without one a new trace begins.
    pub fn root(
        &self,
        name: &'static str,
        kind: SpanKind,
        remote: impl FnOnce() -> Option<TraceContext>,
    ) -> TraceSpan {
        let Some(tracer) = &self.0 else { return TraceSpan::default() };
        match remote() {
            Some(remote) => tracer.open(name, kind, &remote, true),
            None => {
                let context = tracer.new_trace();
                TraceSpan::open(tracer, tracer.record(name, kind, context, None))
            }
        }
    }

    /// Starts a span that is a part of the current one. Empty if there is no current span.
    pub fn child(&self, name: &'static str, kind: SpanKind) -> TraceSpan {
        let Some(tracer) = &self.0 else { return TraceSpan::default() };
        match current() {
            Some(parent) => tracer.open(name, kind, &parent, false),
            None => TraceSpan::default(),
        }
    }

    /// Returns the ids of a new child of the current span, for an event that is recorded after it
    /// has ended.
    pub(crate) fn event(&self) -> Option<EventTrace> {
        let tracer = self.0.as_ref()?;
        let parent = current()?;
        let context = tracer.below(&parent);
        Some(EventTrace { context, parent: parent.span })
    }

    /// Returns the ids of a new span below another one.
    pub(super) fn below(&self, parent: &TraceContext) -> Option<TraceContext> {
        self.0.as_ref().map(|tracer| tracer.below(parent))
    }

    /// Records a span that is over.
    pub(super) fn record(&self, span: SpanRecord) {
        if let Some(tracer) = &self.0 {
            tracer.sink.record(span);
        }
    }
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_on() { "Tracer(on)" } else { "Tracer(off)" })
    }
}

impl TracerState {
    fn open(
        self: &Arc<Self>,
        name: &'static str,
        kind: SpanKind,
        parent: &TraceContext,
        parent_is_remote: bool,
    ) -> TraceSpan {
        let record = self.record(name, kind, self.below(parent), Some(parent.span));
        TraceSpan::open(self, SpanRecord { parent_is_remote, ..record })
    }

    fn record(
        &self,
        name: &'static str,
        kind: SpanKind,
        context: TraceContext,
        parent: Option<SpanId>,
    ) -> SpanRecord {
        let started = self.clock.now();
        SpanRecord {
            name: name.into(),
            kind,
            context,
            parent,
            parent_is_remote: false,
            started,
            ended: started,
            attributes: Vec::new(),
            error: None,
        }
    }

    fn new_trace(&self) -> TraceContext {
        let low = self.ids.next();
        let trace = TraceId(u128::from(self.ids.next()) << 64 | u128::from(low));
        let sampled = low >> 32 < self.sampled_below;
        TraceContext { trace, span: SpanId(self.ids.next()), sampled, state: None }
    }

    fn below(&self, parent: &TraceContext) -> TraceContext {
        TraceContext { span: SpanId(self.ids.next()), ..parent.clone() }
    }

    pub(super) fn end(&self, mut record: SpanRecord) {
        record.ended = record.started.max(self.clock.now());
        self.sink.record(record);
    }
}

/// A source of random numbers for ids (SplitMix64, seeded by the standard library).
struct IdSource(AtomicU64);

impl IdSource {
    fn new() -> Self {
        Self(AtomicU64::new(RandomState::new().build_hasher().finish()))
    }

    /// Returns a number that is not zero.
    fn next(&self) -> u64 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let state = self.0.fetch_add(GOLDEN, Ordering::Relaxed);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31).max(1)
    }
}

/// Returns the record of a span that lasted from `started` for the latency of an event.
pub(super) fn finished(
    name: &'static str,
    kind: SpanKind,
    (context, parent): (TraceContext, SpanId),
    (started, ended): (Timestamp, Timestamp),
) -> SpanRecord {
    SpanRecord {
        name: name.into(),
        kind,
        context,
        parent: Some(parent),
        parent_is_remote: false,
        started,
        ended,
        attributes: Vec::new(),
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Spans(Arc<Mutex<Vec<SpanRecord>>>);

    impl SpanSink for Spans {
        fn record(&self, span: SpanRecord) {
            self.0.lock().unwrap().push(span);
        }
    }

    fn tracer(sampled_per_million: u32) -> (Tracer, Spans) {
        let spans = Spans::default();
        let now = Timestamp::from_secs(7);
        (Tracer::new(sampled_per_million, now, spans.clone()), spans)
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
        }
    }

    #[test]
    fn spans_inside_a_future_are_children_of_its_span() {
        let (tracer, spans) = tracer(1_000_000);
        let root = tracer.root("request", SpanKind::Server, || None);
        let child = block_on(root.run(async {
            let child = tracer.child("wait", SpanKind::Internal).about("here");
            child.run(async { tracer.child("deep", SpanKind::Internal) }).await;
            child.set("n", || 3_u32);
            child.context().cloned()
        }));
        assert_eq!(current(), None, "the context ends with the future");
        assert!(tracer.child("late", SpanKind::Internal).context().is_none());
        let root_id = root.context().unwrap().span;
        drop(root.clone());
        drop(root);
        let spans = spans.0.lock().unwrap();
        let tree: Vec<_> = spans.iter().map(|span| (&*span.name, span.parent)).collect();
        let child = child.unwrap().span;
        assert_eq!(tree, [("deep", Some(child)), ("wait here", Some(root_id)), ("request", None)]);
        assert!(spans.iter().all(|span| span.context.trace == spans[0].context.trace));
    }

    #[test]
    fn a_trace_that_is_not_sampled_has_ids_but_no_spans() {
        let (tracer, spans) = tracer(0);
        let root = tracer.root("request", SpanKind::Server, || None);
        let inside = block_on(root.run(async { current_trace_text() }));
        assert_eq!(inside, root.context().map(|context| context.trace.to_string()));
        assert!(root.fields().next().unwrap().1.ends_with("-00"));
        drop(root);
        assert!(spans.0.lock().unwrap().is_empty());
    }

    fn current_trace_text() -> Option<String> {
        super::super::current_trace().map(|trace| trace.to_string())
    }

    #[test]
    fn the_process_that_begins_a_trace_decides_if_it_is_recorded() {
        for (ours, theirs, recorded) in [(0, "01", 1), (1_000_000, "00", 0)] {
            let (tracer, spans) = tracer(ours);
            let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{theirs}");
            let remote = || {
                TraceContext::of_fields(|name| {
                    (name == "traceparent").then_some(parent.as_bytes()).into_iter()
                })
            };
            drop(tracer.root("request", SpanKind::Server, remote));
            let spans = spans.0.lock().unwrap();
            assert_eq!(spans.len(), recorded);
            assert!(spans.iter().all(|span| span.parent_is_remote));
        }
    }

    #[test]
    fn the_sampled_share_is_the_configured_one() {
        let (tracer, _) = tracer(250_000);
        let sampled = |_: &u32| {
            tracer.root("r", SpanKind::Server, || None).context().is_some_and(|c| c.sampled)
        };
        let count = (0..20_000).filter(sampled).count();
        assert!((4_700..5_300).contains(&count), "{count} of 20000");
    }

    #[test]
    fn a_tracer_that_is_off_creates_empty_spans() {
        let tracer = Tracer::default();
        let span = tracer.root("request", SpanKind::Server, || unreachable!("it is not read"));
        span.set("n", || -> u32 { unreachable!("it is not recorded") });
        assert!(span.context().is_none() && span.fields().next().is_none());
        assert_eq!(block_on(span.run(async { current() })), None);
    }
}
