//! What can be measured: anything that says yes or no to a user.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::stopwatch::Stopwatch;
use crate::traffic::{Traffic, USERS, User};

/// A limiter under measurement.
pub(crate) trait Limiter: Sync {
    /// What one of `threads` threads asks, once for each request: may it go?
    fn asker(&self, threads: usize) -> impl FnMut(&User) -> bool;
}

/// A limiter that can be asked for a while.
///
/// One virtual call for a whole round: inside it the limiter is known and inlined.
pub(crate) trait Round {
    /// Asks so many times for every user, so that no round counts a first insertion.
    fn fill(&self, traffic: &Traffic, times: usize);

    /// Asks on so many threads, at first unmeasured, then measured.
    fn run(&self, traffic: &Traffic, threads: usize, pace: Pace) -> Sample;
}

/// How long a round lasts.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
}

/// What one round showed.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// The time that a thread spent on a decision.
    pub(crate) ns: f64,
    /// Which part of the requests was admitted, from 0 to 1.
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
        // Threads stop at the same time, not after the same work: the mean is that of the rates.
        let count = samples.len() as f64;
        Sample {
            ns: count / samples.iter().map(|sample| 1.0 / sample.ns).sum::<f64>(),
            admitted: samples.iter().map(|sample| sample.admitted).sum::<f64>() / count,
        }
    }
}

/// Asks for `length`, and looks at the clock only now and then.
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
