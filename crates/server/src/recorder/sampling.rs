//! [`DecisionSampler`]: chooses the decisions that the dashboard looks at.

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Decisions of each class per second up to which all are looked at.
const ALL_UP_TO: f64 = 1_000.0;
/// Maximum number of decisions of each class that are looked at between two ticks, also when the
/// traffic has just risen.
const BUDGET: u32 = 4_000;

/// A class of decisions with its own share. Denials are often rare, and people ask about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampledClass {
    Admission,
    Denial,
}

/// Chooses every n-th decision on average, at random, so that no pattern in the traffic stays out of
/// the sample.
#[derive(Debug)]
pub(super) struct DecisionSampler([ClassState; 2]);

#[derive(Debug)]
struct ClassState {
    stride: AtomicU32,
    left: AtomicU32,
}

impl Default for DecisionSampler {
    fn default() -> Self {
        let class = || ClassState { stride: AtomicU32::new(1), left: AtomicU32::new(BUDGET) };
        Self([class(), class()])
    }
}

impl DecisionSampler {
    /// Returns the sample weight of this decision, or `None` if it is skipped.
    pub(super) fn takes(&self, class: SampledClass) -> Option<u64> {
        let state = &self.0[class as usize];
        let stride = state.stride.load(Relaxed);
        if stride > 1 && !random().is_multiple_of(stride) {
            return None;
        }
        let taken = state.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        taken.is_ok().then_some(u64::from(stride))
    }

    /// Sets the share for the next second by the rate of the last one.
    pub(super) fn adapt(&self, class: SampledClass, per_second: f64) {
        let state = &self.0[class as usize];
        let stride = (per_second / ALL_UP_TO).ceil().clamp(1.0, f64::from(u32::MAX));
        state.stride.store(stride as u32, Relaxed);
        state.left.store(BUDGET, Relaxed);
    }

    /// Returns n: on average, one of n decisions is sampled.
    pub(super) fn stride(&self, class: SampledClass) -> u32 {
        self.0[class as usize].stride.load(Relaxed)
    }
}

/// Returns a random number by xorshift, with a state per thread.
fn random() -> u32 {
    thread_local! {
        static STATE: Cell<u32> = Cell::new(RandomState::new().hash_one(0_u8) as u32 | 1);
    }
    let mut state = STATE.get();
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    STATE.set(state);
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use SampledClass::{Admission, Denial};

    #[test]
    fn all_decisions_are_taken_at_a_low_rate() {
        let sampler = DecisionSampler::default();
        sampler.adapt(Admission, 1_000.0);
        assert!((0..BUDGET).all(|_| sampler.takes(Admission) == Some(1)));
    }

    #[test]
    fn a_share_is_taken_at_a_high_rate_and_stands_for_all() {
        let sampler = DecisionSampler::default();
        sampler.adapt(Admission, 100_000.0);
        let seen: u64 = (0..100_000).filter_map(|_| sampler.takes(Admission)).sum();
        assert!((50_000..200_000).contains(&seen), "{seen} for 100,000");
        assert_eq!(sampler.takes(Denial), Some(1), "denials have a share of their own");
    }

    #[test]
    fn a_sudden_flood_takes_no_more_than_the_budget() {
        let sampler = DecisionSampler::default();
        let taken = (0..1_000_000).filter(|_| sampler.takes(Denial).is_some()).count();
        assert_eq!(taken, BUDGET as usize);
        sampler.adapt(Denial, 0.0);
        assert_eq!(sampler.takes(Denial), Some(1), "the next second has a new budget");
    }
}
