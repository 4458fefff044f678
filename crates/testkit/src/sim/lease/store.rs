//! [`Store`]: the simulated lease store, with one record per id. It handles one request at a time.

use std::collections::BTreeMap;

use sluicegate_core::algorithm::EarliestStart;
use sluicegate_core::algorithm::concurrency::{Leases, SlotQuota};
use sluicegate_core::{Id, Span, Timestamp};

use super::{DELAY_MAX, LeaseMistake, Reply};

pub(super) struct Store {
    /// Time by which its clock is ahead of the true time.
    pub(super) ahead_us: u64,
    quota: SlotQuota,
    leases: Leases,
    records: BTreeMap<u64, Record>,
    /// Id that holds each slot; used only by releases by number.
    slots: Vec<Option<u64>>,
    mistake: Option<LeaseMistake>,
}

#[derive(Clone, Copy)]
struct Record {
    until: Timestamp,
    released: bool,
    expires: Timestamp,
}

impl Store {
    pub(super) fn new(quota: SlotQuota, ahead_us: u64, mistake: Option<LeaseMistake>) -> Self {
        let slots = usize::try_from(quota.limit).expect("a limit of a simulation is small");
        Self {
            ahead_us,
            quota,
            leases: Leases::default(),
            records: BTreeMap::new(),
            slots: vec![None; slots],
            mistake,
        }
    }

    pub(super) fn acquire(&mut self, now: Timestamp, id: u64) -> Reply {
        self.advance(now);
        if let Some(&record) = self.records.get(&id) {
            return match self.mistake {
                Some(LeaseMistake::ReplayOfExpired) if !record.released => {
                    self.held(id, self.quota.lease)
                }
                _ if !record.released && record.until > now => {
                    self.held(id, record.until.since(now))
                }
                _ => Reply::Lost,
            };
        }
        match self.leases.earliest(self.quota, now, 1) {
            EarliestStart::At { start, .. } if start == now => self.take(now, id),
            _ => Reply::Deny,
        }
    }

    pub(super) fn renew(&mut self, now: Timestamp, id: u64) -> Reply {
        self.advance(now);
        let Some(&record) = self.records.get(&id) else {
            return Reply::Lost;
        };
        if record.released || record.until <= now {
            let revives = self.mistake == Some(LeaseMistake::RenewalRevives) && !record.released;
            return if revives { self.take(now, id) } else { Reply::Lost };
        }
        if self.mistake == Some(LeaseMistake::RenewalIgnored) {
            return self.held(id, self.quota.lease);
        }
        let later = self.until(now);
        self.leases.renew(name(id), record.until, later);
        self.keep(id, record.until.max(later));
        self.held(id, self.quota.lease)
    }

    pub(super) fn release(&mut self, now: Timestamp, id: u64, slot: usize) -> Reply {
        self.advance(now);
        let ends = match self.mistake {
            Some(LeaseMistake::ReleaseBySlot) => self.slots[slot],
            _ => Some(id),
        };
        if let Some(record) = ends.and_then(|ends| self.records.get_mut(&ends).zip(Some(ends))) {
            let (record, ends) = record;
            if !record.released {
                self.leases.release(name(ends), record.until);
                record.released = true;
            }
        }
        self.slots.iter_mut().filter(|slot| **slot == ends).for_each(|slot| *slot = None);
        if self.mistake == Some(LeaseMistake::ReleaseWithoutTombstone) {
            self.records.remove(&id);
            return Reply::Released;
        }
        let expires = now + DELAY_MAX;
        let tombstone = Record { until: now, released: true, expires };
        let record = self.records.entry(id).or_insert(tombstone);
        record.expires = record.expires.max(expires);
        Reply::Released
    }

    pub(super) fn used(&self, now: Timestamp) -> u64 {
        self.leases.reading(now).used
    }

    fn take(&mut self, now: Timestamp, id: u64) -> Reply {
        let until = self.until(now);
        self.leases.take(name(id), 1, until);
        self.keep(id, until);
        if let Some(free) = self.slots.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(id);
        }
        self.held(id, self.quota.lease)
    }

    fn until(&self, now: Timestamp) -> Timestamp {
        match self.mistake {
            Some(LeaseMistake::ShortLease) => {
                now + Span::from_micros(self.quota.lease.as_micros() / 2)
            }
            Some(LeaseMistake::NeverExpires) => Timestamp::MAX,
            _ => now + self.quota.lease,
        }
    }

    fn held(&self, id: u64, left: Span) -> Reply {
        let slot = self.slots.iter().position(|slot| *slot == Some(id)).unwrap_or_default();
        Reply::Held { left, slot }
    }

    fn keep(&mut self, id: u64, until: Timestamp) {
        let record = Record { until, released: false, expires: until + DELAY_MAX };
        self.records.insert(id, record);
    }

    /// Expires leases that were not renewed, and drops records that no message can name any more.
    fn advance(&mut self, now: Timestamp) {
        self.leases.purge(now);
        self.records.retain(|_, record| record.expires > now);
        let records = &self.records;
        for slot in &mut self.slots {
            let holds = |id: &u64| records.get(id).is_some_and(|r| !r.released && r.until > now);
            *slot = slot.filter(holds);
        }
    }
}

fn name(id: u64) -> Id {
    Id::from_bits(u128::from(id))
}
