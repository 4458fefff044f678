//! [`sleep_exactly`]: a sleep that ends within a fraction of a millisecond.

use std::time::{Duration, Instant};

use tokio::task::{spawn_blocking, yield_now};
use tokio::time::sleep;

/// Time by which a timer of the runtime may be late: it counts whole milliseconds, and the poll
/// that it wakes does so as well.
pub(crate) const TIMER_LATE: Duration = Duration::from_millis(2);

/// Time by which a sleeping thread may be late. The task waits for this last part by yielding.
const THREAD_LATE: Duration = Duration::from_micros(100);

/// Sleeps for `span`, and is late by less than a timer of the runtime.
///
/// The last milliseconds of the sleep are left to a thread. It is used for starts that can't catch up: under a
/// limit such as `25/s smooth`, each start delays the next one, so a millisecond in each would be
/// 2.5 % of the limit.
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

/// Returns true if the time of the runtime is real: tests may simulate it.
fn is_real() -> bool {
    let before = now();
    let of_runtime = tokio::time::Instant::now().into_std();
    before <= of_runtime && of_runtime <= now()
}

#[expect(clippy::disallowed_methods, reason = "a sleep has to know how long the timer took")]
fn now() -> Instant {
    Instant::now()
}
