//! Combines the steps reserve and pace: a request gets a pass at once or after a wait in the queue,
//! or it is rejected.

use std::pin::Pin;
use std::time::Duration;

use sluicegate_core::time::Span;
use sluicegate_pace::Turn;
use sluicegate_service::trace::SpanKind;

use crate::forward::upload::body_refusal;
use crate::forward::{BodyBudget, BufferedBody};
use crate::gateway::Gateway;
use crate::log::LogLine;
use crate::pass::Pass;
use crate::refusal::Refusal;
use crate::reserve::LimitCheck;
use crate::route::Route;

impl Gateway {
    /// Returns a pass for a request: at once if there is a turn for it, or after waiting.
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
        let paced = check.limited && route.options.wait.max > Span::ZERO;
        let began = self.service.now();
        if !paced {
            let pass = check.check_all(&self.service, route.options.count_if_ok).await;
            line.decided = self.service.now().since(began);
            return pass;
        }
        // A request that may wait also waits a moment for the store to come back.
        let (mut common, owes_common) = match check.check_common(&self.service).await {
            Err(Refusal::StoreUnavailable) if !route.lane.is_out() => (None, true),
            common => (common?, false),
        };
        // The wait may be longer than a lease of the caller's limits.
        if let Some(common) = &mut common {
            common.renew_leases();
        }
        let hint = if owes_common || route.lane.is_busy() {
            Span::ZERO
        } else {
            match route.lane.acquire().await {
                Turn::Go(pass, window) => {
                    let now = self.service.now();
                    line.decided = now.since(began);
                    return Ok(joined(pass.within(window).waiting_since(now), common));
                }
                Turn::Never(refusal) => return Err(refusal),
                Turn::Unanswered(_) if route.lane.is_out() => {
                    return Err(Refusal::StoreUnavailable);
                }
                Turn::Later(wait) => wait,
                // Leases end at any time.
                Turn::Busy(_) | Turn::Unanswered(_) | Turn::Gone | Turn::Booked(_) => Span::ZERO,
            }
        };
        line.decided = self.service.now().since(began);
        let flow = route.lane.by();
        let flow = flow.and_then(|by| check.dimension(&by).map(str::to_owned)).unwrap_or_default();
        let timeout = self.time_left(route, line, route.options.wait.max.into());
        let refusal = |error| Refusal::of_wait(error, &route.key);
        let span = self.service.tracer().child("wait", SpanKind::Internal);
        let since = self.service.now();
        let wait = span.run(async { route.lane.wait(&flow, hint, timeout).await.map_err(refusal) });
        let wait = std::pin::pin!(wait);
        let waited = with_body(wait, body, &self.body_budget).await;
        if let Err(refusal) = &waited {
            span.fail(|| refusal.code().1.to_owned());
        }
        drop(span);
        let waited = waited?;
        line.waited = waited.took;
        if owes_common {
            common = check.check_common(&self.service).await?;
        }
        let pass = waited.admission.within(waited.window).waiting_since(since);
        Ok(joined(pass, common))
    }

    /// Starts a request if it may be sent now, because it is not paced or its turn has come, and records
    /// the start. Returns false if it has to wait, or has missed its turn.
    pub(crate) fn try_start(&self, route: &Route, pass: &Pass, line: &mut LogLine) -> bool {
        if !pass.is_paced() {
            return true;
        }
        let late = pass.try_start();
        if let Some(late) = late {
            self.started(route, pass, late, line);
        }
        late.is_some()
    }

    /// Records that a paced request is sent, this long after its turn has come.
    fn started(&self, route: &Route, pass: &Pass, late: Span, line: &mut LogLine) {
        route.lane.pacer().round_trips().started_after(late);
        line.waited = self.service.now().since(pass.waits_since());
    }

    /// Waits until a paced request may be sent. If the request misses its turn, it gets another one.
    pub(crate) async fn until_turn(
        &self,
        route: &Route,
        mut pass: Pass,
        line: &mut LogLine,
    ) -> Result<Pass, Refusal> {
        loop {
            if let Some(late) = pass.opened().await {
                self.started(route, &pass, late, line);
                return Ok(pass);
            }
            route.lane.pacer().round_trips().started_after(pass.late());
            pass = self.next_turn(route, pass, line).await?;
        }
    }

    /// Waits for another turn after a request has missed its own. The request keeps its charges under
    /// the caller's limits, goes before all others, and waits until the same time as before.
    pub(crate) async fn next_turn(
        &self,
        route: &Route,
        mut pass: Pass,
        line: &mut LogLine,
    ) -> Result<Pass, Refusal> {
        pass.cancel_turn().await;
        let since = pass.waits_since();
        line.waited = self.service.now().since(since);
        let left = Duration::from(route.options.wait.max).saturating_sub(line.waited.into());
        let left = self.time_left(route, line, left);
        let span = self.service.tracer().child("wait", SpanKind::Internal);
        let waited = span.run(route.lane.wait_again(since, left)).await;
        drop(span);
        let waited = waited.map_err(|error| Refusal::of_wait(error, &route.key))?;
        line.waited = waited.took;
        Ok(waited.admission.within(waited.window).waiting_since(since).joined(pass))
    }
}

/// Adds the charges under the caller's limits to a turn.
fn joined(pass: Pass, common: Option<Pass>) -> Pass {
    match common {
        None => pass,
        Some(common) => pass.joined(common),
    }
}

/// Waits for `wait` and reads the body meanwhile: a disconnect of the caller is only noticed by
/// reading.
async fn with_body<B, T>(
    mut wait: Pin<&mut impl Future<Output = Result<T, Refusal>>>,
    body: &mut BufferedBody<B>,
    budget: &BodyBudget,
) -> Result<T, Refusal>
where
    B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Unpin,
{
    tokio::select! {
        biased;
        waited = wait.as_mut() => return waited,
        filled = body.fill(budget) => filled.map_err(|error| body_refusal(&error))?,
    }
    wait.await
}
