//! [`LimitedBody`]: the body of a response, which ends the admission of its request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::meter::CostMeter;
use crate::admission::Admission;
use crate::cost::Cost;

pin_project! {
    /// The body of a response. When it ends or is dropped, the admission of its request is settled
    /// or released.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        inner: Option<B>,
        refusal: Option<Bytes>,
        end: Option<BodyEnd>,
    }
}

impl<B> LimitedBody<B> {
    /// Creates the body of a request that is not limited.
    pub(super) const fn unlimited(inner: B) -> Self {
        Self { inner: Some(inner), refusal: None, end: None }
    }

    /// Creates the body of a refusal.
    pub(super) fn refusal(text: Bytes) -> Self {
        Self { inner: None, refusal: Some(text).filter(|text| !text.is_empty()), end: None }
    }
}

impl<B: Body> LimitedBody<B> {
    /// Creates the body of an admitted request.
    pub(super) fn limited(inner: B, end: BodyEnd) -> Self {
        // A server does not poll a body without content.
        let end = Some(end).filter(|_| !inner.is_end_stream());
        Self { inner: Some(inner), refusal: None, end }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(this.refusal.take().map(|text| Ok(Frame::data(text))));
        };
        let frame = ready!(inner.poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            *this.end = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            // While the admission is open, the end has to be polled for.
            Some(inner) => self.end.is_none() && inner.is_end_stream(),
            None => self.refusal.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.inner, &self.refusal) {
            (Some(inner), _) => inner.size_hint(),
            (None, refusal) => {
                SizeHint::with_exact(refusal.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

/// The end of a response: settles or releases the admission when it is dropped.
#[derive(Debug)]
pub(super) struct BodyEnd {
    admission: Option<Admission>,
    meter: Option<CostMeter>,
    /// Cost from the head of the response.
    of_head: Option<Cost>,
}

impl BodyEnd {
    pub(super) const fn new(
        admission: Admission,
        meter: Option<CostMeter>,
        of_head: Option<Cost>,
    ) -> Self {
        Self { admission: Some(admission), meter, of_head }
    }
}

impl Drop for BodyEnd {
    fn drop(&mut self) {
        let of_handler = self.meter.as_ref().and_then(CostMeter::get);
        if let Some(admission) = self.admission.take() {
            admission.finish(of_handler.or(self.of_head));
        }
    }
}
