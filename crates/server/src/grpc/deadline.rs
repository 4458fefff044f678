//! Applies the client's `grpc-timeout`: a call ends with DEADLINE_EXCEEDED when the client stops
//! waiting.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderMap, Request};
use axum::response::Response;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tower_layer::Layer;
use tower_service::Service;

/// The layer that ends every call at its client's deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeadlineLayer;

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;

    fn layer(&self, inner: S) -> DeadlineService<S> {
        DeadlineService { inner }
    }
}

#[derive(Clone, Debug)]
pub(super) struct DeadlineService<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for DeadlineService<S>
where
    S: Service<Request<B>, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Deadline<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let timeout = timeout(request.headers());
        Deadline { inner: self.inner.call(request), timeout, timer: None }
    }
}

pin_project! {
    /// A call with a deadline.
    pub(super) struct Deadline<F> {
        #[pin]
        inner: F,
        timeout: Option<Duration>,
        // Created at the first wait: most decisions are made at once.
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<F: Future<Output = Result<Response, E>>, E> Future for Deadline<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        if let Poll::Ready(answer) = this.inner.poll(cx) {
            return Poll::Ready(answer);
        }
        let Some(timeout) = *this.timeout else { return Poll::Pending };
        if this.timer.is_none() {
            this.timer.set(Some(sleep(timeout)));
        }
        ready!(this.timer.as_mut().as_pin_mut().expect("timer was set above").poll(cx));
        let late = Status::deadline_exceeded("no decision within the client's grpc-timeout");
        Poll::Ready(Ok(late.into_http()))
    }
}

/// Returns the client's timeout. A malformed header means no deadline: the decision matters more.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn timeouts_are_read_as_the_protocol_has_them() {
        for (text, expected) in [
            ("20m", Some(Duration::from_millis(20))),
            ("0n", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
            ("1S", Some(Duration::from_secs(1))),
            ("", None),
            ("m", None),
            ("5", None),
            ("-5m", None),
            ("123456789m", None),
            ("5 m", None),
            ("5x", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(text));
            assert_eq!(timeout(&headers), expected, "{text:?}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_when_its_client_stops_waiting() {
        let never = tower::service_fn(|_: Request<()>| {
            std::future::pending::<Result<Response, std::convert::Infallible>>()
        });
        let request = Request::builder().header("grpc-timeout", "20m").body(()).unwrap();
        let answer = DeadlineLayer.layer(never).call(request).await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "4");
    }
}
