//! [`eventually`]: waits for an effect.
//!
//! A test polls for the state that it asserts until it sees it. The wait ends after a time and not
//! after a number of polls: a poll takes microseconds on an idle machine and a second on a busy
//! one.

use std::fmt::Debug;
use std::thread;
use std::time::Duration;

use crate::clock::Moment;

/// Maximum wait, longer than a busy machine stalls and than any test works.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// Longest pause between two polls. The first pauses are shorter.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The end of a wait.
#[derive(Clone, Copy, Debug)]
struct Deadline(Moment);

impl Deadline {
    /// Returns a deadline five minutes from now.
    fn generous() -> Self {
        Self::after(TIMEOUT)
    }

    /// Returns a deadline this long from now.
    fn after(patience: Duration) -> Self {
        Self(Moment::after(patience))
    }

    /// Fails the test if the deadline is over, and shows the last result.
    #[track_caller]
    fn check(&self, found: &(impl Debug + ?Sized)) {
        assert!(!self.0.is_over(), "timed out: last result was {found:?}");
    }
}

/// Waits until `holds` returns true; fails the test after five minutes, as every wait here.
#[track_caller]
pub fn eventually(holds: impl FnMut() -> bool) {
    eventually_is(holds, true);
}

/// Waits until `look` returns `expected`. A timeout shows the last result.
#[track_caller]
pub fn eventually_is<T: PartialEq<E> + Debug, E>(mut look: impl FnMut() -> T, expected: E) {
    eventually_get(|| Some(look()).filter(|found| *found != expected).map_or(Ok(()), Err));
}

/// Waits until `look` returns `Ok`, and returns its value. A timeout shows the last error.
#[track_caller]
pub fn eventually_get<T, E: Debug>(mut look: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Deadline::generous();
    for pause in pauses() {
        match look() {
            Ok(found) => return found,
            Err(found) => deadline.check(&found),
        }
        thread::sleep(pause);
    }
    unreachable!("there is no last pause")
}

/// Waits on a runtime until `holds`.
pub async fn eventually_async(mut holds: impl AsyncFnMut() -> bool) {
    eventually_ok(async || if holds().await { Ok(()) } else { Err("that it does not hold") }).await;
}

/// Waits on a runtime until `look` returns `expected`. A timeout shows the last result.
pub async fn eventually_is_async<T: PartialEq<E> + Debug, E>(
    mut look: impl FnMut() -> T,
    expected: E,
) {
    eventually_ok(async || Some(look()).filter(|found| *found != expected).map_or(Ok(()), Err))
        .await;
}

/// Waits on a runtime until `look` returns `Ok`. A timeout shows the last error.
pub async fn eventually_ok<E: Debug>(mut look: impl AsyncFnMut() -> Result<(), E>) {
    let deadline = Deadline::generous();
    for pause in pauses() {
        let Err(found) = look().await else { return };
        deadline.check(&found);
        tokio::time::sleep(pause).await;
    }
}

fn pauses() -> impl Iterator<Item = Duration> {
    let first = Duration::from_millis(1);
    std::iter::successors(Some(first), |pause| Some((*pause * 2).min(PAUSE_MAX)))
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
