//! A body that can be read while its request waits.
//!
//! A client that goes away is noticed only by reading from it, so what it sends is read while it
//! waits, as far as the memory that all who wait share allows. What is not read stays in the
//! client's hands.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::http::HeaderMap;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The memory that parked bodies share.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

/// Bytes are counted in units of this many.
const UNIT: usize = 1024;

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / UNIT)))
    }

    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        self.0.clone().try_acquire_many_owned(units).ok()
    }
}

/// A body, of which a part may have been read already.
pub(crate) struct Parked<B> {
    read: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    rest: Option<B>,
    length: u64,
    limit: u64,
    permits: Vec<OwnedSemaphorePermit>,
}

/// The body is longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is longer than {0} bytes")]
pub(crate) struct TooLong(pub(crate) u64);

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Parked<B> {
    /// A body that may be `limit` bytes long.
    pub(crate) fn new(body: B, limit: u64) -> Self {
        let rest = (!body.is_end_stream()).then_some(body);
        let (read, permits) = (VecDeque::new(), Vec::new());
        Self { read, trailers: None, rest, length: 0, limit, permits }
    }

    /// Reads all of it, as far as there is memory; where there is none, waits for ever.
    ///
    /// May be dropped at any time: what was read is kept.
    pub(crate) async fn fill(&mut self, budget: &Budget) -> Result<(), BoxError> {
        while self.rest.is_some() {
            // Before it is read: what is read has to be kept.
            let Some(permit) = budget.take(16 * UNIT) else { return std::future::pending().await };
            let Some(bytes) = self.next().await? else { return Ok(()) };
            match bytes.len().checked_sub(16 * UNIT).filter(|more| *more > 0) {
                None => self.permits.push(permit),
                Some(more) => {
                    self.permits.push(permit);
                    self.permits.extend(budget.take(more));
                }
            }
            self.read.push_back(bytes);
        }
        Ok(())
    }

    /// Reads its beginning: all of it, or at least `bytes`.
    pub(crate) async fn begin(&mut self, bytes: usize) -> Result<(), BoxError> {
        while self.read.iter().map(Bytes::len).sum::<usize>() < bytes {
            let Some(part) = self.next().await? else { return Ok(()) };
            self.read.push_back(part);
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        loop {
            let Some(rest) = &mut self.rest else { return Ok(None) };
            let Some(frame) = rest.frame().await else {
                self.rest = None;
                return Ok(None);
            };
            match self.take(frame.map_err(Into::into)?)? {
                Some(bytes) if !bytes.is_empty() => return Ok(Some(bytes)),
                _ => {}
            }
        }
    }

    /// Counts a frame; keeps trailers for the end.
    fn take(&mut self, frame: Frame<Bytes>) -> Result<Option<Bytes>, TooLong> {
        match frame.into_data() {
            Ok(bytes) => {
                self.length = self.length.saturating_add(bytes.len() as u64);
                if self.length > self.limit { Err(TooLong(self.limit)) } else { Ok(Some(bytes)) }
            }
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                Ok(None)
            }
        }
    }

    /// What was read so far, if it is in one piece.
    pub(crate) fn beginning(&self) -> Vec<u8> {
        self.read.iter().flat_map(|bytes| bytes.iter().copied()).collect()
    }

    /// The same body once more, if all of it was read.
    pub(crate) fn again(&self) -> Option<Self> {
        let (read, trailers) = (self.read.clone(), self.trailers.clone());
        let (length, limit) = (self.length, self.limit);
        self.rest.is_none().then_some(Self {
            read,
            trailers,
            rest: None,
            length,
            limit,
            permits: Vec::new(),
        })
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for Parked<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(bytes) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        // It is on its way, and what is sent is not ours any more.
        self.permits.clear();
        while let Some(rest) = &mut self.rest {
            match std::task::ready!(Pin::new(rest).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Some(bytes) = self.take(frame)? {
                        return Poll::Ready(Some(Ok(Frame::data(bytes))));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => self.rest = None,
            }
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let read: u64 = self.read.iter().map(|bytes| bytes.len() as u64).sum();
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint.set_lower(rest.lower().saturating_add(read));
        hint
    }
}
