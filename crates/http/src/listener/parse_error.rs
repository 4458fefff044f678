//! Adds bodies to the responses that hyper sends by itself.
//!
//! hyper answers a request that it can't parse without calling the application: 400, 414 or 431 with
//! an empty body. [`ExplainedErrors`] replaces that response on its way to the client by one with a
//! body.
//!
//! It recognises the response by its bytes, and because the application has sent none since the
//! last write. If the response is written together with an earlier one (pipelined requests), it
//! keeps its empty body.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;

/// The body of a response to a request that could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseErrorBody {
    /// Status of the response: 400, 414 or 431.
    pub status: u16,
    /// Media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: &'static str,
}

/// Maximum size of an error response of hyper.
const HYPER_BYTES_MAX: usize = 256;

/// A stream that adds bodies to the error responses of hyper.
pub(super) struct ExplainedErrors<S> {
    stream: S,
    bodies: &'static [ParseErrorBody],
    activity: Arc<Activity>,
    /// Response that replaces the one that hyper is writing.
    replacement: Option<Replacement>,
}

struct Replacement {
    bytes: Vec<u8>,
    written: usize,
    /// Length of the response that is replaced.
    length: usize,
}

impl<S> ExplainedErrors<S> {
    pub(super) fn new(
        stream: S,
        bodies: &'static [ParseErrorBody],
        activity: Arc<Activity>,
    ) -> Self {
        Self { stream, bodies, activity, replacement: None }
    }

    /// Prepares the replacement if `bytes` are a response of hyper.
    fn look_at(&mut self, bytes: &[u8]) {
        let is_candidate = bytes.len() < HYPER_BYTES_MAX && bytes.starts_with(b"HTTP/1.");
        if is_candidate && self.replacement.is_none() && !self.activity.has_responded() {
            self.replacement = replacement(bytes, self.bodies);
        }
    }
}

/// Returns the response that replaces `bytes`, if these are an error response of hyper.
fn replacement(bytes: &[u8], bodies: &[ParseErrorBody]) -> Option<Replacement> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, rest) = text.strip_prefix("HTTP/1.")?.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?;
    let of_hyper = ["connection: close", "content-length: 0"];
    let mut found = [false; 2];
    for line in lines {
        match of_hyper.iter().position(|field| *field == line) {
            Some(index) => found[index] = true,
            None if line.starts_with("date: ") => {}
            None => return None,
        }
    }
    let body = bodies.iter().find(|body| body.status.to_string() == status)?;
    if !rest.is_empty() || found != [true; 2] {
        return None;
    }
    let ParseErrorBody { content_type, body, .. } = body;
    let length = format!("content-type: {content_type}\r\ncontent-length: {}", body.len());
    let text = text.replace(of_hyper[1], &length) + body;
    Some(Replacement { bytes: text.into_bytes(), written: 0, length: bytes.len() })
}

impl<S: AsyncWrite + Unpin> ExplainedErrors<S> {
    /// Writes the replacement, if there is one. Returns the length of the response that it replaces.
    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        let Some(Replacement { bytes, written, length }) = &mut self.replacement else {
            return Poll::Ready(Ok(None));
        };
        while *written < bytes.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[*written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => *written += more,
            }
        }
        let length = *length;
        self.replacement = None;
        Poll::Ready(Ok(Some(length)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ExplainedErrors<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ExplainedErrors<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.look_at(bytes);
        match ready!(self.poll_replacement(cx))? {
            Some(length) => Poll::Ready(Ok(length)),
            None => {
                let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
                self.activity.write();
                Poll::Ready(written)
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut parts = slices.iter().filter(|slice| !slice.is_empty());
        if let (Some(only), None) = (parts.next(), parts.next()) {
            self.look_at(only);
        }
        match ready!(self.poll_replacement(cx))? {
            Some(length) => Poll::Ready(Ok(length)),
            None => {
                let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices));
                self.activity.write();
                Poll::Ready(written)
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const BODIES: [ParseErrorBody; 1] =
        [ParseErrorBody { status: 400, content_type: "text/plain", body: "no" }];

    fn replaced(bytes: &str) -> Option<String> {
        let replacement = replacement(bytes.as_bytes(), &BODIES)?;
        assert_eq!(replacement.length, bytes.len());
        Some(String::from_utf8(replacement.bytes).unwrap())
    }

    #[test]
    fn only_responses_of_the_parser_get_a_body() {
        let head = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n";
        let date = "date: Tue, 17 Nov 2026 04:30:28 GMT\r\n\r\n";
        assert_eq!(
            replaced(&format!("{head}content-length: 0\r\n{date}")),
            Some(format!("{head}content-type: text/plain\r\ncontent-length: 2\r\n{date}no"))
        );
        for other in [
            format!("{head}content-length: 0\r\n{date}x"),
            format!("{head}{date}"),
            format!("{head}content-length: 1\r\n{date}"),
            format!("{head}x: y\r\ncontent-length: 0\r\n{date}"),
            format!("HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n{date}"),
            "HTTP/1.1 100 Continue\r\n\r\n".to_owned(),
            String::new(),
        ] {
            assert_eq!(replaced(&other), None, "{other}");
        }
    }
}
