//! [`Breaker`]: lets the policy decide at once while the service does not answer, so that requests do
//! not queue up behind timeouts.

use std::sync::{Mutex, PoisonError};

use sluicegate_core::time::{Span, Timestamp};

/// Number of failures in a row after which the service is left alone.
const FAILURES_MAX: u32 = 5;
/// Time for which it is left alone.
const PAUSE: Span = Span::from_millis(500);

/// The failures in a row.
#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    in_a_row: u32,
    paused_until: Option<Timestamp>,
}

impl Breaker {
    /// Returns true if the service should not be asked now.
    pub(super) fn is_open(&self, now: Timestamp) -> bool {
        self.lock().paused_until.is_some_and(|until| now < until)
    }

    /// Records an answer.
    pub(super) fn answered(&self) {
        *self.lock() = Failures::default();
    }

    /// Records a failure. Returns true if it opens the breaker.
    pub(super) fn failed(&self, now: Timestamp) -> bool {
        let mut failures = self.lock();
        failures.in_a_row += 1;
        let opens = failures.in_a_row >= FAILURES_MAX;
        if opens {
            failures.paused_until = Some(now + PAUSE);
        }
        opens
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Failures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_in_a_row_open_it_for_half_a_second() {
        let at = Timestamp::from_millis;
        let breaker = Breaker::default();
        for _ in 0..4 {
            assert!(!breaker.failed(at(1_000)));
        }
        breaker.answered();
        let opened: Vec<_> = (0..6).map(|_| breaker.failed(at(1_000))).collect();
        assert_eq!(opened, [false, false, false, false, true, true]);
        assert!(breaker.is_open(at(1_499)) && !breaker.is_open(at(1_500)));
        assert!(breaker.failed(at(1_600)), "one more failure is enough");
        breaker.answered();
        assert!(!breaker.is_open(at(1_601)));
    }
}
