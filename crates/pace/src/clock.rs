//! [`sleep_exactly`]: a sleep that ends within a fraction of a millisecond.

use std::time::{Duration, Instant};

use tokio::task::{spawn_blocking, yield_now};
use tokio::time::sleep;

/// Maximum lateness of a Tokio timer: it counts whole milliseconds, and so does the poll that fires
/// it.
pub(crate) const TIMER_LATE: Duration = Duration::from_millis(2);

/// Maximum lateness of a sleeping thread. The task yields in a loop for this last part.
const THREAD_LATE: Duration = Duration::from_micros(100);

/// Sleeps for `span` more exactly than a Tokio timer.
///
/// A blocking thread sleeps for the last milliseconds. Use this for starts that can't catch up:
/// under a limit such as `25/s smooth` each start delays the next one, so a millisecond of lateness
/// in each costs 2.5 % of the limit.
pub(crate) async fn sleep_exactly(span: Duration) {
    let until = now() + span;
    if !is_real() {
        return sleep(span).await;
    }
    if span > TIMER_LATE {
        sleep(span - TIMER_LATE).await;
    }
    let rest = until.saturating_duration_since(now() + THREAD_LATE);
    if rest > Duration::ZERO && spawn_blocking(move || std::thread::sleep(rest)).await.is_err() {
        // The runtime is shutting down.
        sleep(rest).await;
    }
    while now() < until {
        yield_now().await;
    }
}

/// Returns false if a test simulates the time of the runtime.
fn is_real() -> bool {
    let before = now();
    let of_runtime = tokio::time::Instant::now().into_std();
    before <= of_runtime && of_runtime <= now()
}

#[expect(clippy::disallowed_methods, reason = "a sleep has to know how long the timer took")]
fn now() -> Instant {
    Instant::now()
}
