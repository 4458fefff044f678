//! The token bucket. [`Bucket`] stores one instant: the time at which everything taken has drained.
//!
//! It admits at most `capacity` at once and at most `capacity + rate × T` in any interval of length
//! `T`. With this instant instead of a level and the time of its last update, the bucket never has
//! to be refilled, and the passing of time changes nothing in the state.
//!
//! **Runs.** Booked work may begin up to one slack after its start, so it is charged at the end of
//! the slack. In a bucket with a capacity of one, two bookings are therefore one slack further
//! apart than the rate requires. A run is a series of consecutive bookings of one owner. The owner
//! spaces its real starts itself, so within a run the next start is computed from the starts alone,
//! and slack is needed only between runs. `docs/decisions/022` has the proof.

use serde::{Deserialize, Serialize};

use super::{EarliestStart, Reading, Slack};
use crate::id::Id;
use crate::limit::{Amount, Rate, Unit};
use crate::time::{Span, Timestamp};

/// Capacity of a bucket and the time in which one unit drains.
///
/// A unit drains in whole nanoseconds, rounded up, and in at least 100 of them. So the configured
/// rate is never exceeded, and the real rate is less than 1 % below it. To get there, money is
/// counted in micro-dollars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BucketQuota {
    capacity: u64,
    drain_ns: u64,
    grain: u64,
}

impl BucketQuota {
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

    /// Returns the time by which work of this amount may start late without delaying the next: the
    /// time in which the rest of the capacity drains.
    pub fn room(self, amount: u64) -> Span {
        let nanos = self.cost_ns(self.capacity).saturating_sub(self.cost_ns(amount));
        Span::from_micros(u64::try_from(nanos / 1_000).unwrap_or(u64::MAX))
    }
}

/// State of a token bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Time at which the bucket is unused again, in nanoseconds since the epoch.
    empty_at_ns: u64,
    /// Latest time for which an amount was taken or booked.
    latest: Timestamp,
    /// Sum of everything ever given back, as the time in which it would have drained.
    given_back_ns: u64,
    /// The run that the last charge belongs to. Owners do not survive a restart, so it is not part
    /// of a snapshot.
    #[serde(skip)]
    run: Option<Box<Run>>,
}

/// Consecutive bookings of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    owner: Id,
    /// Time at which the bucket would have drained if all work of the run began at its start.
    empty_at_ns: u64,
}

/// Record of an amount taken, needed to give it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketWithdrawal {
    /// Time at which it has drained, if no earlier amount is given back.
    pub drained_at_ns: u64,
    /// Value of the bucket's `given_back_ns` when the amount was taken.
    pub given_back_ns: u64,
}

impl Bucket {
    /// Returns the first instant from `from` on at which `owner` can take `need` more. Every later
    /// instant fits, too.
    pub fn earliest(
        &self,
        quota: BucketQuota,
        from: Timestamp,
        need: u64,
        owner: Option<Id>,
    ) -> EarliestStart {
        if need > quota.capacity {
            return EarliestStart::Never { limit: 0 };
        }
        let room_ns = quota.cost_ns(quota.capacity) - quota.cost_ns(need);
        let start_ns = u128::from(self.empty_at_ns_for(owner)).saturating_sub(room_ns);
        let start = u64::try_from(start_ns.div_ceil(1_000)).unwrap_or(u64::MAX);
        EarliestStart::at(from.max(Timestamp::from_micros(start)))
    }

    /// Returns the time at which the bucket has drained, as the next work of `owner` sees it:
    /// without the slack of the current run if the run belongs to this owner.
    fn empty_at_ns_for(&self, owner: Option<Id>) -> u64 {
        match &self.run {
            Some(run) if Some(run.owner) == owner => run.empty_at_ns,
            _ => self.empty_at_ns,
        }
    }

    /// Takes `amount` for work that starts at `start`, charged at the end of its slack. Starts a
    /// run of the owner, or continues it.
    pub fn take(
        &mut self,
        quota: BucketQuota,
        start: Timestamp,
        slack: Slack,
        amount: u64,
    ) -> BucketWithdrawal {
        let poured = |empty_at_ns: u64, at: Timestamp| {
            let end = u128::from(empty_at_ns.max(nanos(at))).saturating_add(quota.cost_ns(amount));
            u64::try_from(end).unwrap_or(u64::MAX)
        };
        let run_empty_at_ns = poured(self.empty_at_ns_for(slack.owner), start);
        match (slack.owner, &mut self.run) {
            (None, run) => *run = None,
            (Some(owner), Some(run)) => **run = Run { owner, empty_at_ns: run_empty_at_ns },
            (Some(owner), run) => {
                *run = Some(Box::new(Run { owner, empty_at_ns: run_empty_at_ns }));
            }
        }
        let latest = start + slack.span;
        self.latest = self.latest.max(latest);
        self.empty_at_ns = poured(self.empty_at_ns, latest);
        BucketWithdrawal { drained_at_ns: self.empty_at_ns, given_back_ns: self.given_back_ns }
    }

    /// Returns the same usage without a run, for another counter.
    #[must_use]
    pub fn without_run(&self) -> Self {
        Self { run: None, ..*self }
    }

    /// Gives back `amount` of an earlier take, but only the part that has not drained at `now`: the
    /// rest has already made room for other requests.
    ///
    /// If work is booked for a later time, only the part that will not have drained by then is
    /// given back, because the bucket may be empty in between. Other amounts that were given back
    /// in the meantime may have let this one drain sooner; all of them are assumed to have been
    /// taken before it.
    pub fn give_back(
        &mut self,
        quota: BucketQuota,
        charge: BucketWithdrawal,
        amount: u64,
        now: Timestamp,
    ) {
        let sooner = self.given_back_ns.saturating_sub(charge.given_back_ns);
        let undrained = charge.drained_at_ns.saturating_sub(sooner);
        let undrained = undrained.saturating_sub(nanos(now.max(self.latest)));
        // Rounded down, because the amount was rounded up when it was taken.
        let drain = u128::from(amount / quota.grain) * u128::from(quota.drain_ns);
        let back = u64::try_from(drain).unwrap_or(u64::MAX).min(undrained);
        if back > 0 {
            self.run = None;
        }
        self.empty_at_ns = self.empty_at_ns.saturating_sub(back);
        self.given_back_ns = self.given_back_ns.saturating_add(back);
    }

    /// Leaves no room before `until`. This closes a gate.
    pub fn fill_until(&mut self, until: Timestamp) {
        if nanos(until) > self.empty_at_ns {
            (self.empty_at_ns, self.run) = (nanos(until), None);
        }
        self.latest = self.latest.max(until);
    }

    /// Gives back up to `amount` of what has not drained at `now`.
    pub fn refund(&mut self, quota: BucketQuota, amount: u64, now: Timestamp) {
        let all =
            BucketWithdrawal { drained_at_ns: self.empty_at_ns, given_back_ns: self.given_back_ns };
        self.give_back(quota, all, amount, now);
    }

    /// Returns the level at `now`, rounded up, and the time at which the bucket will be empty.
    pub fn reading(&self, quota: BucketQuota, now: Timestamp) -> Reading {
        let level_ns = self.empty_at_ns.saturating_sub(nanos(now));
        let used = level_ns.div_ceil(quota.drain_ns).saturating_mul(quota.grain);
        Reading::new(used, now.max(self.empty_at()))
    }

    /// Returns the time at which the bucket will be empty, rounded up.
    pub const fn empty_at(&self) -> Timestamp {
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

    fn quota(text: &str) -> BucketQuota {
        match text.parse() {
            Ok(Limit::Bucket { rate, capacity }) => BucketQuota::new(rate, capacity).expect(text),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    /// Returns the number of single units admitted at each instant.
    fn admitted(quota: BucketQuota, bucket: &mut Bucket, now: Timestamp) -> u64 {
        let mut admitted = 0;
        while bucket.earliest(quota, now, 1, None) == EarliestStart::at(now) {
            bucket.take(quota, now, Slack::NONE, 1);
            admitted += 1;
        }
        admitted
    }

    #[test]
    fn burst_then_steady() {
        let (quota, mut bucket) = (quota("10/s burst 3"), Bucket::default());
        assert_eq!(admitted(quota, &mut bucket, at(0)), 3);
        assert_eq!(bucket.earliest(quota, at(0), 1, None), EarliestStart::at(at(100)));
        assert_eq!(bucket.earliest(quota, at(0), 3, None), EarliestStart::at(at(300)));
        assert_eq!(bucket.earliest(quota, at(0), 4, None), EarliestStart::Never { limit: 0 });
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
        assert_eq!(bucket.earliest(quota, at(0), 1, None), EarliestStart::at(at(40)));
    }

    #[test]
    fn only_what_has_not_drained_is_given_back() {
        let (quota, mut bucket) = (quota("1/s burst 1"), Bucket::default());
        let first = bucket.take(quota, at(0), Slack::NONE, 1);
        bucket.take(quota, at(5_000), Slack::NONE, 1);
        bucket.give_back(quota, first, 1, at(5_000));
        assert_eq!(admitted(quota, &mut bucket, at(5_000)), 0);

        let second = bucket.take(quota, at(10_000), Slack::NONE, 1);
        bucket.give_back(quota, second, 1, at(10_250));
        assert_eq!(bucket.earliest(quota, at(10_250), 1, None), EarliestStart::at(at(10_250)));
    }

    #[test]
    fn an_amount_that_drained_sooner_because_of_others_is_not_given_back() {
        let (quota, mut bucket) = (quota("1/s burst 2"), Bucket::default());
        let (first, second) =
            (bucket.take(quota, at(0), Slack::NONE, 1), bucket.take(quota, at(0), Slack::NONE, 1));
        bucket.give_back(quota, first, 1, at(0));
        bucket.take(quota, at(1_000), Slack::NONE, 1);
        bucket.give_back(quota, second, 1, at(1_000));
        assert_eq!(admitted(quota, &mut bucket, at(1_000)), 1, "one beside the one at 1 s");
    }

    #[test]
    fn an_amount_that_drains_before_a_booking_makes_no_room_beside_it() {
        let (quota, mut bucket) = (quota("1/s burst 1"), Bucket::default());
        let first = bucket.take(quota, at(0), Slack::NONE, 1);
        bucket.take(quota, at(10_000), Slack::NONE, 1);
        bucket.give_back(quota, first, 1, at(0));
        assert_eq!(admitted(quota, &mut bucket, at(10_000)), 0);
    }

    #[test]
    fn a_capacity_is_not_rounded_up() {
        let (quota, bucket) = (quota("1.00 USD/day burst 1.0000005"), Bucket::default());
        assert_eq!(quota.capacity(), 1_000_000_000);
        assert_eq!(
            bucket.earliest(quota, at(0), 1_000_000_001, None),
            EarliestStart::Never { limit: 0 }
        );
    }

    #[test]
    fn money_is_metered_in_micro_dollars() {
        let quota = quota("5.00 USD/day burst 5.00");
        let mut bucket = Bucket::default();
        bucket.take(quota, at(0), Slack::NONE, 260_600);
        assert_eq!(bucket.reading(quota, at(0)).used, 261_000);
        assert_eq!(
            bucket.earliest(quota, at(0), 5_000_000_000 - 261_000, None),
            EarliestStart::at(at(0))
        );
    }

    #[test]
    fn extremes_do_not_overflow() {
        let quota = quota("1/366d burst 9007199254740991");
        let mut bucket = Bucket::default();
        let charge = bucket.take(quota, Timestamp::MAX, Slack::NONE, u64::MAX);
        bucket.give_back(quota, charge, u64::MAX, at(0));
        let _ = bucket.earliest(quota, at(0), quota.capacity(), None);
        let _ = (bucket.reading(quota, at(0)), quota.drained_in());
    }

    fn slack(millis: u64, owner: u128) -> Slack {
        Slack { span: Span::from_millis(millis), owner: Some(Id::from_bits(owner)) }
    }

    fn start_of(bucket: &Bucket, quota: BucketQuota, owner: Option<u128>) -> u64 {
        match bucket.earliest(quota, at(0), 1, owner.map(Id::from_bits)) {
            EarliestStart::At { start, .. } => start.since(at(0)).as_micros() / 1_000,
            never => panic!("{never:?}"),
        }
    }

    #[test]
    fn the_slack_is_between_owners_and_not_between_the_bookings_of_one() {
        let (quota, mut bucket) = (quota("25/s smooth"), Bucket::default());
        for start in [0, 40, 80] {
            assert_eq!(start_of(&bucket, quota, Some(1)), start);
            bucket.take(quota, at(start), slack(10, 1), 1);
        }
        assert_eq!(start_of(&bucket, quota, Some(1)), 120);
        assert_eq!((start_of(&bucket, quota, Some(2)), start_of(&bucket, quota, None)), (130, 130));
        bucket.take(quota, at(130), slack(20, 2), 1);
        assert_eq!(
            (start_of(&bucket, quota, Some(1)), start_of(&bucket, quota, Some(2))),
            (190, 170)
        );
    }

    #[test]
    fn every_other_change_of_a_bucket_ends_a_run() {
        let quota = quota("25/s burst 2");
        let run = || {
            let mut bucket = Bucket::default();
            bucket.take(quota, at(0), slack(10, 1), 1);
            let charge = bucket.take(quota, at(0), slack(10, 1), 1);
            assert_eq!(
                (start_of(&bucket, quota, Some(1)), start_of(&bucket, quota, None)),
                (40, 50)
            );
            (bucket, charge)
        };
        let (mut bucket, _) = run();
        bucket.take(quota, at(50), Slack::NONE, 1);
        assert_eq!(start_of(&bucket, quota, Some(1)), 90);
        let (mut bucket, charge) = run();
        bucket.give_back(quota, charge, 1, at(0));
        assert_eq!(start_of(&bucket, quota, Some(1)), 10);
        let (mut bucket, _) = run();
        bucket.fill_until(at(500));
        assert_eq!(start_of(&bucket, quota, Some(1)), 460);
        let (bucket, _) = run();
        assert_eq!(start_of(&bucket.without_run(), quota, Some(1)), 50);
    }
}
