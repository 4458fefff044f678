//! Combines small responses of one HTTP/2 connection into one write.
//!
//! Requests that arrive together are answered by separate tasks, and the first response wakes the
//! connection. Without this, the connection would write that one response: a system call that costs
//! more than the decision in it. Instead it lets the ready tasks run first and then writes all
//! their responses.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that delays its first write until the other ready tasks have run, if enabled.
pub(super) struct CombinedWrites<S> {
    stream: S,
    combine_writes: bool,
    /// True if the other tasks have run since the last flush.
    waited: bool,
}

impl<S> CombinedWrites<S> {
    pub(super) fn new(stream: S, combine_writes: bool) -> Self {
        Self { stream, combine_writes, waited: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CombinedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CombinedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.combine_writes && !std::mem::replace(&mut self.waited, true) {
            // A task that wakes itself is scheduled after the tasks that are ready.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        debug_assert!(
            !self.combine_writes,
            "is_write_vectored returns false while writes are combined"
        );
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    /// Returns false while writes are combined: without vectored writes, h2 copies frames of up to
    /// 1024 bytes into one buffer instead of 256. It writes longer frames separately.
    fn is_write_vectored(&self) -> bool {
        !self.combine_writes && self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.waited = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::AsyncWriteExt;
    use tokio::sync::mpsc;

    /// A writer that counts its writes.
    struct CountingWriter(Arc<AtomicUsize>);

    impl AsyncWrite for CountingWriter {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Counts the writes for the responses of 16 tasks that are ready together.
    async fn writes(combine_writes: bool) -> usize {
        let written = Arc::new(AtomicUsize::new(0));
        let mut stream = CombinedWrites::new(CountingWriter(written.clone()), combine_writes);
        let (answer, mut answers) = mpsc::unbounded_channel();
        for _ in 0..16 {
            let answer = answer.clone();
            tokio::spawn(async move { answer.send(b'a') });
        }
        drop(answer);
        // Behaves like a connection: takes all available responses whenever it can write.
        let mut buffer = Vec::new();
        while let Some(byte) = answers.recv().await {
            buffer.push(byte);
            std::future::poll_fn(|cx| {
                while let Ok(byte) = answers.try_recv() {
                    buffer.push(byte);
                }
                let length = ready!(Pin::new(&mut stream).poll_write(cx, &buffer))?;
                assert_eq!(length, buffer.len());
                Poll::Ready(io::Result::Ok(()))
            })
            .await
            .unwrap();
            stream.flush().await.unwrap();
            buffer.clear();
        }
        written.load(Ordering::Relaxed)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn answers_that_are_ready_together_are_written_together() {
        // The connection is a task like the others, and the first response wakes it.
        assert_eq!(tokio::spawn(writes(true)).await.unwrap(), 1);
        assert!(tokio::spawn(writes(false)).await.unwrap() > 1);
    }
}
