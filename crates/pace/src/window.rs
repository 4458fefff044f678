//! [`StartWindow`]: the interval in which work may start, by the clock of this node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::time::{Span, Timestamp};
use tokio::time::sleep;

use crate::clock::sleep_exactly;
use crate::own_starts::OwnStart;

/// The interval in which work may start, by the monotonic clock of this node.
///
/// The store admits work for `[start, start + slack]` by its own clock. This node knows only bounds
/// of that clock (`StoreClock` in core). The window is the part of the interval that is valid for
/// every time between the bounds. It is shorter than the slack by the distance between the bounds,
/// which is about the shortest of the last round trips.
///
/// Work that is booked for this node also keeps its distance from the last real start here: see
/// [`StartWindow::start`].
#[derive(Clone, Debug)]
pub struct StartWindow {
    opens: Timestamp,
    closes: Timestamp,
    own: Option<OwnStart>,
    closures: Option<ClosureMark>,
}

/// The number of times that a pacer has closed the gate of its work. A turn that was claimed before
/// a closure must not be used after it.
#[derive(Debug, Default)]
pub(crate) struct GateClosures(Arc<AtomicU64>);

/// The closures that a turn knows of.
#[derive(Clone, Debug)]
struct ClosureMark {
    closures: Arc<AtomicU64>,
    known: u64,
}

impl GateClosures {
    /// Ends all turns that were claimed before.
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn mark(&self) -> ClosureMark {
        let known = self.0.load(Ordering::Relaxed);
        ClosureMark { closures: self.0.clone(), known }
    }
}

impl ClosureMark {
    fn is_closed(&self) -> bool {
        self.closures.load(Ordering::Relaxed) != self.known
    }
}

/// The result of an attempt to start work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAttempt {
    /// The work starts now, this long after its window has opened.
    Started(Span),
    /// The work may start after this time.
    Wait(Span),
    /// It is too late. The turn has to be given back.
    Over,
}

impl StartWindow {
    /// Creates the window between two times of this node's clock.
    pub const fn between(opens: Timestamp, closes: Timestamp) -> Self {
        Self { opens, closes, own: None, closures: None }
    }

    /// Returns the window of work that may start at any time from `now` on: it is not paced, has no
    /// limits, or was admitted by an outage policy.
    pub const fn from(now: Timestamp) -> Self {
        Self { opens: now, closes: Timestamp::MAX, own: None, closures: None }
    }

    /// Returns the window of work that this pacer spaces by itself.
    pub(crate) fn spaced(self, own: Option<OwnStart>) -> Self {
        Self { own, ..self }
    }

    /// Returns the window, which is over as soon as the pacer closes the gate of its work.
    pub(crate) fn until_closed(self, closures: &GateClosures) -> Self {
        Self { closures: Some(closures.mark()), ..self }
    }

    /// Returns true if it is too late to start, or the gate was closed meanwhile.
    pub fn is_over(&self, now: Timestamp) -> bool {
        now > self.closes || self.closures.as_ref().is_some_and(ClosureMark::is_closed)
    }

    /// Returns true if the window has an end.
    pub fn has_end(&self) -> bool {
        self.closes < Timestamp::MAX
    }

    /// Returns the time from the opening of the window until `now`.
    pub fn late(&self, now: Timestamp) -> Span {
        now.since(self.opens)
    }

    /// Returns the time from `now` until the window opens.
    pub fn wait(&self, now: Timestamp) -> Span {
        self.opens.since(now)
    }

    /// Starts the work at `now`, if its window is open and the last real start is far enough in the
    /// past. After [`StartAttempt::Started`] the work counts as started, and must start at once.
    pub fn try_start(&self, now: Timestamp) -> StartAttempt {
        if self.is_over(now) {
            return StartAttempt::Over;
        }
        let started = match &self.own {
            Some(own) => own.start(now, self.opens),
            None if self.opens > now => Err(self.opens),
            None => Ok(()),
        };
        match started {
            Ok(()) => StartAttempt::Started(now.since(self.opens)),
            Err(ready) if self.is_over(ready) => StartAttempt::Over,
            Err(ready) => StartAttempt::Wait(ready.since(now)),
        }
    }

    /// Takes back a start that did not happen: the work may start again in the same window, or give
    /// its turn back.
    pub fn take_back_start(&self) {
        if let Some(own) = &self.own {
            own.take_back();
        }
    }

    /// Waits until the work may start, and starts it. Returns the time since the window opened, or
    /// `None` if it is too late. `now` reads the clock of the node.
    pub async fn start(&self, now: impl Fn() -> Timestamp) -> Option<Span> {
        loop {
            match self.try_start(now()) {
                StartAttempt::Started(late) => return Some(late),
                StartAttempt::Over => return None,
                StartAttempt::Wait(span) if self.own.as_ref().is_some_and(OwnStart::is_tight) => {
                    sleep_exactly(span.into()).await;
                }
                StartAttempt::Wait(span) => sleep(span.into()).await,
            }
        }
    }
}
