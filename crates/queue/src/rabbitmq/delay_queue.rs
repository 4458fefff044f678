//! [`DelayQueue`]: the delay queues, in which RabbitMQ keeps messages until their time-to-live
//! ends.

use lapin::types::{AMQPValue, FieldTable};
use sluicegate_core::Span;

use crate::broker::DeliveryDelay;

/// Shortest delay queue on the way to an instant. With shorter ones, all messages that are due at
/// the same time would make many hops in the last moments.
const STEP_MIN: Span = Span::from_millis(256);
/// Time before its due time at which a message leaves its last delay queue. Moving a message takes
/// time, and the timer of a consumer is more exact than that of the broker.
const LEAD: Span = Span::from_millis(256);
/// Time before its due time within which a consumer holds a message.
pub(super) const HOLD_MAX: Span = Span::from_millis(512);
/// Longest delay queue, about 25 days; later instants take several hops.
pub(super) const STEP_MAX: Span = Span::from_millis(1 << 31);

/// A delay queue: all its messages wait equally long, and then move to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DelayQueue {
    /// A fixed delay, with the name that users expect and may have declared themselves.
    Fixed(Span),
    /// A part of the delay until an instant, a power of two.
    Step(Span),
}

impl DelayQueue {
    /// Returns the delay queue for a delay, or `None` if the message is due.
    pub(super) fn of(delay: DeliveryDelay) -> Option<Self> {
        match delay {
            DeliveryDelay::None => None,
            DeliveryDelay::Fixed(span) => Some(Self::Fixed(span)),
            DeliveryDelay::Until { left, .. } => {
                Some(Self::Step(Span::from_millis(step_millis(left)?)))
            }
        }
    }

    /// Returns all delay queues for instants, the shortest first.
    pub(super) fn steps() -> Vec<Self> {
        Self::Step(STEP_MAX).and_below()
    }

    /// Returns this delay queue and all shorter ones that a message may need after it.
    pub(super) fn and_below(self) -> Vec<Self> {
        let Self::Step(longest) = self else { return vec![self] };
        let steps = (0..u64::BITS).map(|bit| Span::from_millis(1 << bit));
        let steps = steps.skip_while(|step| *step < STEP_MIN).take_while(|step| *step <= longest);
        steps.map(Self::Step).collect()
    }

    /// Returns the length of the delay.
    pub(super) const fn span(self) -> Span {
        let (Self::Fixed(span) | Self::Step(span)) = self;
        span
    }

    /// Returns the name of the delay queue for a target.
    pub(super) fn queue(self, target: &str) -> String {
        match self {
            Self::Fixed(span) => format!("{target}-delayed-{}ms", millis(span)),
            Self::Step(span) => format!("{target}-rung-{}ms", millis(span)),
        }
    }

    /// Returns the arguments for declaring the queue. A queue for a fixed delay has only the first
    /// three, because other programs declare it, too. `x-expires` is not set: it would delete the
    /// messages in an unused queue.
    ///
    /// Only this program uses the queues for instants, and a message passes several of them. So
    /// they have the only queue type that keeps a message until its target has confirmed it.
    pub(super) fn arguments(self, target: &str) -> FieldTable {
        let mut arguments = FieldTable::default();
        let ttl = i64::try_from(millis(self.span())).unwrap_or(i64::MAX);
        arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
        let mut text = |name: &str, value: &str| {
            arguments.insert(name.into(), AMQPValue::LongString(value.into()));
        };
        text("x-dead-letter-exchange", "");
        text("x-dead-letter-routing-key", target);
        if let Self::Step(_) = self {
            text("x-queue-type", "quorum");
            text("x-dead-letter-strategy", "at-least-once");
            text("x-overflow", "reject-publish");
        }
        arguments
    }
}

/// Returns the name of the queue in which messages for `target` wait for a fixed delay.
pub fn delayed_queue(target: &str, delay: Span) -> String {
    DelayQueue::Fixed(delay).queue(target)
}

/// Returns the length of the longest delay queue that does not end after the instant, in
/// milliseconds.
fn step_millis(left: Span) -> Option<u64> {
    let left = left.as_micros().saturating_sub(LEAD.as_micros()).min(STEP_MAX.as_micros());
    (left >= STEP_MIN.as_micros()).then(|| 1 << (left / 1_000).ilog2())
}

/// Converts to milliseconds, rounded up so that a delay is never too short.
const fn millis(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::Timestamp;

    fn until(millis: u64) -> Option<DelayQueue> {
        DelayQueue::of(DeliveryDelay::Until { at: Timestamp::MAX, left: Span::from_millis(millis) })
    }

    #[test]
    fn a_fixed_delay_has_a_queue_of_its_own() {
        let fixed = DelayQueue::of(DeliveryDelay::Fixed(Span::from_secs(30))).expect("it waits");
        assert_eq!(fixed.queue("gemini"), "gemini-delayed-30000ms");
        assert_eq!(fixed.and_below(), [fixed]);
        assert_eq!(DelayQueue::of(DeliveryDelay::None), None);
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
        let held = HOLD_MAX.as_micros() / 1_000;
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
        let arguments = DelayQueue::Fixed(Span::from_secs(30)).arguments("gemini");
        let names: Vec<_> = arguments.inner().keys().map(|name| name.as_str().to_owned()).collect();
        assert_eq!(names, ["x-dead-letter-exchange", "x-dead-letter-routing-key", "x-message-ttl"]);
    }
}
