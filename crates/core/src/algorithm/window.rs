//! [`Slices`]: sums per slice of time, for rolling windows in hundredths and for calendar periods.
//!
//! A rolling window counts everything in one slice as if it came at the end of the slice. So it
//! errs only on the strict side: capacity returns at most one slice, W/100, late.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{EarliestStart, Reading};
use crate::limit::Boundaries;
use crate::time::{EXACT_MAX, Span, Timestamp};

/// Limit of a rolling window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowQuota {
    /// Maximum amount in any interval of length `window`.
    pub limit: u64,
    /// Length of the window.
    pub window: Span,
}

impl WindowQuota {
    /// Returns the end of the slice that contains `at`.
    pub const fn slice(self, at: Timestamp) -> Timestamp {
        // Windows last at least a millisecond, so a slice lasts at least ten microseconds.
        let grain = self.window.as_micros() / 100;
        Timestamp::from_micros(at.as_micros().div_ceil(grain) * grain)
    }
}

/// Limit per calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CalendarQuota {
    /// Maximum amount in one period.
    pub limit: u64,
    /// Beginnings of the periods around now.
    pub boundaries: Boundaries,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Slice {
    end: Timestamp,
    sum: u64,
}

/// Sums by the end of their slice, oldest first.
///
/// A rolling window has about a hundred, plus one for each slice that is booked ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slices {
    slices: SmallVec<[Slice; 1]>,
    total: u64,
}

impl Slices {
    /// Returns the first instant from `from` on at which `need` more fits. Every later instant
    /// fits, too.
    ///
    /// O(1) while there is room, otherwise O(slices that have to expire).
    pub fn earliest(&self, quota: WindowQuota, from: Timestamp, need: u64) -> EarliestStart {
        let Some(spare) = quota.limit.checked_sub(need) else {
            return EarliestStart::Never { limit: 0 };
        };
        let mut start = from;
        let mut rest = self.total;
        for slice in &self.slices {
            if rest <= spare {
                break;
            }
            rest -= slice.sum;
            start = start.max(slice.end + quota.window);
        }
        EarliestStart::at(start)
    }

    /// Returns the first instant from `from` on at which `need` fits into one calendar period, at
    /// least `slack` before the period ends.
    ///
    /// Later periods may be fully booked, so not every later instant fits.
    pub fn earliest_in_calendar(
        &self,
        quota: CalendarQuota,
        from: Timestamp,
        need: u64,
        slack: Span,
    ) -> EarliestStart {
        let Some(spare) = quota.limit.checked_sub(need) else {
            return EarliestStart::Never { limit: 0 };
        };
        let mut start = from;
        // After the last known boundary there are no bookings.
        while let Some((_, end)) = quota.boundaries.period(start) {
            if self.sum(end) <= spare && start + slack < end {
                break;
            }
            start = end;
        }
        EarliestStart::at(start)
    }

    fn sum(&self, end: Timestamp) -> u64 {
        self.slices.iter().rev().find(|slice| slice.end == end).map_or(0, |slice| slice.sum)
    }

    /// Adds to the slice that ends at `end`. Returns the amount added, which is smaller than
    /// `amount` only if debt has reached the largest number that can be counted.
    pub fn take(&mut self, end: Timestamp, amount: u64) -> u64 {
        let amount = amount.min(EXACT_MAX.saturating_sub(self.total));
        if amount == 0 {
            return 0;
        }
        self.total += amount;
        let place = match self.slices.last_mut() {
            Some(last) if last.end == end => {
                last.sum += amount;
                return amount;
            }
            Some(last) if last.end > end => self.slices.partition_point(|slice| slice.end < end),
            _ => self.slices.len(),
        };
        match self.slices.get_mut(place) {
            Some(slice) if slice.end == end => slice.sum += amount,
            _ => self.slices.insert(place, Slice { end, sum: amount }),
        }
        amount
    }

    /// Gives back up to `amount` from the slice that ends at `end`.
    pub fn give_back(&mut self, end: Timestamp, amount: u64) {
        let place = self.slices.partition_point(|slice| slice.end < end);
        let Some(slice) = self.slices.get_mut(place).filter(|slice| slice.end == end) else {
            return;
        };
        let amount = amount.min(slice.sum);
        slice.sum -= amount;
        self.total -= amount;
        if slice.sum == 0 {
            self.slices.remove(place);
        }
    }

    /// Gives back up to `amount` from the slices that end by `until`, the oldest first.
    pub fn refund(&mut self, until: Timestamp, mut amount: u64) {
        while amount > 0
            && let Some(&Slice { end, sum }) = self.slices.first()
            && end <= until
        {
            self.give_back(end, amount);
            amount = amount.saturating_sub(sum);
        }
    }

    /// Removes the slices that ended a `window` or more before `now`.
    pub fn purge(&mut self, window: Span, now: Timestamp) {
        let gone = self.slices.iter().take_while(|slice| slice.end + window <= now).count();
        if gone > 0 {
            self.total -= self.slices.drain(..gone).map(|slice| slice.sum).sum::<u64>();
        }
    }

    /// Returns the usage in the window at `now` and the time at which the oldest slice expires.
    pub fn reading(&self, quota: WindowQuota, now: Timestamp) -> Reading {
        let mut used = self.total;
        for slice in &self.slices {
            if slice.end + quota.window > now {
                return Reading::new(used, slice.end + quota.window);
            }
            used -= slice.sum;
        }
        Reading::new(0, now)
    }

    /// Returns the usage in the period that contains `now` and the end of that period.
    pub fn reading_in_calendar(&self, quota: CalendarQuota, now: Timestamp) -> Reading {
        let end = quota.boundaries.period(now).map_or(now, |(_, end)| end);
        Reading::new(self.sum(end), end)
    }

    /// Returns the same total, all in the newest slice.
    pub fn merged(&self) -> Self {
        let mut merged = Self::default();
        if let Some(last) = self.last() {
            merged.take(last, self.total);
        }
        merged
    }

    /// Returns the end of the newest slice.
    pub fn last(&self) -> Option<Timestamp> {
        self.slices.last().map(|slice| slice.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: WindowQuota = WindowQuota { limit: 100, window: Span::from_secs(100) };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn capacity_returns_at_most_a_hundredth_late() {
        let mut slices = Slices::default();
        slices.take(QUOTA.slice(Timestamp::from_millis(1_000_001)), 60);
        slices.take(QUOTA.slice(Timestamp::from_millis(1_050_500)), 40);
        assert_eq!(slices.earliest(QUOTA, at(1_060), 1), EarliestStart::at(at(1_101)));
        assert_eq!(slices.earliest(QUOTA, at(1_060), 61), EarliestStart::at(at(1_151)));
        assert_eq!(slices.earliest(QUOTA, at(1_101), 60), EarliestStart::at(at(1_101)));
        assert_eq!(slices.earliest(QUOTA, at(1_060), 101), EarliestStart::Never { limit: 0 });
        assert_eq!(slices.reading(QUOTA, at(1_101)), Reading::new(40, at(1_151)));
    }

    #[test]
    fn a_slice_boundary_belongs_to_the_slice_that_it_ends() {
        assert_eq!(QUOTA.slice(at(7)), at(7));
        assert_eq!(QUOTA.slice(Timestamp::from_micros(7_000_001)), at(8));
    }

    #[test]
    fn an_amount_taken_can_be_given_back() {
        let mut slices = Slices::default();
        for end in [3, 1, 2, 3] {
            slices.take(at(end), 10);
        }
        assert_eq!(slices.total, 40);
        slices.give_back(at(3), 15);
        slices.give_back(at(2), 99);
        slices.give_back(at(9), 99);
        assert_eq!((slices.total, slices.slices.len()), (15, 2));
        slices.purge(Span::from_secs(1), at(2));
        assert_eq!(slices.total, 5);
    }

    #[test]
    fn a_calendar_period_starts_from_nothing() {
        let quota = CalendarQuota { limit: 10, boundaries: Boundaries([0, 100, 200].map(at)) };
        let mut slices = Slices::default();
        slices.take(at(100), 10);
        let earliest = |slices: &Slices, from, need, slack| {
            slices.earliest_in_calendar(quota, from, need, Span::from_secs(slack))
        };
        assert_eq!(earliest(&slices, at(50), 1, 0), EarliestStart::at(at(100)));
        slices.take(at(200), 7);
        assert_eq!(earliest(&slices, at(50), 3, 0), EarliestStart::at(at(100)));
        assert_eq!(earliest(&slices, at(50), 4, 0), EarliestStart::at(at(200)));
        assert_eq!(earliest(&slices, at(50), 11, 0), EarliestStart::Never { limit: 0 });
        assert_eq!(slices.reading_in_calendar(quota, at(150)), Reading::new(7, at(200)));
    }

    #[test]
    fn a_booking_does_not_reach_over_the_end_of_a_period() {
        let quota = CalendarQuota { limit: 10, boundaries: Boundaries([0, 100, 200].map(at)) };
        let slices = Slices::default();
        let start = slices.earliest_in_calendar(quota, at(95), 1, Span::from_secs(5));
        assert_eq!(start, EarliestStart::at(at(100)));
        let start = slices.earliest_in_calendar(quota, at(94), 1, Span::from_secs(5));
        assert_eq!(start, EarliestStart::at(at(94)));
    }
}
