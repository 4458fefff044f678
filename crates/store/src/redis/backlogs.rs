//! The backlogs that the queues of all nodes report, in one expiring Redis key beside the counters of
//! their work: see `lua/backlogs.lua`.

use sluicegate_core::Plan;
use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::store::Error;

use super::Redis;
use super::call::Call;
use super::keys::Layout;
use super::operation_stats::RedisOperation;

impl Redis {
    pub(super) async fn run_on_backlogs(
        &self,
        plan: &Plan<'_>,
        report: &BacklogReport,
    ) -> Result<Vec<Backlog>, Error> {
        let Some(charge) = plan.charges().first() else { return Ok(Vec::new()) };
        let slot = (self.names.layout() == Layout::BySlot).then(|| self.names.slot(&charge.key));
        let key = self.names.backlogs(&charge.key);
        let call = |_| Call::on_backlogs(report, &key, slot);
        let labels = (RedisOperation::Backlogs, report.queue);
        self.retrier.run(&self.connection, labels, call).await?.backlogs()
    }
}
