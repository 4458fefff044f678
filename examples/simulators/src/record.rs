//! What a server saw.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::Clock;

/// Calls, in the order of their arrival.
#[derive(Debug)]
pub struct Record {
    clock: Clock,
    calls: Mutex<Vec<Call>>,
}

/// A call that was answered.
#[derive(Clone, Debug)]
pub struct Call {
    /// When it came, since the server began.
    at: Duration,
    /// Its job, by the `Idempotency-Key`.
    pub job: String,
    /// The status of the answer.
    pub status: u16,
}

/// What the calls come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// All calls.
    pub calls: usize,
    /// Those that were answered well.
    pub ok: usize,
    /// Those that were over the limit.
    pub refused: usize,
    /// Those that failed.
    pub failed: usize,
    /// The jobs that were answered well at least once.
    pub jobs: usize,
    /// Good answers to jobs that had one already.
    pub duplicates: usize,
    /// The most calls within any window.
    pub most_in_window: usize,
    /// From the first call to the last.
    pub took: Duration,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self { clock: Clock::start(), calls: Mutex::default() }
    }

    /// The time since it began.
    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    pub(crate) fn add(&self, at: Duration, job: &str, status: u16) {
        self.lock().push(Call { at, job: job.to_owned(), status });
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().clone()
    }

    /// When calls came, since 1970, in order.
    pub fn arrivals(&self) -> Vec<Duration> {
        let began = self.clock.began_at();
        let mut arrivals: Vec<_> = self.lock().iter().map(|call| began + call.at).collect();
        arrivals.sort_unstable();
        arrivals
    }

    /// What the calls come to, judged by windows of this length.
    pub fn report(&self, window: Duration) -> Report {
        let calls = self.lock().clone();
        let of = |status: fn(u16) -> bool| calls.iter().filter(|call| status(call.status)).count();
        let mut good: HashMap<&str, usize> = HashMap::new();
        for call in calls.iter().filter(|call| call.status == 200) {
            *good.entry(&call.job).or_default() += 1;
        }
        let mut at: Vec<_> = calls.iter().map(|call| call.at).collect();
        at.sort_unstable();
        let (mut first, mut most) = (0, 0);
        for (last, now) in at.iter().enumerate() {
            while *now - at[first] >= window {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        Report {
            calls: calls.len(),
            ok: of(|status| status == 200),
            refused: of(|status| status == 429 || status == 403),
            failed: of(|status| status >= 500),
            jobs: good.len(),
            duplicates: good.values().map(|times| times - 1).sum(),
            most_in_window: most,
            took: at.last().zip(at.first()).map_or(Duration::ZERO, |(last, first)| *last - *first),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Report {
    /// The same as JSON.
    pub fn json(&self) -> Value {
        json!({
            "calls": self.calls,
            "ok": self.ok,
            "refused": self.refused,
            "failed": self.failed,
            "jobs": self.jobs,
            "duplicates": self.duplicates,
            "mostInWindow": self.most_in_window,
            "tookSeconds": self.took.as_secs_f64(),
        })
    }
}
