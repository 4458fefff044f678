//! Which limits a message meets on its way: those of the dispatcher, those of the worker, or both
//! at once.

use std::fmt;

use sluicegate_core::Id;
use sluicegate_core::query::{Cost, Query, RequestId, Subject};
use sluicegate_core::time::{Span, Timestamp};
use sluicegate_queue::Message;

/// The dimension that names the provider; its rules lie in one slot.
pub const PROVIDER: &str = "@provider";
/// The dimension that names the tier.
pub const TIER: &str = "@tier";

/// Whose limits are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Those that the dispatcher keeps, before it publishes.
    Dispatch,
    /// Those that the worker keeps, before the work goes.
    Worker,
    /// Both, for work that is booked ahead: the moment has to suit both.
    Booked,
}

impl Tier {
    /// The value of its dimension.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Dispatch => "dispatch",
            Self::Worker => "worker",
            Self::Booked => "booked",
        }
    }

    /// The question whether work for a provider may go that is taken for so much.
    pub(crate) fn query(self, provider: &str, estimate: Cost, id: RequestId) -> Query<'_> {
        let mut query = Query::new(id);
        query.cost = estimate;
        query.insert_own(PROVIDER, provider);
        query.insert_own(TIER, self.word());
        query.subject = Subject::Own;
        query
    }
}

/// The name under which a message asks for its turn. It is the same when the message is delivered
/// again, so that it is counted once, and another one when the work has to be admitted anew.
pub(crate) fn turn(message: &Message, tier: Tier) -> Id {
    let meta = &message.meta;
    let turn = format!("{}/{}/{}", meta.job, meta.attempt, meta.deferrals);
    Id::scoped(tier.word(), &turn)
}

/// A moment that was booked for a message, as it travels with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Booking {
    /// The name of the booking.
    pub(crate) id: Id,
    /// When it starts, by the clock of the queue: a hint that saves asking too early. The store
    /// has the last word.
    pub(crate) start: Timestamp,
}

impl Booking {
    /// The booking of a message, if it has one that can be read.
    pub(crate) fn of(message: &Message) -> Option<Self> {
        let (id, start) = message.meta.booking.as_deref()?.split_once('@')?;
        let id = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32)?;
        let start = Timestamp::from_micros(start.parse().ok()?);
        Some(Self { id: Id::from_bits(id), start })
    }

    /// How long it takes until then.
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
    fn a_booking_survives_its_travel() {
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
    fn a_turn_is_the_same_until_the_work_is_to_be_admitted_anew() {
        let mut message = Message::new("{}");
        let first = turn(&message, Tier::Booked);
        message.meta.hop += 1;
        assert_eq!(turn(&message, Tier::Booked), first);
        assert_ne!(turn(&message, Tier::Dispatch), first);
        message.meta.deferrals += 1;
        let second = turn(&message, Tier::Booked);
        message.meta.attempt += 1;
        assert!(second != first && turn(&message, Tier::Booked) != second);
    }
}
