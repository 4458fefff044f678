//! The token bucket. [`Bucket`] stores one instant: the time at which everything taken has drained.
//!
//! It admits at most `capacity` at once and at most `capacity + rate × T` in any interval of length
//! `T`. With this instant instead of a level and the time of its last update, the bucket never has
//! to be refilled, and the passing of time changes nothing in the state.

use serde::{Deserialize, Serialize};

use super::{EarliestStart, Reading};
use crate::limit::{Amount, Rate, Unit};
use crate::time::{Span, Timestamp};

/// Capacity of a bucket and the time in which one unit drains.
///
/// A unit drains in whole nanoseconds, rounded up, and in at least 100 of them. So the configured
/// rate is never exceeded, and the real rate is less than 1 % below it. To get there, money is
/// counted in micro-dollars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    capacity: u64,
    drain_ns: u64,
    grain: u64,
}

impl Quota {
    const DRAIN_NS_MIN: u128 = 100;

    /// Creates the quota of a rate, with the capacity rounded down to whole grains. Returns `None`
    /// if it refills too fast to be metered or holds less than one grain.
    pub fn new(rate: Rate, capacity: Amount) -> Option<Self> {
        let grain = if rate.unit == Unit::Usd { 1_000 } else { 1 };
        let window_ns = u128::from(rate.window.span().as_micros()) * 1_000;
        let amount = u128::from(rate.amount.get());
        let drain_ns = (window_ns * u128::from(grain)).div_ceil(amount);
        if drain_ns < Self::DRAIN_NS_MIN {
            return None;
        }
        let drain_ns = u64::try_from(drain_ns).ok()?;
        let capacity = capacity.get() / grain * grain;
        (capacity > 0).then_some(Self { capacity, drain_ns, grain })
    }

    /// Creates a quota without a capacity, which is enough to take and to give back.
    pub(super) const fn raw(drain_ns: u64, grain: u64) -> Self {
        Self { capacity: 0, drain_ns, grain }
    }

    /// Returns the amount that a full bucket holds.
    pub const fn capacity(self) -> u64 {
        self.capacity
    }

    /// Returns the time in which one grain drains, in nanoseconds.
    pub const fn drain_ns(self) -> u64 {
        self.drain_ns
    }

    /// Returns the number of units that drain as one: 1, or 1,000 nano-dollars.
    pub const fn grain(self) -> u64 {
        self.grain
    }

    /// Returns the time in which a full bucket drains.
    pub fn drained_in(self) -> Span {
        Span::from_micros(u64::try_from(self.cost_ns(self.capacity) / 1_000).unwrap_or(u64::MAX))
    }

    /// Returns the time in which `amount` drains, in nanoseconds.
    fn cost_ns(self, amount: u64) -> u128 {
        u128::from(amount.div_ceil(self.grain)) * u128::from(self.drain_ns)
    }
}

/// State of a token bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Time at which everything taken has drained, in nanoseconds since the epoch.
    empty_at_ns: u64,
    /// Latest time for which an amount was taken or booked.
    latest: Timestamp,
    /// Sum of everything ever given back, as the time in which it would have drained.
    given_back_ns: u64,
}

/// Record of an amount taken, needed to give it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pour {
    /// Time at which it has drained, if no earlier amount is given back.
    pub drained_at_ns: u64,
    /// Value of the bucket's `given_back_ns` when the amount was taken.
    pub given_back_ns: u64,
}

impl Bucket {
    /// Returns the first instant from `from` on at which `need` more fits. Every later instant
    /// fits, too.
    pub fn earliest(self, quota: Quota, from: Timestamp, need: u64) -> EarliestStart {
        if need > quota.capacity {
            return EarliestStart::Never { limit: 0 };
        }
        let room_ns = quota.cost_ns(quota.capacity) - quota.cost_ns(need);
        let start_ns = u128::from(self.empty_at_ns).saturating_sub(room_ns);
        let start = u64::try_from(start_ns.div_ceil(1_000)).unwrap_or(u64::MAX);
        EarliestStart::at(from.max(Timestamp::from_micros(start)))
    }

    /// Takes `amount` at `at`, which fills the bucket by that much.
    pub fn take(&mut self, quota: Quota, at: Timestamp, amount: u64) -> Pour {
        self.latest = self.latest.max(at);
        let from = u128::from(self.empty_at_ns.max(nanos(at)));
        let end = from.saturating_add(quota.cost_ns(amount));
        self.empty_at_ns = u64::try_from(end).unwrap_or(u64::MAX);
        Pour { drained_at_ns: self.empty_at_ns, given_back_ns: self.given_back_ns }
    }

    /// Gives back `amount` of what was taken, but only the part that has not drained at `now`: the
    /// rest has already made room for other requests.
    ///
    /// If something is booked for a later time, only the part that will not have drained by then is
    /// given back, because the bucket may be empty in between. Amounts given back since may have
    /// let this one drain sooner; all of them are assumed to have been taken before it.
    pub fn give_back(&mut self, quota: Quota, pour: Pour, amount: u64, now: Timestamp) {
        let sooner = self.given_back_ns.saturating_sub(pour.given_back_ns);
        let undrained = pour.drained_at_ns.saturating_sub(sooner);
        let undrained = undrained.saturating_sub(nanos(now.max(self.latest)));
        // Rounded down, because the amount was rounded up when it was taken.
        let drain = u128::from(amount / quota.grain) * u128::from(quota.drain_ns);
        let back = u64::try_from(drain).unwrap_or(u64::MAX).min(undrained);
        self.empty_at_ns = self.empty_at_ns.saturating_sub(back);
        self.given_back_ns = self.given_back_ns.saturating_add(back);
    }

    /// Leaves no room before `until`. This closes a gate.
    pub fn fill_until(&mut self, until: Timestamp) {
        self.empty_at_ns = self.empty_at_ns.max(nanos(until));
        self.latest = self.latest.max(until);
    }

    /// Gives back up to `amount` of what has not drained at `now`.
    pub fn refund(&mut self, quota: Quota, amount: u64, now: Timestamp) {
        let all = Pour { drained_at_ns: self.empty_at_ns, given_back_ns: self.given_back_ns };
        self.give_back(quota, all, amount, now);
    }

    /// Returns the level at `now`, rounded up, and the time at which the bucket will be empty.
    pub fn reading(self, quota: Quota, now: Timestamp) -> Reading {
        let level_ns = self.empty_at_ns.saturating_sub(nanos(now));
        let used = level_ns.div_ceil(quota.drain_ns).saturating_mul(quota.grain);
        Reading::new(used, now.max(self.empty_at()))
    }

    /// Returns the time at which the bucket will be empty, rounded up.
    pub fn empty_at(self) -> Timestamp {
        Timestamp::from_micros(self.empty_at_ns.div_ceil(1_000))
    }
}

const fn nanos(at: Timestamp) -> u64 {
    // 2^53 microseconds are about half of the range of 64-bit nanoseconds.
    at.as_micros() * 1_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    fn quota(text: &str) -> Quota {
        match text.parse() {
            Ok(Limit::Bucket { rate, capacity }) => Quota::new(rate, capacity).expect(text),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    /// Returns the number of single units admitted at each instant.
    fn admitted(quota: Quota, bucket: &mut Bucket, now: Timestamp) -> u64 {
        let mut admitted = 0;
        while bucket.earliest(quota, now, 1) == EarliestStart::at(now) {
            bucket.take(quota, now, 1);
            admitted += 1;
        }
        admitted
    }

    #[test]
    fn burst_then_steady() {
        let (quota, mut bucket) = (quota("10/s burst 3"), Bucket::default());
        assert_eq!(admitted(quota, &mut bucket, at(0)), 3);
        assert_eq!(bucket.earliest(quota, at(0), 1), EarliestStart::at(at(100)));
        assert_eq!(bucket.earliest(quota, at(0), 3), EarliestStart::at(at(300)));
        assert_eq!(bucket.earliest(quota, at(0), 4), EarliestStart::Never { limit: 0 });
        assert_eq!(admitted(quota, &mut bucket, at(99)), 0);
        assert_eq!(admitted(quota, &mut bucket, at(100)), 1);
        assert_eq!(admitted(quota, &mut bucket, at(1_000_000)), 3);
    }

    #[test]
    fn a_rate_that_does_not_divide_still_gives_the_whole_burst() {
        for text in ["3/s burst 3", "7/min burst 7", "7000000 tokens/min burst 1000"] {
            let (quota, mut bucket) = (quota(text), Bucket::default());
            assert_eq!(admitted(quota, &mut bucket, at(0)), quota.capacity(), "{text}");
        }
    }

    #[test]
    fn the_rate_is_never_exceeded_and_missed_by_less_than_one_percent() {
        let (quota, mut bucket) = (quota("7000000/min burst 1000"), Bucket::default());
        admitted(quota, &mut bucket, at(0));
        let minute: u64 = (1..=60_000).map(|ms| admitted(quota, &mut bucket, at(ms))).sum();
        assert!((6_930_000..=7_000_000).contains(&minute), "{minute}");
    }

    #[test]
    fn smooth_spaces_evenly() {
        let (quota, mut bucket) = (quota("25/s smooth"), Bucket::default());
        assert_eq!(admitted(quota, &mut bucket, at(0)), 1);
        assert_eq!(bucket.earliest(quota, at(0), 1), EarliestStart::at(at(40)));
    }

    #[test]
    fn only_what_has_not_drained_is_given_back() {
        let (quota, mut bucket) = (quota("1/s burst 1"), Bucket::default());
        let first = bucket.take(quota, at(0), 1);
        bucket.take(quota, at(5_000), 1);
        bucket.give_back(quota, first, 1, at(5_000));
        assert_eq!(admitted(quota, &mut bucket, at(5_000)), 0);

        let second = bucket.take(quota, at(10_000), 1);
        bucket.give_back(quota, second, 1, at(10_250));
        assert_eq!(bucket.earliest(quota, at(10_250), 1), EarliestStart::at(at(10_250)));
    }

    #[test]
    fn an_amount_that_drained_sooner_because_of_others_is_not_given_back() {
        let (quota, mut bucket) = (quota("1/s burst 2"), Bucket::default());
        let (first, second) = (bucket.take(quota, at(0), 1), bucket.take(quota, at(0), 1));
        bucket.give_back(quota, first, 1, at(0));
        bucket.take(quota, at(1_000), 1);
        bucket.give_back(quota, second, 1, at(1_000));
        assert_eq!(admitted(quota, &mut bucket, at(1_000)), 1, "one beside the one at 1 s");
    }

    #[test]
    fn an_amount_that_drains_before_a_booking_makes_no_room_beside_it() {
        let (quota, mut bucket) = (quota("1/s burst 1"), Bucket::default());
        let first = bucket.take(quota, at(0), 1);
        bucket.take(quota, at(10_000), 1);
        bucket.give_back(quota, first, 1, at(0));
        assert_eq!(admitted(quota, &mut bucket, at(10_000)), 0);
    }

    #[test]
    fn a_capacity_is_not_rounded_up() {
        let (quota, bucket) = (quota("1.00 USD/day burst 1.0000005"), Bucket::default());
        assert_eq!(quota.capacity(), 1_000_000_000);
        assert_eq!(bucket.earliest(quota, at(0), 1_000_000_001), EarliestStart::Never { limit: 0 });
    }

    #[test]
    fn money_is_metered_in_micro_dollars() {
        let quota = quota("5.00 USD/day burst 5.00");
        let mut bucket = Bucket::default();
        bucket.take(quota, at(0), 260_600);
        assert_eq!(bucket.reading(quota, at(0)).used, 261_000);
        assert_eq!(
            bucket.earliest(quota, at(0), 5_000_000_000 - 261_000),
            EarliestStart::at(at(0))
        );
    }

    #[test]
    fn extremes_do_not_overflow() {
        let quota = quota("1/366d burst 9007199254740991");
        let mut bucket = Bucket::default();
        let pour = bucket.take(quota, Timestamp::MAX, u64::MAX);
        bucket.give_back(quota, pour, u64::MAX, at(0));
        let _ = bucket.earliest(quota, at(0), quota.capacity());
        let _ = (bucket.reading(quota, at(0)), quota.drained_in());
    }
}
