//! [`Check`]: the invariants of this protocol, checked by what was written and by the replies to
//! clients.

use std::collections::BTreeSet;

use sluicegate_core::Timestamp;
use sluicegate_core::algorithm::log::LogQuota;

use super::Work;
use crate::sim::counter::exceeded;

/// Every charge ever written, and every reply to a client.
pub(super) struct Check {
    quota: LogQuota,
    charges: Vec<Charge>,
    admitted: BTreeSet<u64>,
    by_policy: BTreeSet<u64>,
    taken_back: BTreeSet<u64>,
    orphaned: BTreeSet<u64>,
    finding: Option<String>,
}

struct Charge {
    id: u64,
    /// Attempt that wrote the charge, and attempts that were told to share it.
    attempts: Vec<u64>,
    at: Timestamp,
    given_back: bool,
}

impl Check {
    pub(super) const fn new(quota: LogQuota) -> Self {
        Self {
            quota,
            charges: Vec::new(),
            admitted: BTreeSet::new(),
            by_policy: BTreeSet::new(),
            taken_back: BTreeSet::new(),
            orphaned: BTreeSet::new(),
            finding: None,
        }
    }

    pub(super) fn charged(&mut self, work: Work, at: Timestamp) {
        let charge = Charge { id: work.id, attempts: vec![work.attempt], at, given_back: false };
        self.charges.push(charge);
    }

    /// Records that an attempt shares an earlier charge.
    pub(super) fn shared(&mut self, work: Work) {
        if let Some(charge) = self.charge_of(work.id)
            && !charge.attempts.contains(&work.attempt)
        {
            charge.attempts.push(work.attempt);
        }
    }

    /// Checks U2 and U3 when a charge is refunded.
    pub(super) fn given_back(&mut self, work: Work, now: Timestamp) {
        let window = self.quota.window;
        let Some(charge) = self.charge_of(work.id) else { return };
        charge.given_back = true;
        let (counts, attempts) = (charge.at + window > now, charge.attempts.clone());
        let any = |told: &BTreeSet<u64>| attempts.iter().any(|attempt| told.contains(attempt));
        if counts && any(&self.admitted) {
            self.found(format!("U2: what was admitted is given back for {work:?}"));
        } else if counts && any(&self.by_policy) {
            self.found(format!("U3: what the policy admitted is given back for {work:?}"));
        }
    }

    pub(super) fn taken_back(&mut self, work: Work) {
        self.taken_back.insert(work.attempt);
        if self.by_policy.contains(&work.attempt) {
            self.found(format!("U3: what the policy admitted is taken back: {work:?}"));
        }
    }

    /// Checks U5 when the store refuses an attempt.
    pub(super) fn refused(&mut self, work: Work) {
        if !self.taken_back.contains(&work.attempt) {
            self.found(format!("U5: {work:?} is refused for another"));
        }
    }

    /// Checks U1 and U2 when the store admits a client.
    pub(super) fn admitted(&mut self, work: Work) {
        self.admitted.insert(work.attempt);
        if !self.charges.iter().any(|c| !c.given_back && c.attempts.contains(&work.attempt)) {
            self.found(format!("U2: {work:?} is admitted and not charged"));
        }
        let relied_on = |charge: &&Charge| {
            !charge.given_back && charge.attempts.iter().any(|a| self.admitted.contains(a))
        };
        let mut admits: Vec<_> = self.charges.iter().filter(relied_on).map(|c| c.at).collect();
        admits.sort_unstable();
        if let Some(how) = exceeded(self.quota, &admits) {
            self.found(format!("U1: {how}"));
        }
    }

    pub(super) fn admitted_by_policy(&mut self, work: Work) {
        self.by_policy.insert(work.attempt);
    }

    /// Records that the node of this attempt has lost its memory.
    pub(super) fn orphaned(&mut self, attempt: u64) {
        self.orphaned.insert(attempt);
    }

    /// Checks U4 after every message has arrived.
    pub(super) fn left_over(&self) -> Option<String> {
        let excused = |attempt: &u64| {
            self.admitted.contains(attempt)
                || self.by_policy.contains(attempt)
                || self.orphaned.contains(attempt)
        };
        let left = |charge: &&Charge| !charge.given_back && !charge.attempts.iter().any(excused);
        let left = self.charges.iter().find(left)?;
        Some(format!("U4: id {} was denied and stays charged", left.id))
    }

    pub(super) const fn take_finding(&mut self) -> Option<String> {
        self.finding.take()
    }

    pub(super) fn found(&mut self, finding: String) {
        self.finding.get_or_insert(finding);
    }

    fn charge_of(&mut self, id: u64) -> Option<&mut Charge> {
        self.charges.iter_mut().rev().find(|charge| charge.id == id && !charge.given_back)
    }
}
