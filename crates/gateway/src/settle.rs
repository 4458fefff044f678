//! The last step: what an answer means for the limits.

use std::sync::Arc;

use axum::http::response::Parts;
use hyper::body::Incoming;
use sluicegate_service::Service;

use crate::forward::Parked;
use crate::log::Line;
use crate::pass::Pass;
use crate::route::Route;

/// Gives back what is not to count, and learns what the upstream says of its limits.
///
/// Between forwarding and this is the place to read what an answer cost: the body goes through
/// [`Streamed`](crate::forward::streamed::Streamed) part by part, and ends in [`Ending`].
pub(crate) async fn settle(
    route: &Route,
    head: &Parts,
    body: &mut Parked<Incoming>,
    pass: Pass,
) -> Option<Pass> {
    // Boxed, as all that is rare: every request has room for the largest step of its road.
    if route.hears(head) {
        Box::pin(route.learn(head, body)).await;
    }
    if route.options.count_if_ok && !head.status.is_success() {
        Box::pin(pass.give_back()).await;
        return None;
    }
    Some(pass)
}

/// The end of a request, when the last byte of its answer is out or its caller is gone: leases are
/// given back, and the line is written.
pub(crate) struct Ending {
    pub(crate) line: Line,
    pub(crate) pass: Option<Pass>,
    pub(crate) service: Arc<Service>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        drop(self.pass.take());
        self.line.write(self.service.now());
    }
}
