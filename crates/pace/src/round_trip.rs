//! [`RoundTrips`]: measures how long the store takes to answer, and derives lead and slack.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_core::query::Pacing;
use sluicegate_core::time::Span;

/// Number of measurements that are remembered.
const SAMPLES: usize = 128;
/// Number of the largest measurements that are ignored: a retry after a lost packet says nothing
/// about the next call.
const IGNORED: usize = 1;
/// Round trip that is assumed before the first measurement: longer than most.
const ASSUMED: Span = Span::from_millis(50);
/// Time that this node may need to wake up.
const WAKE_UP: Span = Span::from_millis(3);
/// Shortest slack: a shorter one saves less than 1 % of a limit per second.
const SLACK_MIN: Span = Span::from_millis(10);

/// Measurements of the round trips to the store, and of how late work starts after its window has
/// opened.
#[derive(Debug, Default)]
pub struct RoundTrips(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    trips: Ring,
    late: Ring,
    /// Largest lateness that the slack covers, if it is more than the shortest slack.
    late_max: Span,
}

/// The last measurements, in the order of time.
#[derive(Debug, Default)]
struct Ring(VecDeque<Span>);

impl RoundTrips {
    /// Adds the time from a question to its answer.
    pub fn answered_in(&self, span: Span) {
        self.lock().trips.add(span);
    }

    /// Adds the time from the opening of a window to the start of its work.
    pub fn started_after(&self, span: Span) {
        self.lock().late.add(span);
    }

    /// Lets the slack cover a lateness of up to `late_max`, if that is more than the shortest slack.
    ///
    /// Under a bucket without room, a late start delays all later ones, so the lateness adds up until
    /// one start is left out. If the slack covers the time between two starts, nothing else is lost.
    pub(crate) fn set_late_max(&self, late_max: Span) {
        self.lock().late_max = late_max;
    }

    /// Returns true if there is a measurement.
    pub fn is_known(&self) -> bool {
        !self.lock().trips.0.is_empty()
    }

    /// Returns the times that the next question should ask for.
    ///
    /// The lead is a long round trip, so that nearly all answers come before the start. The slack
    /// also covers the time that work needs to start.
    pub fn pacing(&self) -> Pacing {
        let samples = self.lock();
        let trip = samples.trips.long().unwrap_or(ASSUMED);
        let late_max = samples.late_max.max(SLACK_MIN);
        let late = samples.late.long().unwrap_or_default().min(late_max);
        let lead = trip + WAKE_UP;
        Pacing { lead, slack: (lead + late).max(SLACK_MIN), owner: None }
    }

    fn lock(&self) -> MutexGuard<'_, Samples> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn add(&mut self, span: Span) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(span);
    }

    /// Returns a long measurement: the largest but the ignored ones, and at most a few times the
    /// middle one, so that a series of lost packets does not stop the work.
    fn long(&self) -> Option<Span> {
        let mut sorted: Vec<Span> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let middle = *sorted.get(sorted.len() / 2)?;
        let large = sorted[(sorted.len() - 1).saturating_sub(IGNORED).max(sorted.len() / 2)];
        Some(large.min(middle + middle + middle + SLACK_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Span {
        Span::from_millis(millis)
    }

    fn slack(trips: impl IntoIterator<Item = u64>) -> Span {
        let round_trips = RoundTrips::default();
        trips.into_iter().for_each(|trip| round_trips.answered_in(ms(trip)));
        round_trips.pacing().slack
    }

    #[test]
    fn slack_follows_the_round_trip() {
        assert_eq!(slack([]), ms(53), "unknown");
        assert_eq!(slack([0; 9]), ms(10), "a store in the same process");
        assert_eq!(slack([16; 9]), ms(19));
        assert_eq!(slack([50; 200]), ms(53));
    }

    #[test]
    fn a_lost_packet_is_no_round_trip_and_a_new_distance_is_learned() {
        assert_eq!(slack([10, 10, 500, 10, 10]), ms(13));
        assert_eq!(slack([10, 500, 500, 500, 10, 10, 10, 10]), ms(43), "bounded by the middle");
        assert_eq!(slack((0..128).map(|_| 2).chain((0..128).map(|_| 30))), ms(33));
    }

    #[test]
    fn a_node_that_starts_late_gets_more_slack_and_no_more_lead() {
        let round_trips = RoundTrips::default();
        round_trips.answered_in(ms(10));
        round_trips.started_after(ms(4));
        assert_eq!(round_trips.pacing(), Pacing { lead: ms(13), slack: ms(17), owner: None });
        round_trips.started_after(ms(400));
        round_trips.started_after(ms(400));
        assert_eq!(round_trips.pacing().slack, ms(23));
        // A bucket without room lets the lateness add up.
        round_trips.set_late_max(ms(40));
        assert_eq!(round_trips.pacing().slack, ms(53));
    }
}
