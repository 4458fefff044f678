//! The interface of a benchmarked limiter, and the loop that measures it.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::stopwatch::Stopwatch;
use crate::traffic::{Traffic, USERS, User};

/// A limiter under measurement.
pub(crate) trait Limiter: Sync {
    /// Returns the function that one of `threads` threads calls for each request. It returns true
    /// if the request is admitted.
    fn asker(&self, threads: usize) -> impl FnMut(&User) -> bool;
}

/// A limiter that runs whole rounds.
///
/// A round is one virtual call, so the calls of the limiter inside it are static and can be
/// inlined.
pub(crate) trait Round {
    /// Sends `times` requests for every user, so that no round measures the creation of a counter.
    fn fill(&self, traffic: &Traffic, times: usize);

    /// Sends requests on `threads` threads: first a warm-up, then the measurement.
    fn run(&self, traffic: &Traffic, threads: usize, pace: Pace) -> Sample;
}

/// Durations of the two parts of a round.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
}

/// The result of one round.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// Time of a thread per decision.
    pub(crate) ns: f64,
    /// Share of the requests that were admitted, from 0 to 1.
    pub(crate) admitted: f64,
}

impl<L: Limiter> Round for L {
    fn fill(&self, traffic: &Traffic, times: usize) {
        let mut ask = self.asker(1);
        for user in traffic.users.iter().cycle().take(times * USERS) {
            ask(user);
        }
    }

    fn run(&self, traffic: &Traffic, threads: usize, pace: Pace) -> Sample {
        let barrier = Barrier::new(threads);
        let one = |thread: usize| {
            let mut ask = self.asker(threads);
            let mut next = traffic.start(thread, threads);
            barrier.wait();
            drive(&mut ask, traffic, &mut next, threads, pace.warm_up);
            drive(&mut ask, traffic, &mut next, threads, pace.measured)
        };
        let samples: Vec<Sample> = thread::scope(|scope| {
            let one = &one;
            let others: Vec<_> = (1..threads).map(|n| scope.spawn(move || one(n))).collect();
            let first = one(0);
            let others =
                others.into_iter().map(|other| other.join().expect("a limiter does not panic"));
            std::iter::once(first).chain(others).collect()
        });
        // The threads run for the same time and not for the same number of requests, so the mean of
        // their rates is the right one.
        let count = samples.len() as f64;
        Sample {
            ns: count / samples.iter().map(|sample| 1.0 / sample.ns).sum::<f64>(),
            admitted: samples.iter().map(|sample| sample.admitted).sum::<f64>() / count,
        }
    }
}

/// Sends requests for `length`. Reads the clock once per batch.
fn drive(
    ask: &mut impl FnMut(&User) -> bool,
    traffic: &Traffic,
    next: &mut usize,
    threads: usize,
    length: Duration,
) -> Sample {
    const BATCH: usize = 512;
    let (mut asked, mut admitted) = (0, 0);
    let watch = Stopwatch::start(threads);
    while !watch.has_run(length) {
        for _ in 0..BATCH {
            admitted += usize::from(ask(traffic.at(*next)));
            *next += 1;
        }
        asked += BATCH;
    }
    Sample { ns: watch.ns_each(asked), admitted: admitted as f64 / asked as f64 }
}
