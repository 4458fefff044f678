//! Compares three ways to delay a backlog that takes two windows of its limit.
//!
//! - *Worker only*: no dispatcher. A worker holds a message over the limit for up to 5 s, asks
//!   again and again, and then counts the attempt as failed. A message has three attempts.
//! - *Fixed delay*: the dispatcher delays a message over the limit by a fixed time.
//! - *Booked*: the dispatcher books the start of each message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluicegate_core::Span;
use sluicegate_core::query::{Query, RuleScope};
use sluicegate_dispatch::{DelayMode, PROVIDER, TIER, WorkerCounter};
use sluicegate_queue::{DeadLetterReason, Delivery, DeliveryTime};
use sluicegate_service::{DecisionMode, Service};
use sluicegate_testkit::rabbitmq::RabbitServer;
use tokio::task::JoinSet;

use crate::provider::Provider;
use crate::report::Table;
use crate::setting::Setting;

/// The limit and the number of messages.
struct Load {
    limit: usize,
    window: Duration,
    jobs: usize,
}

/// Results of one run.
struct Outcome {
    requeued: u64,
    failed: u64,
    /// Time from the first call of the provider to the last.
    took: Duration,
    most: usize,
    scripts: u64,
}

pub(crate) async fn measure(broker: &RabbitServer, quick: bool) -> anyhow::Result<()> {
    let load = match quick {
        true => Load { limit: 50, window: Duration::from_secs(6), jobs: 100 },
        false => Load { limit: 500, window: Duration::from_secs(60), jobs: 1_000 },
    };
    println!("\n## {} messages at {} in {} s\n", load.jobs, load.limit, load.window.as_secs());
    let head = [
        "",
        "requeued",
        "failed",
        "first to last call, s",
        "× the minimum",
        "of the limit used",
        "most in a window",
        "scripts in Redis",
    ];
    let mut table = Table::new(&head);
    let least = load.window.as_secs_f64() * (load.jobs as f64 / load.limit as f64 - 1.0);
    let ways = ["worker only", "fixed delay", "booked"];
    let mut booked = None;
    for way in ways {
        let outcome = match way {
            "worker only" => worker_only(broker, &load).await?,
            "fixed delay" => {
                dispatched(broker, &load, "fixed", DelayMode::Fixed(half(&load))).await?
            }
            _ => dispatched(broker, &load, "booked", DelayMode::Booked).await?,
        };
        let took = outcome.took.as_secs_f64();
        let given = load.limit as f64 * (1.0 + took / load.window.as_secs_f64());
        let done = load.jobs as f64 - outcome.failed as f64;
        table.row([
            way.to_owned(),
            outcome.requeued.to_string(),
            outcome.failed.to_string(),
            format!("{took:.1}"),
            format!("{:.2}", took / least),
            format!("{:.1} %", 100.0 * done / given),
            outcome.most.to_string(),
            outcome.scripts.to_string(),
        ]);
        booked = Some((outcome.requeued, took / least, done / given));
    }
    print!("{table}");
    let (requeued, over, used) = booked.expect("it was measured last");
    let met = requeued == 0 && over <= 1.05 && used >= 0.98;
    println!(
        "\ngoal of booked: 0 requeued, at least 98 % used, at most 1.05 × the minimum of {least:.1} s: {}",
        if met { "met" } else { "missed" }
    );
    Ok(())
}

const fn half(load: &Load) -> Span {
    Span::from_millis(load.window.as_millis() as u64 / 2)
}

async fn dispatched(
    broker: &RabbitServer,
    load: &Load,
    name: &str,
    delay: DelayMode,
) -> anyhow::Result<Outcome> {
    let mut setting = setting(broker, load, name).await?;
    setting.produce("raw", load.jobs).await?;
    let provider = Arc::new(Provider::default());
    setting.work(delay == DelayMode::Booked, provider.clone()).await?;
    setting.dispatch(delay, true).await?;
    wait(|| {
        setting.metrics.worker("p", WorkerCounter::Done)
            + setting.metrics.worker("p", WorkerCounter::Dead)
            >= load.jobs as u64
    })
    .await;
    setting.finish().await;
    let (took, most) = provider.seen(judged(load));
    Ok(Outcome {
        requeued: setting.metrics.worker("p", WorkerCounter::Requeued),
        failed: setting.metrics.worker("p", WorkerCounter::Dead),
        took,
        most,
        scripts: setting.scripts(),
    })
}

/// Measures workers without a dispatcher: an attempt that has waited 5 s for the limit fails.
/// Frozen.
async fn worker_only(broker: &RabbitServer, load: &Load) -> anyhow::Result<Outcome> {
    const PATIENCE: Duration = Duration::from_secs(5);
    const ATTEMPTS: u32 = 3;
    let setting = setting(broker, load, "alone").await?;
    setting.produce("p", load.jobs).await?;
    let queue = setting.queue("p").await?;
    let mut consumer = queue.consume(200).await?;
    let provider = Arc::new(Provider::default());
    let counts: Arc<[AtomicU64; 3]> = Arc::default();
    let mut tasks = JoinSet::new();
    let [done, requeued, failed] = [0, 1, 2];
    while counts[done].load(Ordering::SeqCst) + counts[failed].load(Ordering::SeqCst)
        < load.jobs as u64
    {
        while tasks.len() >= 200 {
            tasks.join_next().await;
        }
        let moment = Duration::from_millis(100);
        let Ok(received) = tokio::time::timeout(moment, consumer.receive(50)).await else {
            continue;
        };
        for delivery in received? {
            let (service, provider) = (setting.service.clone(), provider.clone());
            let counts = counts.clone();
            tasks.spawn(async move {
                let began = Instant::now();
                while !may_go(&service).await {
                    if began.elapsed() >= PATIENCE {
                        let last = delivery.message().meta.attempt + 1 >= ATTEMPTS;
                        counts[if last { failed } else { requeued }].fetch_add(1, Ordering::SeqCst);
                        return fail(delivery, last).await;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                provider.call().await;
                if delivery.ack().await.is_ok() {
                    counts[done].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    }
    let (took, most) = provider.seen(judged(load));
    anyhow::ensure!(provider.calls() > 0, "the provider was never called");
    Ok(Outcome {
        requeued: counts[requeued].load(Ordering::SeqCst),
        failed: counts[failed].load(Ordering::SeqCst),
        took,
        most,
        scripts: setting.scripts(),
    })
}

async fn fail(delivery: Delivery, last: bool) {
    let settled = match last {
        true => delivery.dead_letter(DeadLetterReason::new("the limit was reached for 5 s")).await,
        false => delivery.retry(DeliveryTime::After(Span::from_secs(1))).await,
    };
    // A delivery that could not be settled comes again and is counted then.
    let _ = settled;
}

async fn may_go(service: &Service) -> bool {
    let mut query = Query::new(service.request_id());
    query.insert_own(PROVIDER, "p");
    query.insert_own(TIER, "worker");
    query.rule_scope = RuleScope::Own;
    let asked = [query];
    service
        .decide(&asked, DecisionMode::Acquire, |answer| answer.is_allowed())
        .await
        .unwrap_or(false)
}

async fn setting(broker: &RabbitServer, load: &Load, name: &str) -> anyhow::Result<Setting> {
    let limit = format!("{}/{}s", load.limit, load.window.as_secs());
    Setting::new(&broker.url(), name, &limit).await
}

/// Returns the window in which calls are counted: a little shorter than that of the limit, because
/// a call arrives some time after it was admitted.
fn judged(load: &Load) -> Duration {
    load.window - Duration::from_millis(500)
}

async fn wait(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
