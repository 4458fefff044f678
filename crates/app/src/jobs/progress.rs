//! The progress line of jobs on the terminal: messages per queue, rates, failures and time left.

use std::fmt::Write as _;
use std::time::Duration;

use sluicegate_config::Config;
use sluicegate_core::limit::Unit;
use sluicegate_core::{Limit, Span};
use sluicegate_dispatch::{Tier, WorkerCounter};
use tokio_util::sync::CancellationToken;

use super::JobMonitor;
use crate::console::Console;

const EVERY: Duration = Duration::from_secs(1);
/// Number of updates over which the rate is averaged.
const RATE_OVER: usize = 10;

/// Updates the progress line every second until it is stopped. Hides it while there are no jobs.
pub(crate) async fn show(console: Console, monitor: JobMonitor, stop: CancellationToken) {
    let mut tick = tokio::time::interval(EVERY);
    let mut done = Vec::new();
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let finished = monitor.count(WorkerCounter::Done) + monitor.count(WorkerCounter::Dead);
        done.push(finished);
        if done.len() > RATE_OVER {
            done.remove(0);
        }
        let rate = (finished - done[0]) as f64 / (done.len().max(2) - 1) as f64;
        match line(&monitor, rate) {
            Some(line) => console.show_progress(line),
            None => console.clear_progress(),
        }
    }
    console.clear_progress();
}

impl JobMonitor {
    fn count(&self, count: WorkerCounter) -> u64 {
        self.providers.iter().map(|provider| self.metrics.worker(provider, count)).sum()
    }
}

/// The rate limits of one provider's jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderRates {
    provider: String,
    queue: String,
    /// Amount and window of each limit on requests.
    rates: Vec<(u64, Span)>,
}

impl ProviderRates {
    /// Returns the limits that the workers and the dispatcher of a configuration enforce.
    pub(crate) fn of(config: &Config) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        let mut add = |provider: &str, queue: &str, limits: &[Limit]| {
            let rates = limits.iter().filter(|limit| limit.unit() == Unit::Requests);
            let rates = rates.map(|limit| (limit.rate(), limit.window()));
            let rates = rates.filter(|(amount, window)| *amount > 0 && *window > Span::ZERO);
            match all.iter_mut().find(|known| known.queue == queue) {
                Some(known) => known.rates.extend(rates),
                None => all.push(Self {
                    provider: provider.to_owned(),
                    queue: queue.to_owned(),
                    rates: rates.collect(),
                }),
            }
        };
        for worker in config.workers.iter().filter(|worker| config.enabled && worker.enabled) {
            add(&worker.provider, &worker.queue, &worker.limits);
        }
        let dispatch = config.dispatch.iter().filter(|dispatch| config.enabled && dispatch.enabled);
        for provider in dispatch.flat_map(|dispatch| &dispatch.providers) {
            add(&provider.name, &provider.queue, &provider.limits);
        }
        all
    }

    /// Returns the minimum time for `left` jobs under the limits, if `per_minute` jobs were
    /// admitted in the last minute.
    fn time_for(&self, left: u64, per_minute: u64) -> f64 {
        let time = |(amount, window): &(u64, Span)| {
            let (amount, window) = (*amount as f64, window.as_micros() as f64 / 1e6);
            let used = (per_minute as f64 * (window / 60.0).min(1.0)).min(amount);
            (left as f64 + used - amount).max(0.0) / amount * window
        };
        self.rates.iter().map(time).fold(0.0, f64::max)
    }

    /// Returns the maximum sustained number of jobs per second under the limits, if there are any.
    fn per_second(&self) -> Option<f64> {
        let rate =
            |(amount, window): &(u64, Span)| *amount as f64 * 1e6 / window.as_micros() as f64;
        self.rates.iter().map(rate).min_by(f64::total_cmp)
    }
}

/// Returns the expected time until all jobs are done, from the measured rate, but at least the time
/// that the limits require. `left` is the number of messages in each queue.
fn seconds_left(
    left: &[(String, u64)],
    rate: f64,
    limits: &[ProviderRates],
    per_minute: impl Fn(&str) -> u64,
) -> Option<f64> {
    let total: u64 = left.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return None;
    }
    let in_queue = |queue: &str| left.iter().find(|(name, _)| name == queue).map_or(0, |(_, n)| *n);
    let of_provider = limits
        .iter()
        .map(|limits| limits.time_for(in_queue(&limits.queue), per_minute(&limits.provider)));
    let of_provider = of_provider.fold(0.0, f64::max);
    // For jobs that are not assigned to a provider yet: all providers together can't be faster than
    // their limits.
    let together: Option<f64> = limits.iter().map(ProviderRates::per_second).sum();
    let burst: u64 = limits
        .iter()
        .map(|limits| {
            let smallest = limits.rates.iter().map(|(amount, _)| *amount).min().unwrap_or(0);
            smallest.saturating_sub(per_minute(&limits.provider))
        })
        .sum();
    let of_all = together
        .filter(|rate| *rate > 0.0)
        .map_or(0.0, |together| total.saturating_sub(burst) as f64 / together);
    let measured = if rate > 0.0 { total as f64 / rate } else { 0.0 };
    let seconds = measured.max(of_provider).max(of_all);
    (seconds > 0.0).then(|| seconds.ceil())
}

/// Formats the line; `None` if the queues are empty and nothing was done for a minute.
fn line(monitor: &JobMonitor, rate: f64) -> Option<String> {
    let mut line = String::new();
    let mut left = Vec::new();
    for (queue, depth) in monitor.depths.depths() {
        let delayed = depth.delayed.unwrap_or_default();
        let waiting = depth.ready + delayed + depth.in_flight.unwrap_or_default();
        left.push((queue.clone(), waiting));
        if waiting > 0 {
            let _ = write!(line, "{queue} {}", depth.ready);
            if delayed > 0 {
                let _ = write!(line, "+{delayed} delayed");
            }
            line.push_str(" · ");
        }
    }
    for provider in &monitor.providers {
        let per_minute = monitor.metrics.per_minute(provider, Tier::Worker);
        if per_minute > 0 {
            let _ = write!(line, "{provider} {per_minute}/min · ");
        }
    }
    if line.is_empty() {
        return None;
    }
    let _ = write!(line, "done {}", monitor.count(WorkerCounter::Done));
    for (count, word) in [
        (WorkerCounter::Requeued, "deferred"),
        (WorkerCounter::Failed, "failed"),
        (WorkerCounter::Dead, "dead"),
    ] {
        let number = monitor.count(count);
        if number > 0 {
            let _ = write!(line, " · {word} {number}");
        }
    }
    if rate > 0.0 {
        let _ = write!(line, " · {rate:.1}/s");
    }
    let limits = monitor.rates();
    let per_minute = |provider: &str| monitor.metrics.per_minute(provider, Tier::Worker);
    if let Some(seconds) = seconds_left(&left, rate, &limits, per_minute) {
        let _ = write!(line, " · {} left", Span::from_secs(seconds as u64).in_words());
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(rates: &[(u64, u64)]) -> Vec<ProviderRates> {
        let rates = rates.iter().map(|(amount, secs)| (*amount, Span::from_secs(*secs))).collect();
        vec![ProviderRates { provider: "p".to_owned(), queue: "p-queue".to_owned(), rates }]
    }

    fn check(queue: &str, count: u64, rate: f64, rates: &[(u64, u64)], used: u64, expected: u64) {
        let left = [(queue.to_owned(), count)];
        let seconds = seconds_left(&left, rate, &limits(rates), |_| used);
        assert_eq!(seconds.map(|seconds| seconds as u64), Some(expected), "{count} in {queue}");
    }

    #[test]
    fn the_estimate_honours_the_limit() {
        // The first 500 were done in 5 s; the others wait for the window.
        check("p-queue", 500, 100.0, &[(500, 60)], 500, 60);
        check("p-queue", 1_000, 100.0, &[(500, 60)], 500, 120);
        // Nothing was admitted yet: a whole window is free.
        check("p-queue", 1_000, 0.0, &[(500, 60)], 0, 60);
        // The queue of the dispatcher, whose jobs go to the same provider.
        check("raw", 1_000, 100.0, &[(500, 60)], 500, 120);
        // The longest of several limits.
        check("p-queue", 1_000, 100.0, &[(500, 60), (100, 60)], 500, 600);
        // A slow worker is slower than the limit.
        check("p-queue", 1_000, 1.0, &[(5_000, 60)], 60, 1_000);
        check("p-queue", 1_000, 1.0, &[], 60, 1_000);
    }

    #[test]
    fn nothing_left_and_nothing_known_has_no_estimate() {
        let left = |count| [("p-queue".to_owned(), count)];
        assert_eq!(seconds_left(&left(0), 5.0, &limits(&[(5, 60)]), |_| 0), None);
        assert_eq!(seconds_left(&left(7), 0.0, &limits(&[]), |_| 0), None);
        assert_eq!(seconds_left(&left(7), 0.0, &limits(&[(10, 60)]), |_| 0), None);
    }
}
