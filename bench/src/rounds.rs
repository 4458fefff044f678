//! Alternating rounds: each round measures every subject once, so that a disturbance of the machine
//! affects all of them alike.

use std::time::Duration;

use crate::stopwatch::Stopwatch;

/// Median, smallest and largest value of several rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Figure {
    /// Summarises the values of at least one round.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self { median: values[values.len() / 2], min: values[0], max: values[values.len() - 1] }
    }
}

/// Measures each subject once per round.
pub(crate) fn interleave<S, T>(
    rounds: usize,
    subjects: &mut [S],
    mut measure: impl FnMut(&mut S) -> T,
) -> Vec<Vec<T>> {
    let mut results: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (subject, results) in subjects.iter_mut().zip(&mut results) {
            results.push(measure(subject));
        }
    }
    results
}

/// Repeats a call for `length`, after a warm-up of a tenth of it. Returns the nanoseconds per call.
pub(crate) fn ns_per_call(length: Duration, mut call: impl FnMut()) -> f64 {
    let mut drive = |length: Duration| {
        const BATCH: usize = 512;
        let mut calls = 0;
        let watch = Stopwatch::start(1);
        while !watch.has_run(length) {
            (0..BATCH).for_each(|_| call());
            calls += BATCH;
        }
        watch.ns_each(calls)
    };
    drive(length / 10);
    drive(length)
}
