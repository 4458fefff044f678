//! Measures jobs per second on the embedded queue from the raw queue through a dispatcher and a
//! worker to their acknowledgement, without limits and with a handler that does nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use sluicegate_core::Span;
use sluicegate_dispatch::{DelayMode, Handler, HandlerResult, Job, JobSuccess, WorkerCounter};
use sluicegate_queue::Embedded;

use crate::report::{Table, grouped};
use crate::rounds::Figure;
use crate::setting::{Setting, memory_service};

/// Numbers of concurrent jobs, and the goals for jobs per second.
const CASES: [(u16, Option<f64>); 2] = [(20, None), (200, Some(10_000.0))];

/// A handler that does nothing.
struct Idle;

impl Handler for Idle {
    fn handle<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, HandlerResult> {
        std::future::ready(HandlerResult::done(JobSuccess::default())).boxed()
    }
}

pub(crate) async fn measure(quick: bool, rounds: u8) -> anyhow::Result<()> {
    let jobs = if quick { 5_000 } else { 50_000 };
    // Not in /tmp, which may be in memory: its writes would not be durable.
    let program = std::env::current_exe()?;
    let folder = tempfile::tempdir_in(program.parent().context("no folder")?)?;
    println!(
        "\n## {} jobs of 2 KB from end to end on the embedded queue, {rounds} rounds\n",
        grouped(jobs as f64)
    );
    let mut table = Table::new(&["jobs at a time", "jobs/s", "min–max", "goal"]);
    for (concurrency, goal) in CASES {
        let path = folder.path().join(format!("{concurrency}.db"));
        let broker = Arc::new(Embedded::open(&path)?);
        let mut setting = Setting::on(memory_service(), None, broker, "whole");
        let mut rates = Vec::new();
        // The first round is a warm-up.
        for round in 0..=rounds {
            let rate = run(&mut setting, jobs, concurrency).await?;
            if round > 0 {
                rates.push(rate);
            }
        }
        let figure = Figure::of(rates);
        let spread = format!("{}–{}", grouped(figure.min), grouped(figure.max));
        let verdict = goal.map_or_else(String::new, |goal| {
            let met = if figure.median >= goal { "met" } else { "missed" };
            format!("≥ {} {met}", grouped(goal))
        });
        table.row([concurrency.to_string(), grouped(figure.median), spread, verdict]);
    }
    print!("{table}");
    Ok(())
}

async fn run(setting: &mut Setting, jobs: usize, concurrency: u16) -> anyhow::Result<f64> {
    setting.produce("raw", jobs).await?;
    let done = |setting: &Setting| setting.metrics.worker("p", WorkerCounter::Done);
    let before = done(setting);
    let began = Instant::now();
    setting.dispatch_with(DelayMode::Fixed(Span::from_secs(30)), false, concurrency).await?;
    setting.work_with((concurrency, concurrency), false, false, Arc::new(Idle)).await?;
    while done(setting) < before + jobs as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    setting.finish().await;
    Ok(jobs as f64 / took.as_secs_f64())
}
