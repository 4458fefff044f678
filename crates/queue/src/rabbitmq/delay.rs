//! Queues in which messages wait until their time is over.

use lapin::types::{AMQPValue, FieldTable};
use sluicegate_core::Span;

use crate::broker::Delay;

/// The shortest rung. Shorter ones would make many steps of the last moments, in which whatever is
/// due at the same time moves together.
const RUNG_MIN: Span = Span::from_millis(256);
/// How much before its instant a message comes out of its last rung: moving takes time, and a
/// consumer's timer is more exact than the broker's.
const LEAD: Span = Span::from_millis(256);
/// What is due sooner, its consumer holds.
pub(super) const HELD: Span = Span::from_millis(512);
/// The longest, about 25 days; later instants take several of them.
pub(super) const RUNG_MAX: Span = Span::from_millis(1 << 31);

/// A queue in which all messages wait equally long, and then come to their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wait {
    /// A fixed delay: what users expect and may have declared themselves.
    Fixed(Span),
    /// A part of the way to an instant.
    Rung(Span),
}

impl Wait {
    /// Where a message has to wait; nowhere if it is due.
    pub(super) fn of(delay: Delay) -> Option<Self> {
        match delay {
            Delay::None => None,
            Delay::Fixed(span) => Some(Self::Fixed(span)),
            Delay::Until { left, .. } => Some(Self::Rung(Span::from_millis(rung(left)?))),
        }
    }

    /// It, and what a message that comes out of it may wait in next.
    pub(super) fn and_below(self) -> Vec<Self> {
        let Self::Rung(longest) = self else { return vec![self] };
        let rungs = (0..u64::BITS).map(|bit| Span::from_millis(1 << bit));
        let rungs = rungs.skip_while(|rung| *rung < RUNG_MIN).take_while(|rung| *rung <= longest);
        rungs.map(Self::Rung).collect()
    }

    /// How long.
    pub(super) const fn span(self) -> Span {
        let (Self::Fixed(span) | Self::Rung(span)) = self;
        span
    }

    pub(super) fn queue(self, target: &str) -> String {
        match self {
            Self::Fixed(span) => format!("{target}-delayed-{}ms", millis(span)),
            Self::Rung(span) => format!("{target}-rung-{}ms", millis(span)),
        }
    }

    /// What it is declared with. A fixed delay has exactly these three arguments: it is declared by
    /// others as well. `x-expires` would throw away what is parked in a queue that nobody uses.
    ///
    /// Rungs are ours alone, and many on the way of one message, so that they are of the one type
    /// that keeps a message until its target has confirmed it.
    pub(super) fn arguments(self, target: &str) -> FieldTable {
        let mut arguments = FieldTable::default();
        let ttl = i64::try_from(millis(self.span())).unwrap_or(i64::MAX);
        arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
        let mut text = |name: &str, value: &str| {
            arguments.insert(name.into(), AMQPValue::LongString(value.into()));
        };
        text("x-dead-letter-exchange", "");
        text("x-dead-letter-routing-key", target);
        if let Self::Rung(_) = self {
            text("x-queue-type", "quorum");
            text("x-dead-letter-strategy", "at-least-once");
            text("x-overflow", "reject-publish");
        }
        arguments
    }
}

/// What the queue is called in which messages for `target` wait for a fixed delay.
pub fn delayed_queue(target: &str, delay: Span) -> String {
    Wait::Fixed(delay).queue(target)
}

/// The longest rung that is not too long.
fn rung(left: Span) -> Option<u64> {
    let left = left.as_micros().saturating_sub(LEAD.as_micros()).min(RUNG_MAX.as_micros());
    (left >= RUNG_MIN.as_micros()).then(|| 1 << (left / 1_000).ilog2())
}

/// Rounded up: a delay is not shorter than it says.
const fn millis(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::Timestamp;

    fn until(millis: u64) -> Option<Wait> {
        Wait::of(Delay::Until { at: Timestamp::MAX, left: Span::from_millis(millis) })
    }

    #[test]
    fn a_fixed_delay_has_a_queue_of_its_own() {
        let fixed = Wait::of(Delay::Fixed(Span::from_secs(30))).expect("it waits");
        assert_eq!(fixed.queue("gemini"), "gemini-delayed-30000ms");
        assert_eq!(fixed.and_below(), [fixed]);
        assert_eq!(Wait::of(Delay::None), None);
    }

    #[test]
    fn an_instant_takes_the_longest_rung_that_is_not_too_long() {
        for (left, name) in [
            (511, None),
            (512, Some("t-rung-256ms")),
            (767, Some("t-rung-256ms")),
            (1_000, Some("t-rung-512ms")),
            (100_000_000, Some("t-rung-67108864ms")),
            (u64::MAX / 2_000, Some("t-rung-2147483648ms")),
        ] {
            let queue = until(left).map(|wait| wait.queue("t"));
            assert_eq!(queue.as_deref(), name, "{left}");
        }
    }

    #[test]
    fn whatever_is_not_held_has_a_rung() {
        let held = HELD.as_micros() / 1_000;
        assert_eq!((until(held - 1), until(held).is_some()), (None, true));
    }

    #[test]
    fn below_a_rung_are_all_shorter_ones() {
        let below = until(1_500).expect("it waits").and_below();
        let queues: Vec<_> = below.iter().map(|wait| wait.queue("t")).collect();
        assert_eq!(queues, ["t-rung-256ms", "t-rung-512ms", "t-rung-1024ms"]);
    }

    #[test]
    fn a_fixed_delay_has_exactly_three_arguments() {
        let arguments = Wait::Fixed(Span::from_secs(30)).arguments("gemini");
        let names: Vec<_> = arguments.inner().keys().map(|name| name.as_str().to_owned()).collect();
        assert_eq!(names, ["x-dead-letter-exchange", "x-dead-letter-routing-key", "x-message-ttl"]);
    }
}
