//! The progress line of jobs on the terminal: messages per queue, rates, failures and time left.

use std::fmt::Write as _;
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_dispatch::WorkerCounter;
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

/// Formats the line; `None` if the queues are empty and nothing was done for a minute.
fn line(monitor: &JobMonitor, rate: f64) -> Option<String> {
    let mut line = String::new();
    let mut left = 0;
    for (queue, depth, dead) in monitor.depths.depths() {
        let delayed = depth.delayed.unwrap_or_default();
        let waiting = depth.ready + delayed + depth.in_flight.unwrap_or_default();
        left += waiting;
        if waiting > 0 || dead > 0 {
            let _ = write!(line, "{queue} {}", depth.ready);
            if delayed > 0 {
                let _ = write!(line, "+{delayed} delayed");
            }
            line.push_str(" · ");
        }
    }
    for provider in &monitor.providers {
        let per_minute = monitor.metrics.per_minute(provider, sluicegate_dispatch::Tier::Worker);
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
    if rate > 0.0 && left > 0 {
        let seconds = (left as f64 / rate).ceil();
        let _ =
            write!(line, " · {rate:.1}/s · {} left", Span::from_secs(seconds as u64).in_words());
    }
    Some(line)
}
