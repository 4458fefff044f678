//! Measures the time that threads spend on a batch of calls.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A running time measurement.
pub(crate) struct Stopwatch {
    wall: Instant,
    cpu: Option<Duration>,
}

impl Stopwatch {
    /// Starts measuring one of `threads` concurrent threads.
    ///
    /// With one thread it measures the processor time of that thread, which other programs on the
    /// machine disturb less. With several it measures wall-clock time, because the threads may wait
    /// for each other and that time counts.
    pub(crate) fn start(threads: usize) -> Self {
        Self { wall: Instant::now(), cpu: (threads == 1).then(cpu) }
    }

    /// Returns true if `length` has passed in wall-clock time.
    pub(crate) fn has_run(&self, length: Duration) -> bool {
        self.wall.elapsed() >= length
    }

    /// Returns the nanoseconds per call, for `count` calls since the start.
    pub(crate) fn ns_each(&self, count: usize) -> f64 {
        let spent = match self.cpu {
            Some(start) => cpu() - start,
            None => self.wall.elapsed(),
        };
        spent.as_nanos() as f64 / count as f64
    }
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("processor time is not negative")
}
