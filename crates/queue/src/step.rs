//! The steps of a message on its way, told to whoever traces. A crash between any two of them loses
//! nothing: the tests kill a process at each.

/// Where the events are found.
pub const TARGET: &str = "sluicegate_queue::step";

/// What has just happened, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A message was handed out.
    Received,
    /// Its successor is on its way to the broker, which may have it.
    Published,
    /// The broker has the successor.
    Confirmed,
    /// The message is acknowledged, as far as we are concerned.
    Acknowledged,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Received, Self::Published, Self::Confirmed, Self::Acknowledged];

    /// The word in the event.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Published => "published",
            Self::Confirmed => "confirmed",
            Self::Acknowledged => "acknowledged",
        }
    }

    pub(crate) fn reached(self) {
        tracing::trace!(target: TARGET, step = self.word());
    }
}
