//! [`Check`]: the invariants of the cross-slot protocol, checked against the stored charges and the
//! replies to clients.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_core::Timestamp;
use sluicegate_core::algorithm::log::LogQuota;

use super::{CounterIndex, Work};
use crate::sim::counter::exceeded;

/// Every charge ever written, and every reply to a client.
pub(super) struct Check {
    quota: LogQuota,
    charges: Vec<Charge>,
    orphaned: Vec<bool>,
    /// Time at which a slot last recorded a rollback of a client's attempt.
    taken_back: BTreeMap<(usize, usize), Timestamp>,
    /// Attempts that a slot was asked to roll back.
    ended: BTreeSet<(u64, usize)>,
    finding: Option<String>,
}

struct Charge {
    client: usize,
    /// Attempt that wrote the charge, and attempts that were told to share it.
    attempts: Vec<u64>,
    place: CounterIndex,
    at: Timestamp,
    given_back: bool,
    /// True if a client received Allow because of this charge.
    relied_on: bool,
}

impl Check {
    pub(super) fn new(quota: LogQuota, clients: usize) -> Self {
        Self {
            quota,
            charges: Vec::new(),
            orphaned: vec![false; clients],
            taken_back: BTreeMap::new(),
            ended: BTreeSet::new(),
            finding: None,
        }
    }

    pub(super) fn one_more_client(&mut self) {
        self.orphaned.push(false);
    }

    /// Checks S3 when a counter is charged.
    pub(super) fn charged(&mut self, work: Work, place: CounterIndex, at: Timestamp) {
        let Work { client, attempt, .. } = work;
        let before = self.charges.iter().filter(|charge| charge.is_of(client, place));
        let mut twice = before
            .filter(|charge| charge.attempts[0] == attempt || charge.at + self.quota.window > at);
        if twice.next().is_some() {
            self.found(format!("S3: client {client} is charged twice on {place:?}"));
        }
        let attempts = vec![attempt];
        let new = Charge { client, attempts, place, at, given_back: false, relied_on: false };
        self.charges.push(new);
    }

    /// Checks S2 when an attempt shares an earlier charge.
    pub(super) fn shared(&mut self, work: Work, place: CounterIndex, now: Timestamp) {
        let Work { client, attempt, .. } = work;
        let mut charges = self.charges.iter_mut().rev();
        let Some(charge) = charges.find(|charge| charge.is_of(client, place)) else {
            return;
        };
        charge.attempts.push(attempt);
        if charge.at + self.quota.window <= now {
            self.found(format!("S2: client {client} is reserved where it no longer counts"));
        }
    }

    /// Checks S2 when a charge is refunded.
    pub(super) fn given_back(&mut self, client: usize, place: CounterIndex, now: Timestamp) {
        let mut charges = self.charges.iter_mut().rev();
        let charge = charges.find(|charge| charge.is_of(client, place));
        let Some(charge) = charge else { return };
        charge.given_back = true;
        if charge.relied_on && charge.at + self.quota.window > now {
            self.found(format!("S2: admitted client {client} is given back on {place:?}"));
        }
    }

    pub(super) fn attempt_taken_back(&mut self, work: Work, slot: usize, now: Timestamp) {
        self.ended.insert((work.attempt, slot));
        self.taken_back(work.client, slot, now);
    }

    /// Checks S6 when a slot refuses.
    pub(super) fn refused(&mut self, work: Work, slot: usize) {
        if !self.ended.contains(&(work.attempt, slot)) {
            let Work { client, attempt, .. } = work;
            self.found(format!("S6: attempt {attempt} of client {client} is refused for another"));
        }
    }

    /// Records that no earlier charge of this client is left in the slot.
    pub(super) fn taken_back(&mut self, client: usize, slot: usize, now: Timestamp) {
        self.taken_back.insert((client, slot), now);
    }

    /// Checks S1 and S2 when a client is admitted.
    pub(super) fn admitted(&mut self, work: Work, plan: &[CounterIndex]) {
        let Work { client, attempt, .. } = work;
        for &place in plan {
            let mut charges = self.charges.iter_mut().rev();
            let stands = |charge: &&mut Charge| {
                charge.is_of(client, place) && charge.attempts.contains(&attempt)
            };
            match charges.find(stands) {
                Some(charge) => charge.relied_on = true,
                None => {
                    self.found(format!("S2: client {client} is admitted, not charged on {place:?}"))
                }
            }
            if let Some(how) = self.admitted_in_a_window(place) {
                self.found(format!("S1: on {place:?} {how}"));
            }
        }
    }

    /// Checks S2 after each change of a slot: its counter shows at least the admitted requests.
    pub(super) fn counts(&mut self, place: CounterIndex, used: u64, now: Timestamp) {
        let admitted = self.charges.iter().filter(|charge| {
            charge.place == place
                && charge.relied_on
                && !charge.given_back
                && charge.at + self.quota.window > now
        });
        let admitted = admitted.count();
        if u64::try_from(admitted).is_ok_and(|admitted| used < admitted) {
            self.found(format!("S2: {place:?} shows {used}, admitted are {admitted}"));
        }
    }

    /// Records that the node of a client's request has lost its memory.
    pub(super) fn orphaned(&mut self, client: usize) {
        self.orphaned[client] = true;
    }

    fn admitted_in_a_window(&self, place: CounterIndex) -> Option<String> {
        let charges = self.charges.iter();
        let admits = charges.filter(|charge| charge.place == place && charge.relied_on);
        let mut admits: Vec<_> = admits.map(|charge| charge.at).collect();
        admits.sort_unstable();
        exceeded(self.quota, &admits)
    }

    /// Checks S4 after every message has arrived: finds a charge that no client relies on and that
    /// no rollback found expired.
    pub(super) fn left_over(&self) -> Option<String> {
        let left = self.charges.iter().find(|charge| {
            let Charge { client, place, at, given_back, relied_on, .. } = **charge;
            let aged_out = self
                .taken_back
                .get(&(client, place.0))
                .is_some_and(|&taken_back| at + self.quota.window <= taken_back);
            !given_back && !relied_on && !self.orphaned[client] && !aged_out
        })?;
        let Charge { client, place, .. } = left;
        Some(format!("S4: client {client} was not admitted and stays charged on {place:?}"))
    }

    /// Checks S5 for a client that arrived when all counters were free.
    pub(super) fn was_admitted(&self, client: usize) -> Option<String> {
        let admitted = self.charges.iter().any(|c| c.client == client && c.relied_on);
        (!admitted).then(|| "S5: a lone request is denied after a window".to_owned())
    }

    pub(super) const fn take_finding(&mut self) -> Option<String> {
        self.finding.take()
    }

    fn found(&mut self, finding: String) {
        self.finding.get_or_insert(finding);
    }
}

impl Charge {
    fn is_of(&self, client: usize, place: CounterIndex) -> bool {
        self.client == client && self.place == place && !self.given_back
    }
}
