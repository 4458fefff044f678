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
use super::body::{Timed, Watched};
use super::framing::Findings;
use super::pulse::{Pulse, Work};

pub(super) struct App {
    pub(super) router: Router,
    pub(super) body_timeout: Option<Duration>,
    pub(super) peer: Option<Peer>,
    pub(super) findings: Option<Arc<Findings>>,
    pub(super) pulse: Arc<Pulse>,
}

impl hyper::service::Service<Request<Incoming>> for App {
    type Response = Response<Watched>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let work = Some(Work::start(&self.pulse));
        let mut request = request.map(|body| Timed::new(body, self.body_timeout));
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        if let Some(doubt) = self.findings.as_ref().and_then(|findings| findings.next()) {
            request.extensions_mut().insert(doubt);
        }
        // A router is always ready, so `poll_ready` is not needed; a clone is a pointer.
        Answer { inner: self.router.clone().call(request), work }
    }
}

pin_project! {
    /// The response to one request, until its body begins.
    pub(super) struct Answer {
        #[pin]
        inner: RouteFuture<Infallible>,
        work: Option<Work>,
    }
}

impl Future for Answer {
    type Output = Result<Response<Watched>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.inner.poll(cx))?;
        let mut work = this.work.take().expect("a future is not polled after it is ready");
        work.theirs();
        Poll::Ready(Ok(response.map(|body| Watched::new(body, work))))
    }
}
