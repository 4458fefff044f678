//! Waiting for an effect.
//!
//! A test waits for what it asserts, and looks again until it sees it. The end of the wait is a
//! time on the clock, not a number of looks: a look takes microseconds on an idle machine and
//! a second on a busy one.

use std::fmt::Debug;
use std::thread;
use std::time::Duration;

use crate::clock::Moment;

/// Longer than a busy machine stands still.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// The end of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Moment);

impl Deadline {
    /// Two minutes from now.
    pub fn generous() -> Self {
        Self::after(PATIENCE)
    }

    /// So long from now.
    pub fn after(patience: Duration) -> Self {
        Self(Moment::after(patience))
    }

    /// Fails the test if the wait is over, with what was found instead.
    #[track_caller]
    pub fn check(&self, found: &(impl Debug + ?Sized)) {
        assert!(!self.0.is_over(), "waited in vain: found {found:?}");
    }
}

/// Waits until `holds`; fails the test after two minutes.
#[track_caller]
pub fn eventually(mut holds: impl FnMut() -> bool) {
    eventually_is(&mut holds, true);
}

/// Waits until `look` returns `expected`; fails the test after two minutes, and shows what it
/// returned instead.
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
    fn what_comes_late_is_waited_for() {
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
    #[should_panic(expected = "waited in vain: found 7")]
    fn what_never_comes_fails_with_what_was_found() {
        Deadline::after(Duration::ZERO).check(&7);
    }
}
