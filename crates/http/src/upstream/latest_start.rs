//! [`LatestStart`]: the end of the interval in which a request may be sent, checked when its first
//! byte is written.
//!
//! Time passes between the decision to send a request and the moment at which the connection writes
//! it: the process may be suspended in between, or get no processor time. So the connection checks
//! once more, right before it writes. A request that is too late is not sent.
//!
//! On HTTP/2 all requests share one connection, so they are checked when they are handed to it.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};

/// The latest start of a request. An extension of the request carries it to the connection.
#[derive(Clone)]
pub struct LatestStart(Arc<dyn Fn() -> bool + Send + Sync>);

impl LatestStart {
    /// Creates the latest start of a request. `is_over` returns true if it is too late to send.
    pub fn new(is_over: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_over))
    }

    /// Returns true if it is too late to send the request.
    pub fn is_over(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for LatestStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LatestStart")
    }
}

/// The check of one connection, shared by its sender and its stream.
#[derive(Clone, Default)]
pub(super) struct StartCheck(Arc<Mutex<CheckState>>);

#[derive(Default)]
enum CheckState {
    /// Everything may be written.
    #[default]
    Open,
    /// The first byte of the next request may be written until then.
    Until(LatestStart),
    /// A request was too late, and nothing of it was written.
    Refused,
}

impl StartCheck {
    /// Sets the latest start of the next request on this connection.
    pub(super) fn set(&self, latest: LatestStart) {
        *self.lock() = CheckState::Until(latest);
    }

    /// Returns true if a request was too late. The connection is closed then.
    pub(super) fn has_refused(&self) -> bool {
        matches!(*self.lock(), CheckState::Refused)
    }

    /// Checks a write, before it is made.
    fn check(&self) -> io::Result<()> {
        let mut state = self.lock();
        if let CheckState::Until(latest) = &*state {
            *state = if latest.is_over() { CheckState::Refused } else { CheckState::Open };
        }
        match &*state {
            CheckState::Refused => Err(io::Error::other("too late to send the request")),
            CheckState::Open | CheckState::Until(_) => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CheckState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that checks the latest start of each request.
pub(super) struct CheckedStream<S> {
    stream: S,
    check: StartCheck,
}

impl<S> CheckedStream<S> {
    pub(super) fn new(stream: S, check: StartCheck) -> Self {
        Self { stream, check }
    }
}

impl<S: Read + Unpin> Read for CheckedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: Write + Unpin> Write for CheckedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check.check()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
