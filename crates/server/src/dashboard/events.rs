//! `GET /v1/dashboard/events`: the data of each second, as server-sent events. A stream ends when its
//! request would no longer be permitted: after a logout, or when the session or the token is over.
//!
//! | event | data |
//! |---|---|
//! | `tick` | `second`, and `values`: the newest value of each series |
//! | `decisions` | with `?tail=true`: `decisions`, the new ones of the live tail; `skipped`, the number of others in the sample; `sampled`, the shares of admissions and denials in the sample |

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::recorder::Tick;
use crate::rest::Problem;

/// Maximum number of open streams.
const STREAMS_MAX: usize = 100;

/// The open streams of a listener.
#[derive(Clone, Debug)]
pub(super) struct EventStreams {
    slots: Arc<Semaphore>,
    shutdown: CancellationToken,
}

struct EventStream {
    ticks: watch::Receiver<Arc<Tick>>,
    tail: bool,
    shutdown: CancellationToken,
    /// Returns true while the request that opened the stream is permitted.
    permitted: Box<dyn Fn() -> bool + Send>,
    _slot: OwnedSemaphorePermit,
}

impl EventStreams {
    /// Creates streams that end at the shutdown.
    pub(super) fn new(shutdown: CancellationToken) -> Self {
        Self { slots: Arc::new(Semaphore::new(STREAMS_MAX)), shutdown }
    }

    /// Opens a stream that ends when `permitted` returns false; it is asked every second.
    pub(super) fn open(
        &self,
        ticks: watch::Receiver<Arc<Tick>>,
        tail: bool,
        permitted: impl Fn() -> bool + Send + 'static,
    ) -> Result<Response, Problem> {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            let detail = "too many open dashboards: close some of them";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
        };
        let permitted = Box::new(permitted);
        let shutdown = self.shutdown.clone();
        let stream = EventStream { ticks, tail, shutdown, permitted, _slot: slot };
        let events = stream::unfold(stream, |mut stream| async move {
            let event = stream.next().await?;
            Some((Ok::<_, Infallible>(event), stream))
        });
        let mut response = Response::new(Body::from_stream(events));
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // Asks proxies such as NGINX to pass each event on at once.
        fields.insert("x-accel-buffering", HeaderValue::from_static("no"));
        Ok(response)
    }
}

impl EventStream {
    /// Waits for the next second; `None` at the shutdown, and when the stream is no longer permitted.
    async fn next(&mut self) -> Option<Bytes> {
        self.shutdown.run_until_cancelled(self.ticks.changed()).await?.ok()?;
        if !(self.permitted)() {
            return None;
        }
        let tick = self.ticks.borrow_and_update().clone();
        let Tick { second, values, decisions } = &*tick;
        let mut text =
            format!("event: tick\ndata: {{\"second\":{second},\"values\":{values}}}\n\n");
        if self.tail {
            text.push_str(&format!("event: decisions\ndata: {decisions}\n\n"));
        }
        Some(text.into())
    }
}
