//! Turns: everything is measured once, then everything again, so that whatever else the machine
//! does falls on all alike.

use std::time::Duration;

use crate::stopwatch::Stopwatch;

/// The median of several rounds, with their spread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Figure {
    /// The figure of at least one round.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self { median: values[values.len() / 2], min: values[0], max: values[values.len() - 1] }
    }
}

/// Measures each subject once a round, in turns.
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

/// Nanoseconds for one call, over `length`, after a tenth of it unmeasured.
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
