//! [`App`]: the application as one connection calls it. Request bodies get their timeout, and
//! response bodies report their activity.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::http::{Request, Response};
use axum::routing::future::RouteFuture;
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tower_service::Service as _;

use super::Peer;
use super::activity::{Activity, RequestActivity};
use super::body::{TimedBody, TrackedBody};
use super::framing::InspectionResult;

pub(super) struct App {
    pub(super) router: Router,
    pub(super) body_timeout: Option<Duration>,
    pub(super) peer: Option<Peer>,
    pub(super) inspection: Option<Arc<InspectionResult>>,
    pub(super) activity: Arc<Activity>,
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
        // A router is always ready, so `poll_ready` is not needed; a clone is a pointer.
        ResponseFuture { inner: self.router.clone().call(request), work }
    }
}

pin_project! {
    /// The response to one request, until its body begins.
    pub(super) struct ResponseFuture {
        #[pin]
        inner: RouteFuture<Infallible>,
        work: Option<RequestActivity>,
    }
}

impl Future for ResponseFuture {
    type Output = Result<Response<TrackedBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.inner.poll(cx))?;
        let mut work = this.work.take().expect("a future is not polled after it is ready");
        work.wait_for_client();
        Poll::Ready(Ok(response.map(|body| TrackedBody::new(body, work))))
    }
}
