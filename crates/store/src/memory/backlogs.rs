//! The backlogs that the queues of this process report.

use std::collections::HashMap;

use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::time::{Clock, Timestamp};
use sluicegate_core::{Id, Plan};

use super::Memory;

/// Backlogs by the key that their work is charged on.
#[derive(Debug, Default)]
pub(super) struct Backlogs(HashMap<Vec<u8>, Vec<StoredBacklog>>);

#[derive(Debug)]
struct StoredBacklog {
    queue: Id,
    backlog: Backlog,
    expires: Timestamp,
}

impl<C: Clock> Memory<C> {
    pub(super) fn exchange_backlogs_now(
        &self,
        plan: &Plan<'_>,
        report: &BacklogReport,
    ) -> Vec<Backlog> {
        let Some(charge) = plan.charges().first() else { return Vec::new() };
        let key = charge.key.as_bytes();
        let mut backlogs = self.backlogs.lock();
        let now = self.now();
        let BacklogReport { queue, ref backlog, expires_after } = *report;
        let others = match backlogs.0.get_mut(key) {
            None => Vec::new(),
            Some(stored) => {
                stored.retain(|other| other.queue != queue && other.expires > now);
                stored.iter().map(|other| other.backlog.clone()).collect()
            }
        };
        if !backlog.is_empty() {
            let (backlog, expires) = (backlog.clone(), now + expires_after);
            let stored = backlogs.0.entry(key.to_vec()).or_default();
            stored.push(StoredBacklog { queue, backlog, expires });
        } else if others.is_empty() {
            backlogs.0.remove(key);
        }
        others
    }
}
