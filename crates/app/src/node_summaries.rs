//! The summaries that nodes on one Redis exchange for their dashboards.

use std::sync::Arc;

use sluicegate_core::Id;
use sluicegate_server::dashboard::{
    DashboardSources, NodeSummaries, SUMMARY_EVERY, SUMMARY_LASTS, SummariesFuture,
};
use sluicegate_store::Redis;
use tokio_util::sync::CancellationToken;
use tracing::debug;

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
    let mut tick = tokio::time::interval(SUMMARY_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let summary = sources.summary();
        let put = redis.put_summary(node, &summary, SUMMARY_LASTS);
        if let Some(Err(problem)) = stop.run_until_cancelled(put).await {
            debug!(%problem, "cannot write the summary of this node");
        }
    }
}
