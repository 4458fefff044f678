//! Queues in which messages wait until their time is over.

use lapin::types::{AMQPValue, FieldTable};
use sluicegate_core::Span;

use crate::broker::Delay;

/// The shortest rung: what is due sooner, its consumer holds.
pub(super) const RUNG_MIN: Span = Span::from_millis(16);
/// The longest, about 25 days; later instants take several of them.
pub(super) const RUNG_MAX: Span = Span::from_millis(1 << 31);

/// What the queue is called in which messages for `target` wait for so long.
pub fn delayed_queue(target: &str, delay: Span) -> String {
    format!("{target}-delayed-{}ms", millis(delay))
}

/// The queue in which a message is put, and how long it stays there; none if it need not wait.
pub(super) fn queue(target: &str, delay: Delay) -> Option<(String, u64)> {
    let span = match delay {
        Delay::None => return None,
        Delay::Fixed(span) => span,
        Delay::Until { left, .. } => Span::from_millis(rung(left)?),
    };
    Some((delayed_queue(target, span), millis(span)))
}

/// The longest rung that is not too long.
fn rung(left: Span) -> Option<u64> {
    let left = left.min(RUNG_MAX);
    (left >= RUNG_MIN).then(|| 1 << (left.as_micros() / 1_000).ilog2())
}

/// Exactly these three. `x-expires` would throw away what is parked in a queue that nobody uses.
pub(super) fn arguments(target: &str, ttl_ms: u64) -> FieldTable {
    let mut arguments = FieldTable::default();
    let ttl = i64::try_from(ttl_ms).unwrap_or(i64::MAX);
    arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
    arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(target.into()));
    arguments
}

/// Rounded up: a delay is not shorter than it says.
const fn millis(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::Timestamp;

    fn until(millis: u64) -> Option<String> {
        let left = Span::from_millis(millis);
        queue("t", Delay::Until { at: Timestamp::MAX, left }).map(|(name, _)| name)
    }

    #[test]
    fn a_fixed_delay_has_a_queue_of_its_own() {
        let fixed = queue("gemini", Delay::Fixed(Span::from_secs(30)));
        assert_eq!(fixed, Some(("gemini-delayed-30000ms".to_owned(), 30_000)));
        assert_eq!(queue("gemini", Delay::None), None);
    }

    #[test]
    fn an_instant_takes_the_longest_rung_that_is_not_too_long() {
        for (left, name) in [
            (15, None),
            (16, Some("t-delayed-16ms")),
            (31, Some("t-delayed-16ms")),
            (1_000, Some("t-delayed-512ms")),
            (100_000_000, Some("t-delayed-67108864ms")),
            (u64::MAX / 2_000, Some("t-delayed-2147483648ms")),
        ] {
            assert_eq!(until(left).as_deref(), name, "{left}");
        }
    }

    #[test]
    fn a_delay_queue_has_exactly_three_arguments() {
        let arguments = arguments("gemini", 30_000);
        let names: Vec<_> = arguments.inner().keys().map(|name| name.as_str().to_owned()).collect();
        assert_eq!(names, ["x-dead-letter-exchange", "x-dead-letter-routing-key", "x-message-ttl"]);
    }
}
