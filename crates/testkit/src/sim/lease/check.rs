//! [`Check`]: the invariants of the lease protocol, checked by working times and by the store's
//! replies.

use std::collections::BTreeMap;

use sluicegate_core::Timestamp;
use sluicegate_core::algorithm::concurrency::SlotQuota;

use super::holder::WorkSpan;
use super::{Operation, Reply};

pub(super) struct Check {
    pub(super) quota: SlotQuota,
    worked: Vec<WorkSpan>,
    /// Time until which an id holds a slot, by the store's replies; `None` after its release.
    rightly: BTreeMap<u64, Option<Timestamp>>,
}

impl Check {
    pub(super) const fn new(quota: SlotQuota) -> Self {
        Self { quota, worked: Vec::new(), rightly: BTreeMap::new() }
    }

    /// Checks L2 and L3 at each reply of the store.
    pub(super) fn answered(
        &mut self,
        now: Timestamp,
        id: u64,
        operation: Operation,
        answer: Reply,
    ) -> Option<String> {
        let lease = Some(now + self.quota.lease);
        let holds = |until: &Option<Timestamp>| until.is_some_and(|until| until > now);
        match (operation, answer) {
            (Operation::Acquire, Reply::Held { .. }) => {
                let until = self.rightly.entry(id).or_insert(lease);
                if until.is_some() && !holds(until) {
                    *until = lease;
                }
            }
            (Operation::Renew, Reply::Held { .. }) => {
                if !self.rightly.get(&id).is_some_and(holds) {
                    return Some(format!("L3: {id} is renewed after it was lost"));
                }
                self.rightly.insert(id, lease);
            }
            (_, Reply::Released) => {
                self.rightly.insert(id, None);
            }
            (_, Reply::Deny) => {
                let held = self.rightly.values().filter(|until| holds(until)).count();
                if u64::try_from(held).is_ok_and(|held| held < self.quota.limit) {
                    return Some(format!("L2: {id} is denied, and {held} are rightly held"));
                }
            }
            _ => {}
        }
        None
    }

    pub(super) fn worked(&mut self, worked: Option<WorkSpan>) {
        self.worked.extend(worked);
    }

    /// Checks L1. The number of working holders is largest when one of them starts.
    pub(super) fn too_many_at_work(&self) -> Option<String> {
        let at_work = |now_us: u64| {
            let works = |w: &&WorkSpan| w.from_us <= now_us && now_us < w.until_us;
            self.worked.iter().filter(works).count()
        };
        let most = self.worked.iter().map(|worked| at_work(worked.from_us)).max()?;
        let more = u64::try_from(most).is_ok_and(|most| most > self.quota.limit);
        more.then(|| format!("L1: {most} work, slots are {}", self.quota.limit))
    }
}
