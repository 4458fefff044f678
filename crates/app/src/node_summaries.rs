//! The summaries that nodes on one Redis exchange for their dashboards.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::{Id, Span};
use sluicegate_server::dashboard::{DashboardSources, NodeSummaries, SummariesFuture};
use sluicegate_store::Redis;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Interval of writing.
const EVERY: Duration = Duration::from_secs(2);
/// Time until a summary expires: two may be lost.
const LASTS: Span = Span::from_secs(6);

/// The summaries in Redis.
pub(crate) struct RedisSummaries(pub(crate) Arc<Redis>);

impl NodeSummaries for RedisSummaries {
    fn read(&self) -> SummariesFuture<'_> {
        Box::pin(async { self.0.summaries().await.map_err(|problem| problem.to_string()) })
    }
}

/// Writes the summary of this node every two seconds, until it is stopped.
pub(crate) async fn write(
    redis: Arc<Redis>,
    sources: Arc<DashboardSources>,
    stop: CancellationToken,
) {
    let Ok(node) = sources.id.parse::<Id>() else { return };
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let summary = sources.summary();
        let put = redis.put_summary(node, &summary, LASTS);
        if let Some(Err(problem)) = stop.run_until_cancelled(put).await {
            debug!(%problem, "cannot write the summary of this node");
        }
    }
}
