//! [`ManualClock`]: a clock that tests advance by hand. [`TimeSource`]: the clock of a limiter.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::time::{Clock, Span, Timestamp};
use sluicegate_store::MonotonicClock;
use tokio::sync::watch;

/// Time of a new [`ManualClock`]: 2026-01-01 00:00:00 UTC.
const START: Timestamp = Timestamp::from_secs(1_767_225_600);

/// A clock that stands still until it is advanced. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{Limiter, ManualClock, Rule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), sluicegate::Error> {
/// let clock = ManualClock::new();
/// let rule = Rule::new("USER").per(["userId"]).limit("1/min");
/// let limiter = Limiter::builder().rule(rule).clock(&clock).build()?;
///
/// assert!(limiter.acquire(&[("userId", "u1")]).await?.is_allowed());
/// assert!(!limiter.acquire(&[("userId", "u1")]).await?.is_allowed());
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.acquire(&[("userId", "u1")]).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<watch::Sender<Timestamp>>);

impl ManualClock {
    /// Creates a clock.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(START)))
    }

    /// Returns the time by which the clock was advanced since its creation.
    pub fn elapsed(&self) -> Duration {
        self.now().since(START).into()
    }

    /// Advances the clock. Calls that wait until then continue.
    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now = *now + Span::from(by));
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.borrow()
    }
}

/// The clock of a limiter.
#[derive(Clone, Debug)]
pub(crate) enum TimeSource {
    System(MonotonicClock),
    Manual(ManualClock),
}

impl TimeSource {
    /// Waits until `until`.
    pub(crate) async fn sleep_until(&self, until: Timestamp) {
        match self {
            Self::System(clock) => loop {
                let left = until.since(clock.now());
                if left == Span::ZERO {
                    return;
                }
                tokio::time::sleep(left.into()).await;
            },
            Self::Manual(clock) => {
                let mut times = clock.0.subscribe();
                // An error means that the clock is gone, and it is not: we hold it.
                let _ = times.wait_for(|now| *now >= until).await;
            }
        }
    }
}

impl Clock for TimeSource {
    fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Manual(clock) => clock.now(),
        }
    }
}
