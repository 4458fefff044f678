//! [`Tier`]: the limits that a message is checked against: those of the dispatcher, those of the
//! worker, or both. [`Booking`]: a start time booked for a message.

use std::fmt;

use sluicegate_core::Id;
use sluicegate_core::query::{Cost, Query, RequestId, RuleScope};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_queue::Message;

/// Dimension that contains the provider; the rules of a provider are in one cluster slot.
pub const PROVIDER: &str = "@provider";
/// Dimension that contains the tier.
pub const TIER: &str = "@tier";

/// The tier whose limits are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Limits of the dispatcher, checked before it publishes.
    Dispatch,
    /// Limits of the worker, checked before the handler runs.
    Worker,
    /// Both, for booked messages: the start time has to satisfy both.
    Booked,
}

impl Tier {
    /// Returns the value of the [`TIER`] dimension.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Worker => "worker",
            Self::Booked => "booked",
        }
    }

    /// Returns the query that asks if a job may go to a provider. The estimated cost is held for
    /// `hold`, during which it can be settled with the actual cost.
    pub(crate) fn query(
        self,
        provider: &str,
        estimate: Cost,
        hold: Span,
        id: RequestId,
    ) -> Query<'_> {
        let mut query = Query::new(id);
        query.cost = estimate;
        // A dispatcher does not learn the outcome of a job.
        query.hold = (estimate != Cost::default() && self != Self::Dispatch).then_some(hold);
        query.insert_own(PROVIDER, provider);
        query.insert_own(TIER, self.name());
        query.rule_scope = RuleScope::Own;
        query
    }
}

/// Returns the request id for the limiter. It stays the same when the message is redelivered, so
/// that the message is counted once, and changes when the message needs a new admission.
pub(crate) fn admission_id(message: &Message, tier: Tier) -> Id {
    let meta = &message.meta;
    let turn = format!("{}/{}/{}", meta.job, meta.attempt, meta.deferrals);
    // No token can have a name with this character, so no caller of the service can use the id.
    Id::scoped(&format!("\0{}", tier.name()), &turn)
}

/// A start time that was booked for a message, stored in its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Booking {
    /// Id of the booking.
    pub(crate) id: Id,
    /// Start time by the clock of the queue. It is a hint that avoids claiming too early; the store
    /// decides.
    pub(crate) start: Timestamp,
}

impl Booking {
    /// Returns the booking of a message, if it has a valid one.
    pub(crate) fn of(message: &Message) -> Option<Self> {
        let (id, start) = message.meta.booking.as_deref()?.split_once('@')?;
        let id = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32)?;
        let start = Timestamp::from_micros(start.parse().ok()?);
        Some(Self { id: Id::from_bits(id), start })
    }

    /// Returns the time until the start.
    pub(crate) fn wait(&self, now: Timestamp) -> Span {
        self.start.since(now)
    }
}

/// `<id>@<microseconds since the epoch>`.
impl fmt::Display for Booking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.start.as_micros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_booking_is_parsed_from_its_text() {
        let booking = Booking { id: Id::from_bits(7 << 70), start: Timestamp::from_micros(1_234) };
        let mut message = Message::new("{}");
        assert_eq!(Booking::of(&message), None);
        message.meta.booking = Some(booking.to_string());
        assert_eq!(Booking::of(&message), Some(booking));
        for broken in ["", "@", "7@1", "x@1", "00000000000000000000000000000007@", "é@é"] {
            message.meta.booking = Some(broken.to_owned());
            assert_eq!(Booking::of(&message), None, "{broken}");
        }
    }

    #[test]
    fn a_request_id_is_the_same_until_a_new_admission_is_needed() {
        let mut message = Message::new("{}");
        let first = admission_id(&message, Tier::Booked);
        message.meta.hop += 1;
        assert_eq!(admission_id(&message, Tier::Booked), first);
        assert_ne!(admission_id(&message, Tier::Dispatch), first);
        message.meta.deferrals += 1;
        let second = admission_id(&message, Tier::Booked);
        message.meta.attempt += 1;
        assert!(second != first && admission_id(&message, Tier::Booked) != second);
    }
}
