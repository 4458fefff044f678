//! [`HeavyHitters`]: the most frequent values in a stream, in bounded memory.
//!
//! It is the space-saving algorithm (Metwally, Agrawal and El Abbadi, 2005): a fixed number of
//! counters; a new value takes over the smallest one. With m counters and a total weight N, every
//! value with more than N / m is present, and its count is too high by at most its `error`.

use std::collections::{BTreeSet, HashMap};

/// The most frequent values.
#[derive(Clone, Debug)]
pub struct HeavyHitters {
    counters: Vec<Counter>,
    places: HashMap<String, usize>,
    /// Counters by their weight, the smallest first.
    order: BTreeSet<(u64, usize)>,
    counters_max: usize,
}

#[derive(Clone, Debug)]
struct Counter {
    value: String,
    weight: HitterWeight,
    error: u64,
}

/// The weight that a value has gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitterWeight {
    /// The weight that the values are ordered by.
    pub total: u64,
    /// The part of it that was denied, since the value got its counter.
    pub denied: u64,
}

/// A frequent value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hitter<'a> {
    /// The value.
    pub value: &'a str,
    /// Its weight, which may be too high by `error`.
    pub weight: HitterWeight,
    /// Maximum error of the total.
    pub error: u64,
}

impl HeavyHitters {
    /// Creates it with at most `counters_max` counters.
    ///
    /// # Panics
    ///
    /// Panics if `counters_max` is 0.
    pub fn new(counters_max: usize) -> Self {
        assert!(counters_max > 0, "there is at least one counter");
        Self { counters: Vec::new(), places: HashMap::new(), order: BTreeSet::new(), counters_max }
    }

    /// Adds weight to a value.
    pub fn add(&mut self, value: &str, weight: HitterWeight) {
        if let Some(&place) = self.places.get(value) {
            let counter = &mut self.counters[place];
            self.order.remove(&(counter.weight.total, place));
            counter.weight.total = counter.weight.total.saturating_add(weight.total);
            counter.weight.denied = counter.weight.denied.saturating_add(weight.denied);
            self.order.insert((counter.weight.total, place));
            return;
        }
        if self.counters.len() < self.counters_max {
            let place = self.counters.len();
            self.counters.push(Counter { value: value.to_owned(), weight, error: 0 });
            self.places.insert(value.to_owned(), place);
            self.order.insert((weight.total, place));
            return;
        }
        let Some((smallest, place)) = self.order.pop_first() else { return };
        let counter = &mut self.counters[place];
        self.places.remove(&counter.value);
        let total = smallest.saturating_add(weight.total);
        *counter = Counter {
            value: value.to_owned(),
            weight: HitterWeight { total, denied: weight.denied },
            error: smallest,
        };
        self.places.insert(value.to_owned(), place);
        self.order.insert((total, place));
    }

    /// Returns the values with the largest weights, the largest first.
    pub fn top(&self, count: usize) -> impl Iterator<Item = Hitter<'_>> {
        self.order.iter().rev().take(count).map(|&(_, place)| self.counters[place].hitter())
    }

    /// Returns a value with its weight, if it has a counter.
    pub fn get(&self, value: &str) -> Option<Hitter<'_>> {
        self.places.get(value).map(|&place| self.counters[place].hitter())
    }
}

impl Counter {
    fn hitter(&self) -> Hitter<'_> {
        Hitter { value: &self.value, weight: self.weight, error: self.error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one() -> HitterWeight {
        HitterWeight { total: 1, denied: 0 }
    }

    fn top(hitters: &HeavyHitters) -> Vec<(&str, u64, u64)> {
        hitters.top(9).map(|hit| (hit.value, hit.weight.total, hit.error)).collect()
    }

    #[test]
    fn counts_are_exact_while_there_are_counters() {
        let mut hitters = HeavyHitters::new(3);
        for value in ["a", "b", "a", "c", "a", "b"] {
            hitters.add(value, one());
        }
        assert_eq!(top(&hitters), [("a", 3, 0), ("b", 2, 0), ("c", 1, 0)]);
    }

    #[test]
    fn a_new_value_takes_over_the_smallest_counter_with_its_error() {
        let mut hitters = HeavyHitters::new(2);
        for value in ["a", "a", "a", "b", "c"] {
            hitters.add(value, one());
        }
        assert_eq!(top(&hitters), [("a", 3, 0), ("c", 2, 1)]);
    }

    #[test]
    fn the_denied_part_is_kept_apart() {
        let mut hitters = HeavyHitters::new(2);
        hitters.add("a", one());
        hitters.add("a", HitterWeight { total: 4, denied: 4 });
        let weight = hitters.get("a").map(|hit| hit.weight);
        assert_eq!(weight, Some(HitterWeight { total: 5, denied: 4 }));
        assert_eq!(hitters.get("b"), None);
    }

    proptest! {
        /// The guarantee of the algorithm, for any stream.
        #[test]
        fn frequent_values_are_present_and_counts_are_within_their_error(
            stream in prop::collection::vec((0_u8..40, 1_u64..4), 1..600),
        ) {
            let mut hitters = HeavyHitters::new(8);
            let mut exact = std::collections::BTreeMap::new();
            for (value, weight) in &stream {
                hitters.add(&value.to_string(), HitterWeight { total: *weight, denied: 0 });
                *exact.entry(value.to_string()).or_insert(0) += weight;
            }
            let all: u64 = exact.values().sum();
            let shown: Vec<_> = hitters.top(8).collect();
            prop_assert!(shown.len() <= 8);
            for hit in &shown {
                let truth = exact[hit.value];
                prop_assert!(hit.weight.total >= truth);
                prop_assert!(hit.weight.total - hit.error <= truth);
            }
            for (value, count) in exact.iter().filter(|&(_, &count)| count > all / 8) {
                prop_assert!(shown.iter().any(|hit| hit.value == value), "{value} has {count}");
            }
        }
    }
}
