//! How long something took.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Started when it is made.
pub(crate) struct Stopwatch {
    wall: Instant,
    cpu: Option<Duration>,
}

impl Stopwatch {
    /// Measures what so many threads do at the same time.
    ///
    /// One thread has nobody to wait for, so the time that it had the processor is all that counts,
    /// and other programs on the machine take less part in the figure. Several may wait for each
    /// other, and waiting is part of what they cost.
    pub(crate) fn start(threads: usize) -> Self {
        Self { wall: Instant::now(), cpu: (threads == 1).then(cpu) }
    }

    /// Whether so much time has passed, by the clock on the wall.
    pub(crate) fn has_run(&self, length: Duration) -> bool {
        self.wall.elapsed() >= length
    }

    /// Nanoseconds for each of `count` things that were done meanwhile.
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
    Duration::try_from(time).expect("a thread has used no less than no time")
}
