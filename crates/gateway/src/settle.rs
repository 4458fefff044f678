//! The last step, settle: refunds requests that do not count and learns limits from responses.

use std::sync::Arc;

use axum::http::response::Parts;
use hyper::body::Incoming;
use sluicegate_service::Service;

use crate::forward::{BufferedBody, Upload};
use crate::log::LogLine;
use crate::pass::Pass;
use crate::refusal::Refusal;
use crate::route::Route;

/// Refunds a request that does not count, and learns the limits that the upstream reports.
///
/// A charge by response content would go here: the body passes through
/// [`StreamedBody`](crate::forward::streamed_body::StreamedBody) chunk by chunk, and ends in
/// [`RequestEnd`].
pub(crate) async fn settle(
    route: &Route,
    head: &Parts,
    body: &mut BufferedBody<Incoming>,
    pass: Pass,
) -> Option<Pass> {
    // Boxed because it is rare: otherwise the future of every request would be as large as this
    // step.
    if route.has_limit_info(head) {
        Box::pin(route.learn(head, body)).await;
    }
    if route.options.count_if_ok && !head.status.is_success() {
        Box::pin(pass.give_back()).await;
        return None;
    }
    Some(pass)
}

/// The end of a request, after the last byte of its response or the disconnect of its caller.
/// Dropping it releases leases and writes the log line.
pub(crate) struct RequestEnd {
    pub(crate) line: LogLine,
    pub(crate) pass: Option<Pass>,
    /// Request body, which may still be on its way.
    pub(crate) upload: Upload,
    pub(crate) service: Arc<Service>,
}

impl RequestEnd {
    /// Records that the response broke off. The caller already has its status; the code of
    /// `refusal` is logged and counted, unless the caller itself broke the exchange.
    pub(crate) fn broke_off(&mut self, refusal: &Refusal, cause: String) {
        let refusal = self.upload.fault().unwrap_or(refusal);
        self.line.code = Some(refusal.code().1);
        self.line.cause = Some(cause);
        if let Some(route) = &self.line.route {
            route.failed(refusal);
        }
    }
}

impl Drop for RequestEnd {
    fn drop(&mut self) {
        drop(self.pass.take());
        self.line.write(self.service.now());
    }
}
