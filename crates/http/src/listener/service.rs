//! [`App`]: the application as one connection calls it. Request bodies get their timeout, and
//! response bodies report their activity. While the listener drains, responses close their
//! connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, Response, StatusCode, Version, header};
use axum::routing::future::RouteFuture;
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tower_service::Service as _;

use super::Peer;
use super::activity::{Activity, RequestActivity};
use super::body::{TimedBody, TrackedBody};
use super::framing::InspectionResult;
use super::in_flight::{InFlight, InFlightRequest};

pub(super) struct App {
    pub(super) router: Router,
    pub(super) body_timeout: Option<Duration>,
    pub(super) peer: Option<Peer>,
    pub(super) inspection: Option<Arc<InspectionResult>>,
    pub(super) activity: Arc<Activity>,
    pub(super) in_flight: Arc<InFlight>,
}

impl hyper::service::Service<Request<Incoming>> for App {
    type Response = Response<TrackedBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        let work = Some(RequestActivity::start(&self.activity));
        let mut request = request.map(|body| TimedBody::new(body, self.body_timeout));
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        if let Some(marker) = self.inspection.as_ref().and_then(|inspection| inspection.next()) {
            request.extensions_mut().insert(marker);
        }
        let counted = self.in_flight.start();
        let http1 = request.version() < Version::HTTP_2;
        let in_flight = http1.then(|| self.in_flight.clone());
        // A router is always ready, so `poll_ready` is not needed; a clone is a pointer.
        ResponseFuture { inner: self.router.clone().call(request), work, counted, in_flight }
    }
}

pin_project! {
    /// The response to one request, until its body begins.
    pub(super) struct ResponseFuture {
        #[pin]
        inner: RouteFuture<Infallible>,
        work: Option<RequestActivity>,
        counted: Option<InFlightRequest>,
        // Of HTTP/1 only: HTTP/2 announces the end of a connection in a frame of its own.
        in_flight: Option<Arc<InFlight>>,
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<TrackedBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.inner.poll(cx))?;
        let closes = this.in_flight.as_ref().is_some_and(|in_flight| in_flight.is_draining());
        if closes && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        let mut work = this.work.take().expect("a future is not polled after it is ready");
        work.respond();
        work.wait_for_client();
        let counted = this.counted.take();
        Poll::Ready(Ok(response.map(|body| TrackedBody::new(body, work, counted))))
    }
}
