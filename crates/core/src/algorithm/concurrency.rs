//! [`Leases`]: concurrency slots that their holder renews, and that expire if the holder dies.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{EarliestStart, Reading};
use crate::id::Id;
use crate::time::{Span, Timestamp};

/// Limit on concurrent work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotQuota {
    /// Number of slots.
    pub limit: u64,
    /// Lifetime of a lease without renewal.
    pub lease: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Lease {
    until: Timestamp,
    id: Id,
    slots: u64,
}

/// All active leases, the first to expire first. A lease is held until just before `until`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leases {
    held: SmallVec<[Lease; 0]>,
    slots: u64,
}

impl Leases {
    /// Returns the first instant from `from` on at which `need` slots are free if no lease is
    /// renewed.
    ///
    /// A release can only make it earlier. O(leases that have to expire).
    pub fn earliest(&self, quota: SlotQuota, from: Timestamp, need: u64) -> EarliestStart {
        let Some(spare) = quota.limit.checked_sub(need) else {
            return EarliestStart::Never { limit: 0 };
        };
        let mut start = from;
        let mut slots = self.slots;
        for lease in &self.held {
            if slots <= spare {
                break;
            }
            slots -= lease.slots;
            start = start.max(lease.until);
        }
        EarliestStart::at(start)
    }

    /// Gives `id` a lease on `slots` slots until `until`.
    pub fn take(&mut self, id: Id, slots: u64, until: Timestamp) {
        let lease = Lease { until, id, slots };
        let place = match self.held.last() {
            Some(last) if *last > lease => self.held.partition_point(|other| *other < lease),
            _ => self.held.len(),
        };
        self.held.insert(place, lease);
        self.slots += slots;
    }

    /// Ends the lease that `id` holds until `until`. Returns true if there was one.
    pub fn release(&mut self, id: Id, until: Timestamp) -> bool {
        self.remove(id, until).is_some()
    }

    /// Extends the lease that `id` holds until `until` to `later`. Returns true if there was one.
    pub fn renew(&mut self, id: Id, until: Timestamp, later: Timestamp) -> bool {
        let Some(lease) = self.remove(id, until) else {
            return false;
        };
        self.take(id, lease.slots, later.max(until));
        true
    }

    /// Returns true if `id` holds a lease until `until`.
    pub fn is_held(&self, id: Id, until: Timestamp) -> bool {
        self.find(id, until).is_some()
    }

    /// Finds a lease in O(log n), because leases are sorted by expiry.
    fn find(&self, id: Id, until: Timestamp) -> Option<usize> {
        let first = Lease { until, id, slots: 0 };
        let place = self.held.partition_point(|other| *other < first);
        let found = self.held.get(place).is_some_and(|l| l.until == until && l.id == id);
        found.then_some(place)
    }

    fn remove(&mut self, id: Id, until: Timestamp) -> Option<Lease> {
        let place = self.find(id, until)?;
        let lease = self.held.remove(place);
        self.slots -= lease.slots;
        Some(lease)
    }

    /// Removes the leases that have expired by `now`.
    pub fn purge(&mut self, now: Timestamp) {
        let gone = self.held.iter().take_while(|lease| lease.until <= now).count();
        if gone > 0 {
            self.slots -= self.held.drain(..gone).map(|lease| lease.slots).sum::<u64>();
        }
    }

    /// Returns the number of slots held at `now` and the time at which the first of them expires.
    pub fn reading(&self, now: Timestamp) -> Reading {
        let mut used = self.slots;
        for lease in &self.held {
            if lease.until > now {
                return Reading::new(used, lease.until);
            }
            used -= lease.slots;
        }
        Reading::new(0, now)
    }

    /// Returns the same number of slots as one lease without a holder, until the last of them
    /// expires.
    pub fn merged(&self) -> Self {
        let mut merged = Self::default();
        if let Some(last) = self.last() {
            merged.take(Id::from_bits(0), self.slots, last);
        }
        merged
    }

    /// Returns the time at which the last lease expires.
    pub fn last(&self) -> Option<Timestamp> {
        self.held.last().map(|lease| lease.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: SlotQuota = SlotQuota { limit: 3, lease: Span::from_secs(30) };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn id(n: u128) -> Id {
        Id::from_bits(n)
    }

    #[test]
    fn a_slot_comes_back_when_released_or_expired() {
        let mut leases = Leases::default();
        leases.take(id(1), 1, at(30));
        leases.take(id(2), 2, at(20));
        assert_eq!(leases.earliest(QUOTA, at(0), 1), EarliestStart::at(at(20)));
        assert_eq!(leases.earliest(QUOTA, at(0), 3), EarliestStart::at(at(30)));
        assert_eq!(leases.earliest(QUOTA, at(0), 4), EarliestStart::Never { limit: 0 });
        assert!(leases.release(id(1), at(30)));
        assert!(!leases.release(id(1), at(30)));
        assert_eq!(leases.earliest(QUOTA, at(0), 1), EarliestStart::at(at(0)));
        leases.purge(at(20));
        assert_eq!(leases.reading(at(20)), Reading::new(0, at(20)));
    }

    #[test]
    fn renewing_keeps_a_slot_and_never_shortens_it() {
        let mut leases = Leases::default();
        leases.take(id(1), 1, at(30));
        assert!(leases.renew(id(1), at(30), at(50)));
        assert!(leases.renew(id(1), at(50), at(40)));
        leases.purge(at(49));
        assert_eq!(leases.reading(at(49)), Reading::new(1, at(50)));
        leases.purge(at(50));
        assert!(!leases.renew(id(1), at(50), at(90)));
    }

    #[test]
    fn many_holders_are_distinguished() {
        let mut leases = Leases::default();
        for n in 0..100 {
            leases.take(id(n % 10 * 10 + n / 10), 1, at(u64::try_from(n).expect("small") % 7));
        }
        assert_eq!(leases.slots, 100);
        assert!(leases.held.is_sorted());
    }
}
