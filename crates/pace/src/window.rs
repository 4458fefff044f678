//! [`StartWindow`]: the interval in which work may start, by the clock of this node.

use sluicegate_core::time::{Span, Timestamp};

/// The interval in which work may start, by the monotonic clock of this node.
///
/// The store admits work for `[start, start + slack]` by its own clock, which this node does not
/// know. The node knows when it asked and when it received the answer, and the store decided in
/// between. So a start that is counted from the answer is never too early, and an end that is
/// counted from the question is never too late. What is between them is the slack without the round
/// trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartWindow {
    opens: Timestamp,
    closes: Timestamp,
}

impl StartWindow {
    /// Creates the window of an answer that was asked for at `asked` and received at `received`.
    /// `until_start` and `until_end` are the times from the decision to the start and to the end of
    /// its slack.
    pub fn of_answer(
        (asked, received): (Timestamp, Timestamp),
        until_start: Span,
        until_end: Span,
    ) -> Self {
        Self { opens: received + until_start, closes: asked + until_end }
    }

    /// Returns the window of work that may start at any time from `now` on: its limits are not kept
    /// by the store.
    pub const fn from(now: Timestamp) -> Self {
        Self { opens: now, closes: Timestamp::MAX }
    }

    /// Returns true if the round trip took longer than the slack, so that no time is left.
    pub fn is_empty(self) -> bool {
        self.opens > self.closes
    }

    /// Returns the time at which work may start.
    pub const fn opens(self) -> Timestamp {
        self.opens
    }

    /// Returns true if it is too late to start.
    pub fn is_over(self, now: Timestamp) -> bool {
        now > self.closes
    }

    /// Returns the time from `now` until work may start.
    pub fn wait(self, now: Timestamp) -> Span {
        self.opens.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    #[test]
    fn a_window_is_the_slack_without_the_round_trip() {
        let (start, end) = (Span::from_millis(30), Span::from_millis(50));
        // Asked at 0, decided at 4, received at 12: the true interval is [34, 54].
        let window = StartWindow::of_answer((at(0), at(12)), start, end);
        assert_eq!((window.opens, window.closes), (at(42), at(50)));
        assert_eq!(window.wait(at(12)), Span::from_millis(30));
        assert!(!window.is_over(at(50)) && window.is_over(at(51)));
        assert!(!window.is_empty());
        assert!(StartWindow::of_answer((at(0), at(21)), start, end).is_empty());
    }
}
