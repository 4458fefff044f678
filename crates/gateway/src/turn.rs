//! Reserve and pace together: a request gets a turn, or it is refused.

use std::pin::Pin;

use sluicegate_core::time::Span;

use crate::forward::{Budget, Parked};
use crate::gateway::Gateway;
use crate::log::Line;
use crate::pass::Pass;
use crate::refusal::Refusal;
use crate::reserve::{Asked, Reserved};
use crate::route::Route;

impl Gateway {
    /// A turn for a request: at once where nobody waits, or after waiting.
    pub(crate) async fn turn<B>(
        &self,
        route: &Route,
        asked: &Asked<'_>,
        body: &mut Parked<B>,
        line: &mut Line,
    ) -> Result<Pass, Refusal>
    where
        B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Unpin,
    {
        let waits = !route.options.wait.max.is_zero();
        let began = self.service.now();
        let reserved = if waits && route.lane.is_busy() {
            let common = Box::pin(asked.common(&self.service)).await;
            common.map(|common| Reserved::Wait(common, Span::ZERO))
        } else {
            asked.all(&self.service, waits, route.options.count_if_ok).await
        };
        line.decided = self.service.now().since(began);
        let mut owes_common = false;
        let (mut common, hint) = match reserved {
            Ok(Reserved::Go(pass)) => {
                route.lane.answered();
                return Ok(pass);
            }
            Ok(Reserved::Wait(common, hint)) => (common, hint),
            // Whoever can wait waits for the store, too, for a moment.
            Err(Refusal::StoreUnavailable) if waits && !route.lane.is_out() => {
                owes_common = true;
                (None, Span::ZERO)
            }
            Err(refusal) => return Err(refusal),
        };
        let flow = route.lane.by();
        let flow = flow.and_then(|by| asked.dimension(&by).map(str::to_owned)).unwrap_or_default();
        let patience = self.patience(route, line, route.options.wait.max);
        let wait = std::pin::pin!(route.lane.wait(&flow, hint, patience));
        let waited = with_body(wait, body, &self.parked, route.options.body_limit).await?;
        line.waited = waited.took;
        route.metrics.waited(waited.took);
        if owes_common {
            common = Box::pin(asked.common(&self.service)).await?;
        }
        Ok(match common {
            None => waited.pass,
            Some(common) => waited.pass.joined(common),
        })
    }

    /// Another turn for a request that was held up until its own was good no more.
    pub(crate) async fn another_turn(
        &self,
        route: &Route,
        mut late: Pass,
        line: &mut Line,
    ) -> Result<Pass, Refusal> {
        late.give_turn_back().await;
        let left = route.options.wait.max.saturating_sub(line.waited.into());
        let waited = route.lane.wait_again(self.patience(route, line, left)).await?;
        line.waited = line.waited + waited.took;
        Ok(waited.pass.joined(late))
    }
}

/// Waits, and reads the body meanwhile, so that a caller who goes away is noticed.
async fn with_body<B, T>(
    mut wait: Pin<&mut impl Future<Output = Result<T, Refusal>>>,
    body: &mut Parked<B>,
    budget: &Budget,
    limit: u64,
) -> Result<T, Refusal>
where
    B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Unpin,
{
    tokio::select! {
        biased;
        waited = wait.as_mut() => return waited,
        filled = body.fill(budget) => filled.map_err(|error| broken_off(&error, limit))?,
    }
    wait.await
}

/// What a caller is told whose body can't be read.
pub(crate) fn broken_off(error: &axum::BoxError, limit: u64) -> Refusal {
    let mut source: Option<&dyn std::error::Error> = Some(&**error);
    while let Some(error) = source {
        if error.is::<crate::forward::parked::TooLong>() {
            return Refusal::TooLarge(limit);
        }
        source = error.source();
    }
    Refusal::BadRequest("the body broke off")
}
