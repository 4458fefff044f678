//! The record of the calls that a simulated server received, and a report about them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::Clock;

/// Calls in order of arrival.
#[derive(Debug)]
pub struct Record {
    clock: Clock,
    calls: Mutex<Vec<Call>>,
}

/// An answered call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Time of arrival, from the start of the server.
    at: Duration,
    /// Job id, from the header `Idempotency-Key`.
    pub job: String,
    /// Status of the response.
    pub status: u16,
    /// The header `Authorization`, if the request had one.
    pub authorization: Option<String>,
}

/// Statistics of the calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of calls.
    pub calls: usize,
    /// Number of successful calls.
    pub ok: usize,
    /// Number of calls above the limit.
    pub refused: usize,
    /// Number of failed calls.
    pub failed: usize,
    /// Number of jobs with at least one successful call.
    pub jobs: usize,
    /// Number of further successful calls of such jobs.
    pub duplicates: usize,
    /// Maximum number of calls in any window.
    pub most_in_window: usize,
    /// Time from the first call to the last.
    pub took: Duration,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self { clock: Clock::start(), calls: Mutex::default() }
    }

    /// Returns the time since the start of the server.
    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    pub(crate) fn add(&self, at: Duration, job: &str, status: u16) {
        self.add_authorized(at, job, status, None);
    }

    /// Adds a call with its credentials.
    pub(crate) fn add_authorized(
        &self,
        at: Duration,
        job: &str,
        status: u16,
        authorization: Option<String>,
    ) {
        self.lock().push(Call { at, job: job.to_owned(), status, authorization });
    }

    /// Returns all calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().clone()
    }

    /// Returns the arrival times as Unix time, in order.
    pub fn arrivals(&self) -> Vec<Duration> {
        let began = self.clock.began_at();
        let mut arrivals: Vec<_> = self.lock().iter().map(|call| began + call.at).collect();
        arrivals.sort_unstable();
        arrivals
    }

    /// Computes the statistics, with windows of this length.
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
    /// Returns the statistics as JSON.
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
