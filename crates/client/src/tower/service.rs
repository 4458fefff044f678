//! [`RateLimit`]: the service that a layer creates.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName};
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use sluicegate_core::query::shortened;
use sluicegate_service::grpc;
use tower_service::Service;

use super::body::{BodyEnd, LimitedBody};
use super::layer::LayerOptions;
use super::meter::CostMeter;
use super::refusal;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::error::Error;
use crate::request::Request as LimitRequest;

/// A service that asks a limiter before each request.
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    options: Arc<LayerOptions>,
}

impl<S> RateLimit<S> {
    pub(super) const fn new(inner: S, options: Arc<LayerOptions>) -> Self {
        Self { inner, options }
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: Body<Data = Bytes>,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone is not ready; the service that was polled is.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let options = self.options.clone();
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            if options.skip.as_ref().is_some_and(|skip| skip(&head)) {
                let response = inner.call(Request::from_parts(head, body)).await?;
                return Ok(response.map(LimitedBody::unlimited));
            }
            let grpc = grpc::content_type(&head.headers);
            let admission = match decide(&options, &head).await {
                Ok(Decision::Allowed(admission)) => admission,
                Ok(Decision::Denied(denial)) => {
                    let mut response = refusal::denied(&denial, grpc);
                    write_headers(denial.headers(), response.headers_mut());
                    return Ok(response.map(LimitedBody::refusal));
                }
                Err(error) => return Ok(refusal::failed(&error, grpc).map(LimitedBody::refusal)),
            };
            let meter = options.reserves.then(CostMeter::default);
            if let Some(meter) = &meter {
                head.extensions.insert(meter.clone());
            }
            // If the service fails, or this future is dropped, the admission is released.
            let (mut head, body) = inner.call(Request::from_parts(head, body)).await?.into_parts();
            write_headers(admission.headers(), &mut head.headers);
            let of_head = options.settle.as_ref().and_then(|settle| settle(&head));
            let end = BodyEnd::new(admission, meter, of_head);
            Ok(Response::from_parts(head, LimitedBody::limited(body, end)))
        })
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Asks the limiter.
async fn decide(options: &LayerOptions, head: &Parts) -> Result<Decision, Error> {
    let mut request = LimitRequest::new();
    for (dimension, key) in &options.keys {
        if let Some(value) = key.value(head).filter(|value| !value.is_empty()) {
            // Clients choose paths and header fields, and a long one is no reason to refuse them.
            request = request.with(*dimension, shortened(value));
        }
    }
    let cost = options.cost.as_ref().map_or_else(Cost::new, |cost| cost(head));
    request = if options.reserves { request.reserve(cost) } else { request.cost(cost) };
    if let Some(hold) = options.hold {
        request = request.hold(hold);
    }
    options.limiter.acquire(request).await
}

fn write_headers(fields: &[(&'static str, String)], headers: &mut HeaderMap) {
    for (name, value) in fields {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}
