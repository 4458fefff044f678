//! [`StoreClock`]: bounds of the store's clock, learned from the times in its answers.

use crate::time::{Span, Timestamp};

/// Two clocks drift apart by at most one part in this many: 0.1 %. Quartz stays within a tenth of
/// that, and a clock that NTP is correcting within a half.
const DRIFT: u64 = 1_000;

/// Bounds of the store's clock, as seen from the monotonic clock of this node.
///
/// The store decides after a question is sent and before its answer is received. So when an answer
/// is received, the store's clock shows at least the time of the decision, and at most a round trip
/// more. Earlier answers give bounds too, which widen with the drift of the clocks. All of them hold
/// at the same time: together they are about as narrow as the shortest of the last round trips,
/// however long the very last one took.
///
/// An answer that contradicts the bounds shows that a clock was set, or that another server has
/// taken over. Only the bounds of that answer are kept then.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreClock(Option<Bounds>);

/// At `seen` by the clock of this node, the clock of the store shows `earliest` to `latest`.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    seen: Timestamp,
    earliest: Timestamp,
    latest: Timestamp,
}

impl StoreClock {
    /// Adds an answer that was asked for at `asked` and received at `received`, by the clock of this
    /// node, and decided at `at`, by the clock of the store.
    pub fn learn(&mut self, asked: Timestamp, at: Timestamp, received: Timestamp) {
        let trip = received.since(asked);
        let latest = at + trip + drift(trip);
        let answer = Bounds { seen: received, earliest: at, latest };
        let bounds = match self.0 {
            None => answer,
            Some(known) => {
                let now = known.seen.max(received);
                let (known, answer) = (known.advanced_to(now), answer.advanced_to(now));
                known.intersection(&answer).unwrap_or(answer)
            }
        };
        self.0 = Some(bounds);
    }

    /// Returns the distance between the bounds at the last answer, or `None` before the first.
    pub fn uncertainty(&self) -> Option<Span> {
        self.0.map(|bounds| bounds.latest.since(bounds.earliest))
    }

    /// Returns the first time of this node's clock at which the store's clock may show `start`, or
    /// `None` before the first answer.
    pub fn earliest(&self, start: Timestamp) -> Option<Timestamp> {
        let bounds = self.0?;
        let until_start = start.since(bounds.latest);
        Some(bounds.seen + until_start.saturating_sub(drift(until_start)))
    }

    /// Returns the interval of this node's clock that surely lies in `[start, end]` by the clock of
    /// the store, or `None` if there is none: the bounds are too far apart, or it is too late.
    pub fn interval(&self, start: Timestamp, end: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let Bounds { seen, earliest, latest } = self.0?;
        if end < latest {
            return None;
        }
        let (until_start, until_end) = (start.since(earliest), end.since(latest));
        let opens = seen + until_start + drift(until_start);
        let closes = seen + until_end.saturating_sub(drift(until_end));
        (opens <= closes).then_some((opens, closes))
    }
}

impl Bounds {
    fn advanced_to(self, now: Timestamp) -> Self {
        let passed = now.since(self.seen);
        let drift = drift(passed);
        Self {
            seen: now,
            earliest: self.earliest + passed.saturating_sub(drift),
            latest: self.latest + passed + drift,
        }
    }

    fn intersection(&self, other: &Self) -> Option<Self> {
        let earliest = self.earliest.max(other.earliest);
        let latest = self.latest.min(other.latest);
        (earliest <= latest).then_some(Self { seen: self.seen, earliest, latest })
    }
}

/// Returns the time by which two clocks may drift apart within `span`, by either of them.
const fn drift(span: Span) -> Span {
    Span::from_micros(span.as_micros().div_ceil(DRIFT - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time of this node, in milliseconds.
    fn node(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    /// Time of the store at the same moment: it is far ahead.
    fn store(millis: u64) -> Timestamp {
        Timestamp::from_millis(5_000_000 + millis)
    }

    fn millis(span: Span) -> u64 {
        span.as_micros() / 1_000
    }

    /// The interval of `[start, end]`, in milliseconds of this node.
    fn interval(clock: &StoreClock, start: u64, end: u64) -> Option<(u64, u64)> {
        let (opens, closes) = clock.interval(store(start), store(end))?;
        Some((millis(opens.since(node(0))), millis(closes.since(node(0)))))
    }

    #[test]
    fn one_answer_leaves_the_interval_without_its_round_trip() {
        let mut clock = StoreClock::default();
        assert_eq!((clock.uncertainty(), interval(&clock, 34, 54)), (None, None));
        // Asked at 0, decided at 4, received at 12.
        clock.learn(node(0), store(4), node(12));
        assert_eq!(clock.uncertainty().map(millis), Some(12));
        assert_eq!(interval(&clock, 34, 54), Some((42, 49)));
        assert_eq!(interval(&clock, 34, 44), None, "shorter than the round trip");
        assert_eq!(interval(&clock, 0, 8), None, "over");
    }

    #[test]
    fn a_slow_answer_costs_nothing_after_a_quick_one() {
        let mut clock = StoreClock::default();
        clock.learn(node(0), store(1), node(2));
        clock.learn(node(10), store(55), node(60));
        assert_eq!(clock.uncertainty().map(millis), Some(2));
        assert_eq!(interval(&clock, 70, 80), Some((71, 78)));
    }

    #[test]
    fn old_bounds_widen_until_new_ones_are_narrower() {
        let mut clock = StoreClock::default();
        clock.learn(node(0), store(1), node(2));
        clock.learn(node(1_000), store(1_020), node(1_050));
        assert_eq!(clock.uncertainty().map(millis), Some(4), "1 ms to either side");
        clock.learn(node(60_000), store(60_020), node(60_050));
        assert_eq!(clock.uncertainty().map(millis), Some(50));
    }

    #[test]
    fn a_clock_that_was_set_is_learned_again() {
        for set in [store(40), store(40_000)] {
            let mut clock = StoreClock::default();
            clock.learn(node(20_000), store(20_001), node(20_002));
            clock.learn(node(20_010), set, node(20_020));
            assert_eq!(clock.uncertainty().map(millis), Some(10), "{set}");
        }
    }

    #[test]
    fn answers_may_be_added_in_another_order_than_they_were_received() {
        let mut clock = StoreClock::default();
        clock.learn(node(10), store(11), node(14));
        clock.learn(node(0), store(3), node(5));
        assert_eq!(clock.uncertainty().map(millis), Some(3));
        assert_eq!(interval(&clock, 20, 40), Some((22, 38)));
    }
}
