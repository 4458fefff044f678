//! [`LatencySketch`]: counts of durations by size, from which quantiles are read.

/// Bounds within a decade, in tenths. Neighbours differ by 14 to 25 percent, and 1, 2 and 5 are among
/// them: the bounds of the exported histograms.
const STEPS: [u64; 13] = [10, 12, 15, 17, 20, 25, 30, 35, 40, 50, 60, 70, 85];
/// Decades, from 10 µs on.
const DECADES: usize = 6;

/// Counts of durations. Two sketches can be added and subtracted, so that the counts of any
/// interval are the difference of two readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySketch([u64; LatencySketch::BUCKETS]);

impl LatencySketch {
    /// Number of buckets: one below each bound, and one above the last.
    pub const BUCKETS: usize = STEPS.len() * DECADES + 2;

    /// Upper bounds of the buckets in microseconds, from 10 µs to 10 s. The last bucket has none.
    pub const BOUNDS_US: [u64; Self::BUCKETS - 1] = bounds();

    /// Returns the bucket of a duration.
    pub fn bucket(micros: u64) -> usize {
        Self::BOUNDS_US.partition_point(|&bound| bound < micros)
    }

    /// Creates a sketch from the counts of all buckets.
    pub const fn from_counts(counts: [u64; Self::BUCKETS]) -> Self {
        Self(counts)
    }

    /// Counts a duration.
    pub fn record(&mut self, micros: u64) {
        self.0[Self::bucket(micros)] += 1;
    }

    /// Adds the counts of another sketch.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
    }

    /// Returns the durations that were counted since an earlier reading of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.0;
        for (count, before) in counts.iter_mut().zip(earlier.0) {
            *count = count.saturating_sub(before);
        }
        Self(counts)
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the number of durations up to a bound of [`Self::BOUNDS_US`].
    pub fn count_up_to(&self, bound_us: u64) -> u64 {
        self.0[..=Self::bucket(bound_us)].iter().sum()
    }

    /// Returns the duration in microseconds that a share of all durations does not exceed, or `None`
    /// without durations. The error is at most the width of a bucket: 25 percent.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (share.clamp(0.0, 1.0) * count as f64).max(1.0);
        let mut below = 0.0;
        for (bucket, &within) in self.0.iter().enumerate() {
            let within = within as f64;
            if within > 0.0 && below + within >= wanted {
                let from = bucket.checked_sub(1).map_or(0, |before| Self::BOUNDS_US[before]) as f64;
                // Above the last bound, only the bound is known.
                let to = Self::BOUNDS_US.get(bucket).map_or(from, |&bound| bound as f64);
                return Some(from + (to - from) * ((wanted - below) / within));
            }
            below += within;
        }
        None
    }
}

impl Default for LatencySketch {
    fn default() -> Self {
        Self([0; Self::BUCKETS])
    }
}

const fn bounds() -> [u64; LatencySketch::BUCKETS - 1] {
    let mut bounds = [0; LatencySketch::BUCKETS - 1];
    let (mut index, mut decade) = (0, 1);
    while index < bounds.len() {
        bounds[index] = STEPS[index % STEPS.len()] * decade;
        index += 1;
        if index.is_multiple_of(STEPS.len()) {
            decade *= 10;
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_increase_and_contain_those_of_the_histograms() {
        let bounds = LatencySketch::BOUNDS_US;
        assert!(bounds.is_sorted());
        assert_eq!((bounds[0], bounds[bounds.len() - 1]), (10, 10_000_000));
        for documented in [50, 100, 200, 500, 20_000, 50_000, 100_000, 1_000_000] {
            assert!(bounds.contains(&documented), "{documented}");
        }
    }

    #[test]
    fn an_empty_sketch_has_no_quantiles() {
        assert_eq!(LatencySketch::default().quantile(0.5), None);
    }

    #[test]
    fn durations_above_the_last_bound_count_as_the_last_bound() {
        let mut sketch = LatencySketch::default();
        sketch.record(u64::MAX);
        assert_eq!(sketch.quantile(0.99), Some(10_000_000.0));
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_quarter_of_the_true_ones(
            durations in prop::collection::vec(10_u64..10_000_000, 1..400),
            share in 0.0_f64..=1.0,
        ) {
            let mut sketch = LatencySketch::default();
            durations.iter().for_each(|&micros| sketch.record(micros));
            let mut sorted = durations.clone();
            sorted.sort_unstable();
            let rank = (share * sorted.len() as f64).max(1.0).ceil() as usize;
            let exact = sorted[rank - 1] as f64;
            let read = sketch.quantile(share).expect("there are durations");
            prop_assert!(read <= exact * 1.26 && read >= exact / 1.26, "{read} for {exact}");
        }

        #[test]
        fn a_difference_and_a_sum_are_those_of_the_durations(
            first in prop::collection::vec(0_u64..20_000_000, 0..50),
            then in prop::collection::vec(0_u64..20_000_000, 0..50),
        ) {
            let of = |durations: &[u64]| {
                let mut sketch = LatencySketch::default();
                durations.iter().for_each(|&micros| sketch.record(micros));
                sketch
            };
            let mut both = of(&first);
            both.merge(&of(&then));
            prop_assert_eq!(both.since(&of(&first)), of(&then));
        }
    }
}
