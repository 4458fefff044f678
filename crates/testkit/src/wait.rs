//! [`eventually`]: waits for an effect.
//!
//! A test polls for the state that it asserts until it sees it. The wait ends after a time and not
//! after a number of polls: a poll takes microseconds on an idle machine and a second on a busy
//! one.

use std::fmt::Debug;
use std::thread;
use std::time::Duration;

use crate::clock::Moment;

/// Maximum wait, longer than a busy machine stalls.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two polls.
const PAUSE: Duration = Duration::from_millis(5);

/// The end of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Moment);

impl Deadline {
    /// Returns a deadline two minutes from now.
    pub fn generous() -> Self {
        Self::after(TIMEOUT)
    }

    /// Returns a deadline this long from now.
    pub fn after(patience: Duration) -> Self {
        Self(Moment::after(patience))
    }

    /// Fails the test if the deadline is over, and shows the last result.
    #[track_caller]
    pub fn check(&self, found: &(impl Debug + ?Sized)) {
        assert!(!self.0.is_over(), "timed out: last result was {found:?}");
    }
}

/// Waits until `holds` returns true; fails the test after two minutes.
#[track_caller]
pub fn eventually(mut holds: impl FnMut() -> bool) {
    eventually_is(&mut holds, true);
}

/// Waits until `look` returns `expected`; fails the test after two minutes, and shows the last
/// result.
#[track_caller]
pub fn eventually_is<T: PartialEq<E> + Debug, E>(mut look: impl FnMut() -> T, expected: E) {
    let deadline = Deadline::generous();
    loop {
        let found = look();
        if found == expected {
            return;
        }
        deadline.check(&found);
        thread::sleep(PAUSE);
    }
}

/// Waits on a runtime until `holds`; fails the test after two minutes.
pub async fn eventually_async(mut holds: impl AsyncFnMut() -> bool) {
    eventually_ok(async || if holds().await { Ok(()) } else { Err("that it does not hold") }).await;
}

/// Waits on a runtime until `look` returns `Ok`; fails the test after two minutes, and shows the
/// last error.
pub async fn eventually_ok<E: Debug>(mut look: impl AsyncFnMut() -> Result<(), E>) {
    let deadline = Deadline::generous();
    while let Err(found) = look().await {
        deadline.check(&found);
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_result_is_waited_for() {
        let mut looks = 0;
        eventually_is(
            || {
                looks += 1;
                looks
            },
            3,
        );
        assert_eq!(looks, 3);
    }

    #[test]
    #[should_panic(expected = "timed out: last result was 7")]
    fn a_timeout_shows_the_last_result() {
        Deadline::after(Duration::ZERO).check(&7);
    }
}
