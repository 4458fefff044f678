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
use sluicegate_service::headers::{RATE_LIMIT, RATE_LIMIT_POLICY, REMAINING};
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
                if options.reserves {
                    // Handlers extract it in every case. There is nothing that it could settle.
                    head.extensions.insert(CostMeter::default());
                }
                let response = inner.call(Request::from_parts(head, body)).await?;
                return Ok(response.map(LimitedBody::unlimited));
            }
            let grpc = grpc::content_type(&head.headers);
            let admission = match decide(&options, &head).await {
                Ok(Decision::Allowed(admission)) => admission,
                Ok(Decision::Denied(denial)) => {
                    let mut response = refusal::denied(&denial, grpc);
                    write_headers(denial.headers(), response.headers_mut());
                    response.extensions_mut().insert(Written::Denial);
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
            match head.extensions.get::<Written>().copied() {
                None => write_headers(admission.headers(), &mut head.headers),
                Some(inner) => merge_headers(admission.headers(), &mut head.headers, inner),
            }
            head.extensions.get_or_insert(Written::Admission);
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

/// Marks a response whose header fields a layer has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Admission,
    Denial,
}

/// Adds the fields of an outer layer to those of an inner one. `RateLimit` and `RateLimit-Policy` then
/// list the limits of both. The other fields are those of a denial, or of the layer with the least
/// left.
fn merge_headers(fields: &[(&'static str, String)], headers: &mut HeaderMap, inner: Written) {
    let left = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
    let ours = fields.iter().find(|(name, _)| *name == REMAINING).map(|(_, value)| left(value));
    let theirs = headers.get(REMAINING).and_then(|value| value.to_str().ok()).map(left);
    let is_ours = inner == Written::Admission
        && ours.is_some_and(|ours| theirs.is_none_or(|theirs| ours < theirs));
    for (name, value) in fields {
        let is_list = [RATE_LIMIT, RATE_LIMIT_POLICY].contains(name);
        let joined = match headers.get(*name).and_then(|value| value.to_str().ok()) {
            Some(inner) if is_list && inner != value => format!("{value}, {inner}"),
            _ if !is_list && !is_ours => continue,
            _ => value.clone(),
        };
        if let Ok(value) = HeaderValue::try_from(joined) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

fn write_headers(fields: &[(&'static str, String)], headers: &mut HeaderMap) {
    for (name, value) in fields {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}
