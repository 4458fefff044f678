//! The exact sliding-window log. [`Log`] stores the time of each request, so at no instant have
//! more than `limit` requests happened in the last `window`.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{EarliestStart, Reading};
use crate::time::{Span, Timestamp};

/// Limit of one window of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogQuota {
    /// Maximum number of requests in any interval of length `window`.
    pub limit: u64,
    /// Length of the window.
    pub window: Span,
}

/// Maximum number of entries that one charge may write. A log stores every request separately.
pub const ENTRIES_PER_CHARGE_MAX: u64 = 1_000;

/// The scores of a log: one instant per request, oldest first, 8 bytes each.
///
/// Two scores fit without an allocation. Scores that have left the longest window are only marked,
/// and removed when they are more than half. So a purge moves each score at most once on average.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    scores: SmallVec<[Timestamp; 2]>,
    dead: u32,
}

impl Log {
    fn live(&self) -> &[Timestamp] {
        &self.scores[self.dead as usize..]
    }

    /// Returns the first instant from `from` on at which `need` more fits under every quota.
    ///
    /// With k = limit − need + 1, this is the time at which the k-th newest entry expires,
    /// including entries booked for the future. Every later instant fits, too. O(quotas).
    pub fn earliest(&self, quotas: &[LogQuota], from: Timestamp, need: u64) -> EarliestStart {
        let scores = self.live();
        let mut earliest = EarliestStart::at(from);
        for (index, quota) in quotas.iter().enumerate() {
            let Some(spare) = quota.limit.checked_sub(need) else {
                return EarliestStart::Never { limit: index };
            };
            let spare = usize::try_from(spare).unwrap_or(usize::MAX);
            let Some(blocking) = scores.len().checked_sub(spare.saturating_add(1)) else {
                continue;
            };
            let start = scores[blocking] + quota.window;
            match earliest {
                EarliestStart::At { start: other, .. } if start <= other => {}
                _ => earliest = EarliestStart::At { start, limit: index },
            }
        }
        earliest
    }

    /// Writes `amount` entries at `at`. O(1) unless there are bookings for a later time.
    pub fn take(&mut self, at: Timestamp, amount: u64) {
        let amount = usize::try_from(amount).unwrap_or(usize::MAX);
        if self.scores.last().is_none_or(|&last| last <= at) {
            // Nearly every charge is one entry.
            if amount == 1 {
                self.scores.push(at);
            } else {
                self.scores.extend(std::iter::repeat_n(at, amount));
            }
        } else {
            let place = self.dead as usize + self.live().partition_point(|&score| score <= at);
            self.scores.insert_many(place, std::iter::repeat_n(at, amount));
        }
    }

    /// Removes up to `amount` of the entries written at `at`. Entries that have expired are
    /// ignored.
    pub fn give_back(&mut self, at: Timestamp, amount: u64) {
        let first = self.dead as usize + self.live().partition_point(|&score| score < at);
        let here = self.scores[first..].iter().take_while(|&&score| score == at).count();
        let amount = here.min(usize::try_from(amount).unwrap_or(usize::MAX));
        self.scores.drain(first..first + amount);
    }

    /// Removes up to `amount` of the entries up to `now`, the oldest first.
    pub fn refund(&mut self, now: Timestamp, amount: u64) {
        let first = self.dead as usize;
        let there = self.live().partition_point(|&score| score <= now);
        let amount = there.min(usize::try_from(amount).unwrap_or(usize::MAX));
        self.scores.drain(first..first + amount);
    }

    /// Removes the entries that have left the longest window of `quotas` by `now`.
    pub fn purge(&mut self, quotas: &[LogQuota], now: Timestamp) {
        let Some(window) = quotas.iter().map(|quota| quota.window).max() else {
            return;
        };
        let Some(&oldest) = self.live().first() else {
            return;
        };
        if oldest + window > now {
            return;
        }
        let gone = leading(self.live(), |score| score + window <= now);
        let dead = self.dead as usize + gone;
        if dead * 2 > self.scores.len() {
            self.scores.drain(..dead);
            self.dead = 0;
            if self.scores.spilled() && self.scores.len() * 4 < self.scores.capacity() {
                self.shrink();
            }
        } else {
            self.dead = u32::try_from(dead).expect("less than half of a log in memory");
        }
    }

    fn shrink(&mut self) {
        let mut smaller = SmallVec::with_capacity(self.scores.len() * 2);
        smaller.extend_from_slice(&self.scores);
        self.scores = smaller;
    }

    /// Returns the number of entries in the window at `now` and the time at which the oldest of
    /// them expires. O(log n).
    pub fn reading(&self, quota: LogQuota, now: Timestamp) -> Reading {
        let scores = self.live();
        let first = match scores.first() {
            Some(&oldest) if oldest + quota.window > now => 0,
            _ => scores.partition_point(|&score| score + quota.window <= now),
        };
        let reset = scores.get(first).map_or(now, |&oldest| oldest + quota.window);
        Reading::new((scores.len() - first) as u64, reset)
    }

    /// Returns the time of the newest entry.
    pub fn last(&self) -> Option<Timestamp> {
        self.live().last().copied()
    }

    /// Returns every entry that is still stored, oldest first.
    pub fn scores(&self) -> &[Timestamp] {
        self.live()
    }
}

/// Returns the number of scores at the front that have expired. Usually these are few, so it
/// doubles its steps from the front before it bisects: O(log expired), and only that part of a long
/// log is read.
fn leading(scores: &[Timestamp], left: impl Fn(Timestamp) -> bool) -> usize {
    let mut reach = 1;
    while reach < scores.len() && left(scores[reach - 1]) {
        reach *= 2;
    }
    let reach = reach.min(scores.len());
    scores[..reach].partition_point(|&score| left(score))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_scores_are_counted_as_by_a_search_of_all() {
        for len in 0..70_u64 {
            let scores: Vec<_> = (0..len).map(Timestamp::from_micros).collect();
            for gone in 0..=len {
                let left = |score: Timestamp| score < Timestamp::from_micros(gone);
                assert_eq!(leading(&scores, left) as u64, gone, "{gone} of {len}");
            }
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_000 + seconds)
    }

    fn quota(limit: u64, seconds: u64) -> LogQuota {
        LogQuota { limit, window: Span::from_secs(seconds) }
    }

    fn log(scores: &[u64]) -> Log {
        let mut log = Log::default();
        for &score in scores {
            log.take(at(score), 1);
        }
        log
    }

    fn start(log: &Log, quotas: &[LogQuota], now: u64, need: u64) -> Option<u64> {
        match log.earliest(quotas, at(now), need) {
            EarliestStart::At { start, .. } => Some(start.as_micros() / 1_000_000 - 1_000),
            _ => None,
        }
    }

    #[test]
    fn an_entry_leaves_exactly_one_window_later() {
        let full = log(&[0, 3]);
        assert_eq!(start(&full, &[quota(2, 10)], 5, 1), Some(10));
        assert_eq!(start(&full, &[quota(2, 10)], 10, 1), Some(10));
        assert_eq!(start(&full, &[quota(2, 10)], 5, 2), Some(13));
        assert_eq!(start(&full, &[quota(2, 10)], 5, 3), None);
    }

    #[test]
    fn the_tightest_window_binds() {
        let log = log(&[0, 1, 2]);
        let quotas = [quota(2, 5), quota(3, 100)];
        assert_eq!(log.earliest(&quotas, at(3), 1), EarliestStart::At { start: at(100), limit: 1 },);
        assert_eq!(
            log.earliest(&quotas[..1], at(3), 1),
            EarliestStart::At { start: at(6), limit: 0 }
        );
    }

    #[test]
    fn entries_of_the_future_count() {
        let booked = log(&[50]);
        assert_eq!(start(&booked, &[quota(1, 10)], 45, 1), Some(60));
        assert_eq!(start(&booked, &[quota(1, 10)], 0, 1), Some(60));
    }

    #[test]
    fn scores_stay_sorted_whatever_the_order_of_writes() {
        let mut log = log(&[5, 1, 9, 3]);
        log.take(at(4), 2);
        let sorted: Vec<_> = [1, 3, 4, 4, 5, 9].map(at).into();
        assert_eq!(log.scores(), sorted);
        log.give_back(at(4), 5);
        log.give_back(at(7), 1);
        assert_eq!(log.scores(), [1, 3, 5, 9].map(at));
    }

    #[test]
    fn purging_forgets_what_left_and_gives_memory_back() {
        let mut log = Log::default();
        for second in 0..10_000 {
            log.take(at(second), 1);
        }
        let quotas = [quota(20_000, 5_000), quota(20_000, 10_000)];
        log.purge(&quotas, at(10_000 + 4_000));
        assert_eq!(log.scores().len(), 5_999);
        log.purge(&quotas, at(10_000 + 9_000));
        assert_eq!(log.scores().len(), 999);
        assert!(log.scores.capacity() <= 4 * 999, "{}", log.scores.capacity());
    }

    #[test]
    fn a_reading_contains_the_usage_and_the_time_at_which_the_oldest_expires() {
        let log = log(&[0, 4, 8]);
        let reading = log.reading(quota(5, 6), at(8));
        assert_eq!(reading, Reading::new(2, at(10)));
        assert_eq!(log.reading(quota(5, 6), at(14)), Reading::new(0, at(14)));
    }
}
