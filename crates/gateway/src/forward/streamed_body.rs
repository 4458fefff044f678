//! [`StreamedBody`]: a response body on its way to the caller. Every byte passes through it, and
//! its end is the end of the request.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

/// An error: the upstream stopped sending in the middle of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream sent nothing for {0:?}")]
pub(crate) struct IdleTimeout(Duration);

pin_project! {
    /// A body with an idle timeout, and a guard that lives as long as the body.
    pub(crate) struct StreamedBody<B, G> {
        #[pin]
        body: B,
        idle_max: Duration,
        // Created at the first wait: most bodies arrive together with their head.
        #[pin]
        idle: Option<Sleep>,
        guard: G,
    }
}

impl<B, G> StreamedBody<B, G> {
    /// Wraps a body. `guard` is dropped with it: at its end, or when the caller disconnects.
    pub(crate) fn new(body: B, idle_max: Duration, guard: G) -> Self {
        Self { body, idle_max, idle: None, guard }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>, G> Body for StreamedBody<B, G> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        if let Poll::Ready(frame) = this.body.poll_frame(cx) {
            this.idle.set(None);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if this.idle.is_none() {
            this.idle.set(Some(sleep(*this.idle_max)));
        }
        let idle = this.idle.as_mut().as_pin_mut().expect("it was made above");
        std::task::ready!(idle.poll(cx));
        Poll::Ready(Some(Err(IdleTimeout(*this.idle_max).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
