//! Booked work under limits from 10 to 100,000 calls per minute and with 1 to 200 jobs at a time:
//! the limit is used, nothing is requeued, and the provider never gets too many calls.
//!
//! With `SLUICEGATE_LONG=1` the whole grid is run, one cell after the other, and judged by the goal
//! of 97 % and no requeued job; `SLUICEGATE_GRID="500x5 6000x20"` selects some of its cells. Otherwise a few cells are run beside each other, for a shorter time;
//! then jobs may be late for their start, so 90 % are required, and 3 % may be requeued. The limit is
//! checked in the same way. The timeouts of the store and the slack are the defaults.

use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_testkit::eventually;
use sluicegate_testkit::limit_check::Early;

use crate::measured::measured;
use crate::proof;
use crate::support::{TestSetup, early_calls, long, patient, prove, prove_spread, worked};

/// Time that a call to the provider takes.
const LATENCY_MS: u64 = 20;
/// Part of the calls that may be requeued in the short form, whose cells run beside each other on a busy
/// machine.
const REQUEUED_MAX: f64 = 0.03;
/// Time after the first call from which calls are counted: the pacer has measured its store by then.
const WARM_UP: Duration = Duration::from_secs(2);
const MINUTE: Span = Span::from_secs(60);

/// One cell of the grid.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Limit in calls per minute.
    per_minute: usize,
    /// Number of jobs that the worker has in work at a time.
    concurrency: usize,
}

/// The result of a cell.
struct Outcome {
    /// Part of the limit that was used, from 0 to 1.
    used: f64,
    requeued: u64,
    /// Number of turns that were missed.
    missed: usize,
    /// Calls that arrived too early for the limit in a full minute.
    early: Early,
}

impl Cell {
    /// Returns true if so many jobs at a time can make as many calls as the limit allows, even if
    /// each takes a few milliseconds more.
    fn carries_the_rate(self) -> bool {
        self.concurrency * 60_000 >= self.per_minute * (LATENCY_MS as usize + 10)
    }

    /// Returns the time for which calls are counted. As many calls as there are jobs at a time may
    /// start together. Unless these are few of all, calls are counted for a whole window, in which
    /// their number does not depend on its begin.
    fn span(self) -> Duration {
        let span = Duration::from_secs(if long() { 15 } else { 6 });
        let counted = self.per_minute as u64 * span.as_secs() / 60;
        if long() && self.concurrency as u64 * 50 > counted {
            Duration::from_secs(60)
        } else {
            span
        }
    }

    /// Returns the number of calls that the limit allows while they are counted.
    fn calls(self) -> f64 {
        self.per_minute as f64 * self.span().as_secs_f64() / 60.0
    }

    fn config(self, setup: &TestSetup, url: &str) -> String {
        let (name, Self { per_minute, concurrency }) = (&setup.name, self);
        format!(
            "dispatch:
  source: {name}-raw
  delay: booked
  providers:
    gemini: {{queue: {name}-gemini, limit: {per_minute}/min, key: '{name}:dispatch'}}
workers:
  - provider: gemini
    limit: {per_minute}/min
    key: '{name}:worker'
    concurrency: {concurrency}
    handler: {{http: {{url: '{url}/v1/analyze'}}}}
"
        )
    }

    fn measure(self, setup: &TestSetup) -> Outcome {
        let seconds = (self.span() + WARM_UP).as_secs() as usize + 10;
        // As many as there are jobs at a time may start together.
        setup.produce("raw", self.per_minute * seconds / 60 + self.concurrency + 100);
        let (url, record) = setup.provider(patient(LATENCY_MS));
        let running = setup.run("dispatch,worker", &self.config(setup, &url));
        let last = || record.arrivals().pop().unwrap_or_default();
        eventually(|| !record.arrivals().is_empty());
        let from = record.arrivals()[0] + WARM_UP;
        eventually(|| last() >= from + self.span());
        let requeued = worked(&running, "gemini", "requeued");
        let logs = [running.stop()];
        prove(self.per_minute, MINUTE, &logs, &record);
        // The calls of a cell seldom fill a minute, so how they are spread shows that the limit is kept.
        if self.concurrency < self.per_minute {
            let bucket = format!("{}/min burst {}", self.per_minute, self.concurrency);
            prove_spread(&bucket, &logs, &record);
        }
        let arrivals = record.arrivals();
        let counted = arrivals.iter().filter(|at| (from..from + self.span()).contains(*at)).count();
        let early = early_calls(self.per_minute, MINUTE, &record);
        let missed = proof::missed(&logs);
        Outcome { used: counted as f64 / self.calls(), requeued, missed, early }
    }
}

/// Runs the cells that can carry their rate. Prints a row for each measurement, and returns the cells
/// that used less than `goal` of their limit, or requeued jobs instead.
#[expect(clippy::print_stdout, reason = "the table is the result of the test")]
fn missed(cells: &[Cell], goal: f64, setup: impl Fn(String) -> TestSetup) -> Vec<String> {
    let mut missed = Vec::new();
    for (number, cell) in cells.iter().enumerate().filter(|(_, cell)| cell.carries_the_rate()) {
        let requeued_max = match long() {
            true => 0,
            false => (cell.calls() * REQUEUED_MAX) as u64,
        };
        let reached = |found: &Outcome| {
            found.used >= goal && found.requeued <= requeued_max && found.early == Early::default()
        };
        let Cell { per_minute, concurrency } = cell;
        let outcome = measured(reached, |attempt| {
            let found =
                cell.measure(&setup(format!("grid{number}-{attempt}")).with_default_timeouts());
            let Outcome { used, requeued, missed, early } = found;
            println!(
                "| {per_minute}/min | {concurrency} | {used:.3} | {requeued} | {missed} | {early} |"
            );
            found
        });
        if !reached(&outcome) {
            let Outcome { used, requeued, early, .. } = outcome;
            let row = format!(
                "{per_minute}/min with {concurrency}: {used:.3}, {requeued} requeued, too early: {early}"
            );
            missed.push(row);
        }
    }
    missed
}

#[expect(clippy::print_stdout, reason = "the table is the result of the test")]
fn run_grid(setup: impl Fn(String) -> TestSetup) {
    println!("| limit | jobs at a time | used | requeued | missed turns | too early |");
    println!("|---|---|---|---|---|---|");
    let few = [(500, 1), (500, 5), (5_000, 20)];
    let all = [10, 100, 500, 1_000, 3_000, 5_000, 6_000, 20_000, 100_000]
        .into_iter()
        .flat_map(|per_minute| [1, 5, 20, 200].map(|concurrency| (per_minute, concurrency)));
    let cells: Vec<_> = if long() { all.collect() } else { few.to_vec() };
    let selected = std::env::var("SLUICEGATE_GRID").ok();
    let is_selected = |cell: &Cell| {
        let name = format!("{}x{}", cell.per_minute, cell.concurrency);
        selected.as_ref().is_none_or(|names| names.split_whitespace().any(|one| one == name))
    };
    let cells: Vec<_> = cells
        .into_iter()
        .map(|(per_minute, concurrency)| Cell { per_minute, concurrency })
        .filter(is_selected)
        .collect();
    assert!(!cells.is_empty(), "SLUICEGATE_GRID selects no cell");
    let missed = missed(&cells, if long() { 0.97 } else { 0.9 }, setup);
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn booked_work_uses_its_limit_on_the_embedded_queue() {
    run_grid(|name| TestSetup::alone(&name));
}

#[test]
fn booked_work_uses_its_limit_on_rabbitmq_and_redis() {
    run_grid(|name| TestSetup::shared(&name));
}

#[test]
fn booked_work_uses_its_limit_on_rabbitmq_and_a_distant_redis() {
    run_grid(|name| TestSetup::distant(&format!("far{name}"), Duration::from_millis(10)));
}
