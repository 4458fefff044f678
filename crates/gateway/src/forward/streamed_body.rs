//! [`StreamedBody`]: a response body on its way to the caller. The request ends when this body ends
//! or is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use crate::refusal::Refusal;
use crate::settle::RequestEnd;

/// An error: the upstream stopped sending in the middle of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream sent nothing for {0:?}")]
pub(crate) struct IdleTimeout(Duration);

pin_project! {
    /// A body with an idle timeout, and the end of its request, which lives as long as the body.
    pub(crate) struct StreamedBody<B> {
        #[pin]
        body: B,
        idle_max: Duration,
        // Created at the first wait: most bodies arrive together with their head.
        #[pin]
        idle: Option<Sleep>,
        end: RequestEnd,
    }
}

impl<B> StreamedBody<B> {
    /// Wraps a body. `end` is dropped with it: at its end, or when the caller disconnects.
    pub(crate) fn new(body: B, idle_max: Duration, end: RequestEnd) -> Self {
        Self { body, idle_max, idle: None, end }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> Body for StreamedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        if let Poll::Ready(frame) = this.body.poll_frame(cx) {
            this.idle.set(None);
            let frame = frame.map(|frame| frame.map_err(Into::into));
            if let Some(Err(error)) = &frame {
                this.end.broke_off(&Refusal::Broken, format!("response body: {error}"));
            }
            return Poll::Ready(frame);
        }
        if this.idle.is_none() {
            this.idle.set(Some(sleep(*this.idle_max)));
        }
        let idle = this.idle.as_mut().as_pin_mut().expect("it was made above");
        std::task::ready!(idle.poll(cx));
        let error = IdleTimeout(*this.idle_max);
        this.end.broke_off(&Refusal::Timeout, format!("response body: {error}"));
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
