//! The current span of a task: [`Traced`] sets it while its future runs, and [`current`] reads it.

use std::cell::RefCell;
use std::mem::swap;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::context::{TraceContext, TraceId};

thread_local! {
    /// Context of the future that this thread polls.
    static CURRENT: RefCell<Option<TraceContext>> = const { RefCell::new(None) };
}

/// Returns the context of the span that the running code belongs to.
pub fn current() -> Option<TraceContext> {
    CURRENT.with_borrow(Clone::clone)
}

/// Returns the id of the trace that the running code belongs to.
pub fn current_trace() -> Option<TraceId> {
    CURRENT.with_borrow(|current| current.as_ref().map(|context| context.trace))
}

pin_project! {
    /// A future whose code belongs to a span; made by [`TraceSpan::run`](super::TraceSpan::run).
    #[must_use = "a future does nothing unless it is polled"]
    pub struct Traced<F> {
        // Exchanged with the current context during each poll.
        context: Option<TraceContext>,
        is_on: bool,
        #[pin]
        future: F,
    }
}

impl<F> Traced<F> {
    /// Wraps a future. Without a context, the future runs as if it were not wrapped.
    pub(super) fn new(context: Option<TraceContext>, future: F) -> Self {
        Self { is_on: context.is_some(), context, future }
    }
}

impl<F: Future> Future for Traced<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if !*this.is_on {
            return this.future.poll(cx);
        }
        let _entered = Entered::new(this.context);
        this.future.poll(cx)
    }
}

/// Guard that makes a context the current one, and restores the previous one when it is dropped,
/// also by a panic.
struct Entered<'c>(&'c mut Option<TraceContext>);

impl<'c> Entered<'c> {
    fn new(context: &'c mut Option<TraceContext>) -> Self {
        CURRENT.with_borrow_mut(|current| swap(current, context));
        Self(context)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| swap(current, self.0));
    }
}
