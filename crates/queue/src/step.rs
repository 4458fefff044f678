//! [`DeliveryStep`]: trace events for the steps of settling a message. A crash between any two
//! steps loses nothing: the tests kill a process at each of them.

/// Tracing target of the events.
pub const TARGET: &str = "sluicegate_queue::step";

/// A step that was just completed, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryStep {
    /// A message was handed out.
    Received,
    /// Its successor was sent to the broker, which may have it.
    Published,
    /// The broker has confirmed the successor.
    Confirmed,
    /// The acknowledgement of the message was sent.
    Acknowledged,
}

impl DeliveryStep {
    /// All steps, in order.
    pub const ALL: [Self; 4] =
        [Self::Received, Self::Published, Self::Confirmed, Self::Acknowledged];

    /// Returns the name of the step in the event.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Published => "published",
            Self::Confirmed => "confirmed",
            Self::Acknowledged => "acknowledged",
        }
    }

    /// Emits the trace event.
    pub(crate) fn emit(self) {
        tracing::trace!(target: TARGET, step = self.name());
    }
}
