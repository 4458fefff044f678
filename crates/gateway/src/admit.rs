//! Reserve and pace combined: a request gets a pass at once or after queueing, or it is rejected.

use std::pin::Pin;

use sluicegate_core::time::Span;

use crate::forward::{BodyBudget, BufferedBody};
use crate::gateway::Gateway;
use crate::log::LogLine;
use crate::pass::Pass;
use crate::refusal::Refusal;
use crate::reserve::{LimitCheck, ReserveOutcome};
use crate::route::Route;

impl Gateway {
    /// Returns a pass for a request: at once if the queue is empty, or after waiting.
    pub(crate) async fn admit<B>(
        &self,
        route: &Route,
        check: &LimitCheck<'_>,
        body: &mut BufferedBody<B>,
        line: &mut LogLine,
    ) -> Result<Pass, Refusal>
    where
        B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Unpin,
    {
        let waits = !route.options.wait.max.is_zero();
        let began = self.service.now();
        let reserved = if waits && route.lane.is_busy() {
            let common = Box::pin(check.check_common(&self.service)).await;
            common.map(|common| ReserveOutcome::Wait(common, Span::ZERO))
        } else {
            check.check_all(&self.service, waits, route.options.count_if_ok).await
        };
        line.decided = self.service.now().since(began);
        let mut owes_common = false;
        let (mut common, hint) = match reserved {
            Ok(ReserveOutcome::Go(pass)) => {
                route.lane.answered();
                return Ok(pass);
            }
            Ok(ReserveOutcome::Wait(common, hint)) => (common, hint),
            // A request that may wait also waits a moment for the store to come back.
            Err(Refusal::StoreUnavailable) if waits && !route.lane.is_out() => {
                owes_common = true;
                (None, Span::ZERO)
            }
            Err(refusal) => return Err(refusal),
        };
        let flow = route.lane.by();
        let flow = flow.and_then(|by| check.dimension(&by).map(str::to_owned)).unwrap_or_default();
        let timeout = self.time_left(route, line, route.options.wait.max);
        let wait = std::pin::pin!(route.lane.wait(&flow, hint, timeout));
        let waited = with_body(wait, body, &self.body_budget, route.options.body_limit).await?;
        line.waited = waited.took;
        route.metrics.waited(waited.took);
        if owes_common {
            common = Box::pin(check.check_common(&self.service)).await?;
        }
        Ok(match common {
            None => waited.pass,
            Some(common) => waited.pass.joined(common),
        })
    }

    /// Returns a new pass for a request that was delayed until its slot expired.
    pub(crate) async fn readmit(
        &self,
        route: &Route,
        mut late: Pass,
        line: &mut LogLine,
    ) -> Result<Pass, Refusal> {
        late.cancel_slot().await;
        let left = route.options.wait.max.saturating_sub(line.waited.into());
        let waited = route.lane.wait_again(self.time_left(route, line, left)).await?;
        line.waited = line.waited + waited.took;
        Ok(waited.pass.joined(late))
    }
}

/// Waits for `wait` and reads the body meanwhile: a disconnect of the caller is only noticed by
/// reading.
async fn with_body<B, T>(
    mut wait: Pin<&mut impl Future<Output = Result<T, Refusal>>>,
    body: &mut BufferedBody<B>,
    budget: &BodyBudget,
    limit: u64,
) -> Result<T, Refusal>
where
    B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Unpin,
{
    tokio::select! {
        biased;
        waited = wait.as_mut() => return waited,
        filled = body.fill(budget) => filled.map_err(|error| body_refusal(&error, limit))?,
    }
    wait.await
}

/// Returns the rejection for a request body that can't be read.
pub(crate) fn body_refusal(error: &axum::BoxError, limit: u64) -> Refusal {
    let mut source: Option<&dyn std::error::Error> = Some(&**error);
    while let Some(error) = source {
        if error.is::<crate::forward::buffered_body::BodyTooLarge>() {
            return Refusal::TooLarge(limit);
        }
        source = error.source();
    }
    Refusal::BadRequest("the request body ended early: send all of it")
}
