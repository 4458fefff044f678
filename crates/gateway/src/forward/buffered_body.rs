//! [`BufferedBody`]: a request body that can be read before its request is sent.
//!
//! A small body is read completely before the request asks for its turn, so that a slow client
//! delays neither others nor itself after the turn.
//!
//! A disconnect of the client is only noticed by reading from it. So the body is read while the
//! request waits, up to a memory budget that all waiting requests share. The rest is not read until
//! the request is forwarded.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::http::HeaderMap;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Memory budget that all parked bodies share.
#[derive(Clone, Debug)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

/// Number of bytes per permit.
const UNIT: usize = 1024;
/// Maximum size of a body that is copied for each paced request.
const SMALL: usize = 16 * UNIT;

impl BodyBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / UNIT)))
    }

    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        self.0.clone().try_acquire_many_owned(units).ok()
    }
}

/// A body that may have been read in part.
pub(crate) struct BufferedBody<B> {
    read: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    rest: Option<B>,
    length: u64,
    limit: u64,
    permits: Vec<OwnedSemaphorePermit>,
}

/// An error: the body exceeds its size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body exceeds the limit of {0} bytes")]
pub(crate) struct BodyTooLarge(pub(crate) u64);

/// An error: the client stopped sending in the middle of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client sent nothing for {0:?}")]
pub(crate) struct BodyStalled(Duration);

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> BufferedBody<B> {
    /// Wraps a body of at most `limit` bytes.
    pub(crate) fn new(body: B, limit: u64) -> Self {
        let rest = (!body.is_end_stream()).then_some(body);
        let (read, permits) = (VecDeque::new(), Vec::new());
        Self { read, trailers: None, rest, length: 0, limit, permits }
    }

    /// Reads the whole body if the budget allows; without budget, never returns.
    ///
    /// Cancel-safe: bytes read so far are kept.
    pub(crate) async fn fill(&mut self, budget: &BodyBudget) -> Result<(), BoxError> {
        while self.rest.is_some() {
            // Acquired before reading, because every byte that is read has to be kept.
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

    /// Reads a body of at most `max` bytes completely. A body that is longer, or that does not fit
    /// into the budget, is left to be streamed. Fails if the client sends nothing for `idle_max`.
    pub(crate) async fn read_if_small(
        &mut self,
        max: usize,
        idle_max: Duration,
        budget: &BodyBudget,
    ) -> Result<(), BoxError> {
        let Some(rest) = &self.rest else { return Ok(()) };
        let hint = rest.size_hint();
        if max == 0 || hint.lower() > max as u64 {
            return Ok(());
        }
        let most = hint.upper().and_then(|upper| usize::try_from(upper).ok()).unwrap_or(max);
        let Some(permit) = budget.take(most.min(max)) else { return Ok(()) };
        self.permits.push(permit);
        while self.rest.is_some() && self.length <= max as u64 {
            let next = timeout(idle_max, self.next()).await;
            match next.map_err(|_| BodyStalled(idle_max))?? {
                None => return Ok(()),
                Some(bytes) => self.read.push_back(bytes),
            }
        }
        Ok(())
    }

    /// Reads the beginning of the body: at least `bytes`, or all of it.
    pub(crate) async fn read_beginning(&mut self, bytes: usize) -> Result<(), BoxError> {
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
    fn take(&mut self, frame: Frame<Bytes>) -> Result<Option<Bytes>, BodyTooLarge> {
        match frame.into_data() {
            Ok(bytes) => {
                self.length = self.length.saturating_add(bytes.len() as u64);
                if self.length > self.limit {
                    Err(BodyTooLarge(self.limit))
                } else {
                    Ok(Some(bytes))
                }
            }
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                Ok(None)
            }
        }
    }

    /// Returns all bytes read so far.
    pub(crate) fn beginning(&self) -> Vec<u8> {
        self.read.iter().flat_map(|bytes| bytes.iter().copied()).collect()
    }

    /// Returns true if a copy of the body may be kept outside of the memory budget until the response
    /// begins.
    pub(crate) fn is_small(&self) -> bool {
        self.rest.is_none() && self.read.iter().map(Bytes::len).sum::<usize>() <= SMALL
    }

    /// Returns a copy of the body for a retry, if all of it was read.
    pub(crate) fn copy(&self) -> Option<Self> {
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

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for BufferedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(bytes) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        // The buffered bytes are sent, so their memory is free again.
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
