//! [`Streamed`]: a response body on its way to the caller. Every byte passes through it, and its
//! end is the end of the request.

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
pub(crate) struct Silent(Duration);

pin_project! {
    /// A body with an idle timeout, and a guard that lives as long as the body.
    pub(crate) struct Streamed<B, G> {
        #[pin]
        body: B,
        patience: Duration,
        // Created at the first wait: most bodies arrive together with their head.
        #[pin]
        silence: Option<Sleep>,
        guard: G,
    }
}

impl<B, G> Streamed<B, G> {
    /// Wraps a body. `guard` is dropped with it: at its end, or when the caller disconnects.
    pub(crate) fn new(body: B, patience: Duration, guard: G) -> Self {
        Self { body, patience, silence: None, guard }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>, G> Body for Streamed<B, G> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        if let Poll::Ready(frame) = this.body.poll_frame(cx) {
            this.silence.set(None);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if this.silence.is_none() {
            this.silence.set(Some(sleep(*this.patience)));
        }
        let silence = this.silence.as_mut().as_pin_mut().expect("it was made above");
        std::task::ready!(silence.poll(cx));
        Poll::Ready(Some(Err(Silent(*this.patience).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
