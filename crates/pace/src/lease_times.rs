//! [`LeaseTimes`]: the mean time for which the work of this replica holds a lease, and a signal
//! when a lease ends.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::time::Span;
use tokio::sync::Notify;

/// Part of the mean that a new value replaces.
const NEW_PART: u64 = 8;

/// Statistics of the leases of this replica, and a signal when one ends.
#[derive(Debug, Default)]
pub struct LeaseTimes {
    /// Wakes work that waits for a lease.
    ended: Notify,
    /// Moving average of the lease times in microseconds; 0 before the first.
    mean_us: AtomicU64,
}

impl LeaseTimes {
    /// Records that a lease has ended in the store. `held` is the time for which work used it, or
    /// `None` if the work did not start.
    pub fn ended(&self, held: Option<Span>) {
        if let Some(held) = held {
            let held = held.as_micros().max(1);
            let mean = |mean: u64| match mean {
                0 => held,
                mean => {
                    (mean / NEW_PART).saturating_mul(NEW_PART - 1).saturating_add(held / NEW_PART)
                }
            };
            let next = mean(self.mean_us.load(Ordering::Relaxed));
            self.mean_us.store(next.max(1), Ordering::Relaxed);
        }
        self.ended.notify_one();
    }

    /// Waits until a lease of this replica ends. Returns at once if one has ended since the last
    /// wait.
    pub(crate) async fn wait_for_end(&self) {
        self.ended.notified().await;
    }

    /// Returns the mean time for which work holds a lease, or `None` before the first has ended.
    pub fn mean(&self) -> Option<Span> {
        let mean = self.mean_us.load(Ordering::Relaxed);
        (mean > 0).then(|| Span::from_micros(mean))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_the_latest_times() {
        let times = LeaseTimes::default();
        times.ended(None);
        assert_eq!(times.mean(), None);
        times.ended(Some(Span::from_millis(800)));
        assert_eq!(times.mean(), Some(Span::from_millis(800)));
        (0..100).for_each(|_| times.ended(Some(Span::from_millis(80))));
        let mean = times.mean().expect("a mean");
        assert!((Span::from_millis(75)..Span::from_millis(90)).contains(&mean), "{mean}");
    }
}
