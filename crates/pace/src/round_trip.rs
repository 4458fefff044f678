//! [`RoundTrips`]: measures the round trip to the store and the bounds of its clock, and derives
//! the lead and the slack of turns.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_core::query::Pacing;
use sluicegate_core::store_clock::StoreClock;
use sluicegate_core::time::{Span, Timestamp};

/// Number of measurements that are remembered.
const SAMPLES: usize = 128;
/// Number of samples from which on the statistics are not computed for every call.
const MANY: usize = 32;
/// Maximum number of samples that are added before they are computed again. A request that goes at once
/// adds three, one that is booked five or more.
const BEHIND_MAX: u32 = 32;
/// Number of the largest samples that are ignored: a retry after a lost packet does not predict the
/// next call.
const IGNORED: usize = 1;
/// Assumed round trip before the first measurement. Most are shorter.
const ASSUMED: Span = Span::from_millis(50);
/// Time that this node may need to wake up.
const WAKE_UP: Span = Span::from_millis(3);
/// Minimum slack. A shorter one would save less than 1 % of a limit per second.
const SLACK_MIN: Span = Span::from_millis(10);
/// Maximum lateness that the slack covers. Covering more would cost 2 % of a limit per second, as
/// much as is lost with the few starts that are later.
const LATE_MAX: Span = Span::from_millis(20);

/// Samples of the round trip to the store, of its clock, and of the lateness with which work starts
/// after its window has opened.
#[derive(Debug, Default)]
pub struct RoundTrips(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    trips: Ring,
    late: Ring,
    clock: StoreClock,
    /// Distances between the bounds of the store's clock.
    uncertainties: Ring,
    /// Maximum lateness that the slack covers, if it is larger than [`LATE_MAX`].
    late_max: Span,
    /// Number of samples that were added in all, and the number at which `statistics` was computed.
    added: u32,
    computed_at: u32,
    statistics: Option<Statistics>,
}

/// The samples that lead and slack are derived from.
#[derive(Clone, Copy, Debug)]
struct Statistics {
    trip: Span,
    uncertainty: Span,
    late: Span,
}

/// The last measurements, in the order of time.
#[derive(Debug, Default)]
struct Ring(VecDeque<Span>);

impl RoundTrips {
    /// Records a call: when it was sent and answered, and the time of the decision by the clock of
    /// the store, if the store made one.
    pub fn answered(&self, asked: Timestamp, at: Option<Timestamp>, received: Timestamp) {
        let samples = &mut *self.lock();
        samples.added = samples.added.wrapping_add(2);
        samples.trips.add(received.since(asked));
        if let Some(at) = at {
            samples.clock.learn(asked, at, received);
            samples.uncertainties.add(samples.clock.uncertainty().unwrap_or_default());
        }
    }

    /// Returns the interval by this node's clock that is certain to lie in `[start, end]` by the
    /// clock of the store, or `None` if there is none.
    pub(crate) fn interval(
        &self,
        start: Timestamp,
        end: Timestamp,
    ) -> Option<(Timestamp, Timestamp)> {
        self.lock().clock.interval(start, end)
    }

    /// Returns the first time of this node's clock at which the store's clock may show `start`.
    pub(crate) fn earliest(&self, start: Timestamp) -> Option<Timestamp> {
        self.lock().clock.earliest(start)
    }

    /// Records the lateness of work: the time from the opening of its window to its start, or to
    /// the moment at which it turned out to be too late.
    pub fn started_after(&self, span: Span) {
        let samples = &mut *self.lock();
        samples.added = samples.added.wrapping_add(1);
        samples.late.add(span);
    }

    /// Makes the slack cover a lateness of up to `late_max`, if that is more than [`LATE_MAX`].
    ///
    /// Under a bucket without room, a late start delays all later ones, so lateness adds up until
    /// one start is skipped. If the slack covers the time between two starts, no more than that is
    /// lost.
    pub(crate) fn set_late_max(&self, late_max: Span) {
        self.lock().late_max = late_max;
    }

    /// Returns true if there is a measurement.
    pub fn is_known(&self) -> bool {
        !self.lock().trips.0.is_empty()
    }

    /// Returns the lead and the slack for the next call.
    ///
    /// The lead is a long round trip, so that nearly all answers arrive before the start. The slack
    /// covers the uncertainty about the store's clock, which is about a short round trip, and the
    /// time that work needs to start.
    pub fn pacing(&self) -> Pacing {
        let samples = &mut *self.lock();
        let Statistics { trip, uncertainty, late } = samples.statistics();
        let late = late.min(samples.late_max.max(LATE_MAX));
        let slack = (uncertainty + WAKE_UP + late).max(SLACK_MIN);
        Pacing { lead: trip + WAKE_UP, slack, owner: None }
    }

    fn lock(&self) -> MutexGuard<'_, Samples> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Samples {
    /// Returns the statistics of the samples. Once there are many, it sorts them only now and then:
    /// each request asks, and a few more samples hardly change the result.
    fn statistics(&mut self) -> Statistics {
        let behind = self.added.wrapping_sub(self.computed_at);
        let behind_max = if self.trips.0.len() < MANY { 0 } else { BEHIND_MAX };
        if let Some(known) = self.statistics.filter(|_| behind <= behind_max) {
            return known;
        }
        let computed = Statistics {
            trip: self.trips.long().unwrap_or(ASSUMED),
            uncertainty: self.uncertainties.long().unwrap_or(ASSUMED),
            late: self.late.large().unwrap_or_default(),
        };
        self.computed_at = self.added;
        *self.statistics.insert(computed)
    }
}

impl Ring {
    fn add(&mut self, span: Span) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(span);
    }

    /// Returns a large sample, but not more than about three times the median, so that a series of
    /// lost packets does not stop the work.
    fn long(&self) -> Option<Span> {
        let (middle, large) = self.middle_and_large()?;
        Some(large.min(middle + middle + middle + SLACK_MIN))
    }

    /// Returns the largest measurement but the ignored ones.
    fn large(&self) -> Option<Span> {
        self.middle_and_large().map(|(_, large)| large)
    }

    fn middle_and_large(&self) -> Option<(Span, Span)> {
        let mut sorted: Vec<Span> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let middle = sorted.len() / 2;
        let large = sorted.len().checked_sub(1)?.saturating_sub(IGNORED).max(middle);
        Some((sorted[middle], sorted[large]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Span {
        Span::from_millis(millis)
    }

    /// Measures round trips of these lengths, a second apart, and returns lead and slack in
    /// milliseconds.
    fn pacing(trips: impl IntoIterator<Item = u64>) -> (u64, u64) {
        let round_trips = RoundTrips::default();
        for (number, trip) in trips.into_iter().enumerate() {
            let asked = Timestamp::from_secs(1_000 + number as u64);
            let decided = asked + ms(trip / 2);
            round_trips.answered(asked, Some(decided), asked + ms(trip));
        }
        let Pacing { lead, slack, .. } = round_trips.pacing();
        (lead.as_micros() / 1_000, slack.as_micros() / 1_000)
    }

    #[test]
    fn lead_and_slack_follow_the_round_trip() {
        assert_eq!(pacing([]), (53, 53), "unknown");
        assert_eq!(pacing([0; 9]), (3, 10), "a store in the same process");
        assert_eq!(pacing([16; 9]), (19, 19));
        assert_eq!(pacing([50; 200]), (53, 53));
    }

    #[test]
    fn a_lost_packet_is_no_round_trip_and_a_new_distance_is_learned() {
        assert_eq!(pacing([10, 10, 500, 10, 10]), (13, 13));
        assert_eq!(pacing([10, 500, 500, 500, 10, 10, 10, 10]).0, 43, "bounded by the middle");
        assert_eq!(pacing((0..128).map(|_| 2).chain((0..128).map(|_| 30))), (33, 33));
    }

    #[test]
    fn another_distance_is_learned_although_the_samples_are_not_always_sorted() {
        let round_trips = RoundTrips::default();
        let mut at = Timestamp::from_secs(1_000);
        let mut leads = |trip: u64, count: usize| {
            for _ in 0..count {
                round_trips.answered(at, None, at + ms(trip));
                at = at + Span::from_secs(1);
                round_trips.pacing();
            }
            round_trips.pacing().lead
        };
        assert_eq!(leads(2, 200), ms(5));
        // Three times the median, and the minimum slack, at most.
        assert_eq!(leads(30, 40), ms(2 * 3 + 10 + 3));
        assert_eq!(leads(30, 128), ms(33));
        assert_eq!(leads(2, 128 + 16), ms(5), "at most 32 samples later");
    }

    #[test]
    fn a_network_with_changing_delays_needs_more_lead_and_hardly_more_slack() {
        let (lead, slack) = pacing((0..200).map(|number| [10, 14, 30, 11, 25][number % 5]));
        assert_eq!(lead, 33);
        assert!((13..=23).contains(&slack), "{slack}");
    }

    #[test]
    fn a_node_that_starts_late_gets_more_slack_and_no_more_lead() {
        let round_trips = RoundTrips::default();
        let asked = Timestamp::from_secs(1_000);
        round_trips.answered(asked, None, asked + ms(10));
        assert_eq!(round_trips.pacing(), Pacing { lead: ms(13), slack: ms(53), owner: None });
        round_trips.answered(asked, Some(asked), asked);
        let slack = || round_trips.pacing().slack;
        round_trips.started_after(ms(9));
        assert_eq!((round_trips.pacing().lead, slack()), (ms(13), ms(12)));
        round_trips.started_after(ms(400));
        round_trips.started_after(ms(400));
        assert_eq!(slack(), ms(23));
        // A bucket without room lets the lateness add up.
        round_trips.set_late_max(ms(40));
        assert_eq!(slack(), ms(43));
    }
}
