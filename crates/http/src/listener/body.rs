//! Request and response bodies of a listener. A request body must arrive in time; a response body
//! reports the activity of its connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use super::activity::RequestActivity;
use super::in_flight::InFlightRequest;

/// The error in a request body that did not arrive in time.
///
/// A handler that reads the body finds it among the sources of the error and should answer 408. The
/// connection (HTTP/1) or stream (HTTP/2) is closed after any answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request body did not arrive within {0:?}: send it faster, or send less")]
pub struct BodyTimeout(
    /// The time limit.
    pub Duration,
);

pin_project! {
    /// A request body that must be complete within `timeout`.
    pub(super) struct TimedBody {
        body: Incoming,
        timeout: Option<Duration>,
        // Created at the first wait: most bodies arrive with their header.
        #[pin]
        deadline: Option<Sleep>,
    }
}

impl TimedBody {
    pub(super) fn new(body: Incoming, timeout: Option<Duration>) -> Self {
        Self { body, timeout, deadline: None }
    }
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        if let Poll::Ready(frame) = Pin::new(this.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        let Some(timeout) = *this.timeout else {
            return Poll::Pending;
        };
        if this.deadline.is_none() {
            this.deadline.set(Some(sleep(timeout)));
        }
        let deadline = this.deadline.as_mut().as_pin_mut().expect("deadline was set above");
        ready!(deadline.poll(cx));
        Poll::Ready(Some(Err(BodyTimeout(timeout).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response body that reports whether the server or the client makes the next step.
pub(super) struct TrackedBody {
    body: Body,
    work: RequestActivity,
    _in_flight: Option<InFlightRequest>,
}

impl TrackedBody {
    pub(super) fn new(
        body: Body,
        work: RequestActivity,
        in_flight: Option<InFlightRequest>,
    ) -> Self {
        Self { body, work, _in_flight: in_flight }
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        // hyper polls for the next frame only when the client has room for it.
        match polled {
            Poll::Pending => self.work.wait_for_server(),
            Poll::Ready(_) => self.work.wait_for_client(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
