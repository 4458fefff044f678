//! [`Backoff`]: exponential backoff with full jitter, so that jobs that failed together are not
//! retried together.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use sluicegate_core::Span;

/// The backoff between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Maximum wait before the second attempt.
    pub from: Span,
    /// Maximum wait before any attempt.
    pub to: Span,
}

impl Backoff {
    /// Returns the maximum wait after this number of failures; it doubles each time.
    pub fn most(&self, failures: u32) -> Span {
        let factor = 1_u64 << failures.saturating_sub(1).min(40);
        Span::from_micros(self.from.as_micros().saturating_mul(factor)).min(self.to)
    }

    /// Returns a random wait between zero and the maximum.
    pub fn wait(&self, failures: u32) -> Span {
        let random = RandomState::new().build_hasher().finish();
        Span::from_micros(random % self.most(failures).as_micros().saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound() {
        let backoff = Backoff { from: Span::from_secs(1), to: Span::from_secs(60) };
        let most = [0, 1, 2, 3, 6, 7, 64, u32::MAX].map(|n| backoff.most(n).as_secs_ceil());
        assert_eq!(most, [1, 1, 2, 4, 32, 60, 60, 60]);
    }

    #[test]
    fn waits_are_spread_over_all_of_it() {
        let backoff = Backoff { from: Span::from_secs(8), to: Span::from_secs(8) };
        let waits: Vec<_> = (0..200).map(|_| backoff.wait(1)).collect();
        assert!(waits.iter().all(|wait| *wait <= Span::from_secs(8)));
        assert!(waits.iter().any(|wait| *wait < Span::from_secs(2)));
        assert!(waits.iter().any(|wait| *wait > Span::from_secs(6)));
    }
}
