//! A provider that takes 20 ms per call and records the time of every call.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_dispatch::{Handler, HandlerResult, Job, JobSuccess};

const LATENCY: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(crate) struct Provider {
    calls: Mutex<Vec<Instant>>,
}

impl Provider {
    pub(crate) async fn call(&self) {
        self.lock().push(Instant::now());
        tokio::time::sleep(LATENCY).await;
    }

    pub(crate) fn calls(&self) -> usize {
        self.lock().len()
    }

    /// Returns the time from the first call to the last, and the highest number of calls within any
    /// window of this length.
    pub(crate) fn seen(&self, window: Duration) -> (Duration, usize) {
        let mut calls = self.lock().clone();
        calls.sort_unstable();
        let (mut first, mut most) = (0, 0);
        for (last, now) in calls.iter().enumerate() {
            while *now - calls[first] >= window {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        let took = calls.last().zip(calls.first()).map(|(last, first)| *last - *first);
        (took.unwrap_or_default(), most)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Instant>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for Provider {
    fn handle<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, HandlerResult> {
        async {
            self.call().await;
            HandlerResult::done(JobSuccess::default())
        }
        .boxed()
    }
}
