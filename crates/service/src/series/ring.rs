//! [`SeriesRing`]: the most recent values of one series.

/// The last values of a series, one for each step of time. A step without a value is a gap.
///
/// The steps are numbered by the caller, so that all series of a table have the same time axis.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesRing {
    /// NaN is a gap.
    values: Box<[f32]>,
    /// Number of the newest step; `None` before the first value.
    newest: Option<u64>,
}

impl SeriesRing {
    /// Creates a ring for `length` steps, all of them gaps.
    ///
    /// # Panics
    ///
    /// Panics if `length` is 0.
    pub fn new(length: usize) -> Self {
        assert!(length > 0, "a ring has at least one step");
        Self { values: vec![f32::NAN; length].into(), newest: None }
    }

    /// Sets the value of a step. Steps that were skipped are gaps, and a step before the newest one
    /// is ignored.
    pub fn set(&mut self, step: u64, value: f32) {
        let length = self.values.len() as u64;
        if let Some(newest) = self.newest {
            if step < newest {
                return;
            }
            for skipped in (newest + 1..step).rev().take(self.values.len()) {
                self.values[(skipped % length) as usize] = f32::NAN;
            }
        }
        self.values[(step % length) as usize] = value;
        self.newest = Some(step);
    }

    /// Returns the values of the `count` steps up to `last`, oldest first; `None` is a gap.
    pub fn until(&self, last: u64, count: usize) -> impl Iterator<Item = Option<f32>> {
        let count = count.min(self.values.len()) as u64;
        let first = (last + 1).saturating_sub(count);
        (first..=last).map(|step| self.get(step))
    }

    /// Returns the value of a step, if the ring still has it.
    pub fn get(&self, step: u64) -> Option<f32> {
        let newest = self.newest?;
        let length = self.values.len() as u64;
        if step > newest || newest - step >= length {
            return None;
        }
        let value = self.values[(step % length) as usize];
        Some(value).filter(|value| !value.is_nan())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn shown(ring: &SeriesRing, last: u64, count: usize) -> Vec<Option<f32>> {
        ring.until(last, count).collect()
    }

    #[test]
    fn a_new_ring_has_only_gaps() {
        assert_eq!(shown(&SeriesRing::new(3), 5, 3), [None, None, None]);
    }

    #[test]
    fn the_newest_values_stay_and_skipped_steps_are_gaps() {
        let mut ring = SeriesRing::new(4);
        for (step, value) in [(7, 1.0), (8, 2.0), (10, 3.0)] {
            ring.set(step, value);
        }
        assert_eq!(shown(&ring, 10, 4), [Some(1.0), Some(2.0), None, Some(3.0)]);
        assert_eq!(shown(&ring, 12, 4), [None, Some(3.0), None, None]);
        ring.set(1_000_000, 9.0);
        assert_eq!(shown(&ring, 1_000_000, 4), [None, None, None, Some(9.0)]);
    }

    #[test]
    fn an_old_step_changes_nothing() {
        let mut ring = SeriesRing::new(4);
        ring.set(9, 1.0);
        ring.set(8, 2.0);
        assert_eq!(shown(&ring, 9, 2), [None, Some(1.0)]);
    }

    proptest! {
        #[test]
        fn a_ring_shows_the_last_values_that_a_map_would(
            gaps in prop::collection::vec(0_u64..9, 1..60),
        ) {
            let (mut ring, mut map, mut step) = (SeriesRing::new(8), BTreeMap::new(), 100);
            for (number, gap) in gaps.into_iter().enumerate() {
                step += gap;
                ring.set(step, number as f32);
                map.insert(step, number as f32);
            }
            let expected: Vec<_> = (step - 7..=step).map(|step| map.get(&step).copied()).collect();
            prop_assert_eq!(ring.until(step, 8).collect::<Vec<_>>(), expected);
        }
    }
}
