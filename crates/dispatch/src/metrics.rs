//! What Prometheus is told of dispatchers and workers. Providers are names of the configuration,
//! so that producers can't make series.
//!
//! | metric | counts | was called elsewhere |
//! |---|---|---|
//! | `sluicegate_dispatch_checked_total{provider}` | messages whose provider's limit was asked | `dispatcher.ratelimit.checked` |
//! | `sluicegate_dispatch_allowed_total{provider}` | messages that went on at once | `dispatcher.ratelimit.allowed` |
//! | `sluicegate_dispatch_delayed_total{provider}` | messages that were sent for later | `dispatcher.ratelimit.delayed` |
//! | `sluicegate_dispatch_delay_seconds{provider}` | for how much later | `dispatcher.ratelimit.delay_ms` |
//! | `sluicegate_dispatch_rejected_total` | messages that no provider can take: dead letters | |
//! | `sluicegate_worker_checked_total{provider}` | turns that workers asked for | `worker.ratelimit.checked` |
//! | `sluicegate_worker_allowed_total{provider}` | turns that they got | `worker.ratelimit.allowed` |
//! | `sluicegate_worker_blocked_total{provider}` | turns that they did not get at once | `worker.ratelimit.blocked` |
//! | `sluicegate_worker_requeued_total{provider}` | messages that went back until there is room | `worker.ratelimit.requeued` |
//! | `sluicegate_worker_done_total{provider}` | jobs that were done | `worker.processing.success` |
//! | `sluicegate_worker_failed_total{provider}` | attempts that failed | `worker.processing.failed` |
//! | `sluicegate_worker_dead_total{provider}` | jobs that went to the dead letters | |
//! | `sluicegate_worker_pauses_total{provider}` | times that a provider asked for a pause | |
//! | `sluicegate_worker_busy{provider}` | jobs that are in work now | |
//! | `sluicegate_provider_rpm{provider,tier}` | turns within the last minute | `dispatcher.provider.<p>.rpm`, `worker.provider.<p>.rpm` |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};
use sluicegate_core::Span;
use sluicegate_core::time::Clock;

use crate::tier::Tier;

const PROVIDER: [&str; 1] = ["provider"];
/// From a wait that nobody notices to the horizon of bookings.
const BUCKETS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3_600.0];

/// The metrics of all dispatchers and workers of a process. A clone is another handle to the same.
#[derive(Clone)]
pub struct Metrics {
    checked: IntCounterVec,
    allowed: IntCounterVec,
    delayed: IntCounterVec,
    delay: HistogramVec,
    rejected: IntCounter,
    worker: [IntCounterVec; 8],
    busy: IntGaugeVec,
    rpm: Rates,
}

/// What a worker counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// A turn was asked for.
    Checked,
    /// It came at once.
    Allowed,
    /// It did not.
    Blocked,
    /// A message went back.
    Requeued,
    /// A job is done.
    Done,
    /// An attempt failed.
    Failed,
    /// A job went to the dead letters.
    Dead,
    /// The provider asked for a pause.
    Paused,
}

const COUNTS: [(Count, &str, &str); 8] = [
    (Count::Checked, "sluicegate_worker_checked_total", "Turns that workers asked for."),
    (Count::Allowed, "sluicegate_worker_allowed_total", "Turns that workers got."),
    (Count::Blocked, "sluicegate_worker_blocked_total", "Turns that workers did not get at once."),
    (
        Count::Requeued,
        "sluicegate_worker_requeued_total",
        "Messages that went back until there is room.",
    ),
    (Count::Done, "sluicegate_worker_done_total", "Jobs that were done."),
    (Count::Failed, "sluicegate_worker_failed_total", "Attempts that failed."),
    (Count::Dead, "sluicegate_worker_dead_total", "Jobs that went to the dead letters."),
    (Count::Paused, "sluicegate_worker_pauses_total", "Times that a provider asked for a pause."),
];

impl Metrics {
    /// Metrics that nothing was counted in yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let fixed = "the names in this file are valid, and each is used once";
        let counter = |name: &str, help: &str| {
            IntCounterVec::new(Opts::new(name, help), &PROVIDER).expect(fixed)
        };
        let delay = HistogramOpts::new(
            "sluicegate_dispatch_delay_seconds",
            "For how much later messages were sent.",
        );
        let rejected = "Messages that no provider can take.";
        let busy = Opts::new("sluicegate_worker_busy", "Jobs that are in work now.");
        Self {
            checked: counter(
                "sluicegate_dispatch_checked_total",
                "Messages whose provider's limit was asked.",
            ),
            allowed: counter("sluicegate_dispatch_allowed_total", "Messages that went on at once."),
            delayed: counter(
                "sluicegate_dispatch_delayed_total",
                "Messages that were sent for later.",
            ),
            delay: HistogramVec::new(delay.buckets(BUCKETS.to_vec()), &PROVIDER).expect(fixed),
            rejected: IntCounter::new("sluicegate_dispatch_rejected_total", rejected).expect(fixed),
            worker: COUNTS.map(|(_, name, help)| counter(name, help)),
            busy: IntGaugeVec::new(busy, &PROVIDER).expect(fixed),
            rpm: Rates::new(clock),
        }
    }

    /// Shows them in a registry.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let fixed: [Box<dyn Collector>; 7] = [
            Box::new(self.checked.clone()),
            Box::new(self.allowed.clone()),
            Box::new(self.delayed.clone()),
            Box::new(self.delay.clone()),
            Box::new(self.rejected.clone()),
            Box::new(self.busy.clone()),
            Box::new(self.rpm.clone()),
        ];
        let worker =
            self.worker.iter().cloned().map(|counter| -> Box<dyn Collector> { Box::new(counter) });
        fixed.into_iter().chain(worker).try_for_each(|collector| registry.register(collector))
    }

    /// What workers of a provider have counted so far.
    pub fn worker(&self, provider: &str, count: Count) -> u64 {
        self.counter(count).with_label_values(&[provider]).get()
    }

    /// How many messages dispatchers sent to a provider so far: at once, and for later.
    pub fn dispatched(&self, provider: &str) -> (u64, u64) {
        let read = |counter: &IntCounterVec| counter.with_label_values(&[provider]).get();
        (read(&self.allowed), read(&self.delayed))
    }

    /// The turns of the last minute.
    pub fn per_minute(&self, provider: &str, tier: Tier) -> u64 {
        self.rpm.read(provider, tier.word())
    }

    /// Shows the counters of a dispatcher's provider as 0 before anything is counted: an alert on a
    /// series that is missing never fires.
    pub(crate) fn show_dispatched(&self, provider: &str) {
        for counter in [&self.checked, &self.allowed, &self.delayed] {
            counter.with_label_values(&[provider]);
        }
    }

    /// The same for a worker's provider.
    pub(crate) fn show_worked(&self, provider: &str) {
        for counter in &self.worker {
            counter.with_label_values(&[provider]);
        }
        self.busy.with_label_values(&[provider]);
    }

    pub(crate) fn checked(&self, provider: &str) {
        self.checked.with_label_values(&[provider]).inc();
    }

    pub(crate) fn sent(&self, provider: &str, later: Option<Span>) {
        match later {
            None => {
                self.allowed.with_label_values(&[provider]).inc();
                self.rpm.count(provider, Tier::Dispatch.word());
            }
            Some(span) => {
                self.delayed.with_label_values(&[provider]).inc();
                let seconds = span.as_micros() as f64 / 1e6;
                self.delay.with_label_values(&[provider]).observe(seconds);
            }
        }
    }

    pub(crate) fn rejected(&self) {
        self.rejected.inc();
    }

    pub(crate) fn count(&self, provider: &str, count: Count) {
        self.counter(count).with_label_values(&[provider]).inc();
        if count == Count::Allowed {
            self.rpm.count(provider, Tier::Worker.word());
        }
    }

    pub(crate) fn busy(&self, provider: &str, change: i64) {
        self.busy.with_label_values(&[provider]).add(change);
    }

    fn counter(&self, count: Count) -> &IntCounterVec {
        &self.worker[count as usize]
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// How many turns there were within the last minute, second by second.
#[derive(Clone)]
struct Rates {
    gauge: IntGaugeVec,
    clock: Arc<dyn Clock>,
    minutes: Arc<Mutex<HashMap<(String, &'static str), Minute>>>,
}

/// Of each of the last sixty seconds, its number and its turns.
type Minute = [(u64, u64); 60];

impl Rates {
    fn new(clock: Arc<dyn Clock>) -> Self {
        let options = Opts::new("sluicegate_provider_rpm", "Turns within the last minute.");
        let gauge = IntGaugeVec::new(options, &["provider", "tier"]);
        let gauge = gauge.expect("the name is valid and used once");
        Self { gauge, clock, minutes: Arc::default() }
    }

    fn count(&self, provider: &str, tier: &'static str) {
        let second = self.second();
        let mut all = self.minutes.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = match all.get_mut(&(provider.to_owned(), tier)) {
            Some(seconds) => seconds,
            None => all.entry((provider.to_owned(), tier)).or_insert([(0, 0); 60]),
        };
        let slot = &mut seconds[(second % 60) as usize];
        *slot = if slot.0 == second { (second, slot.1 + 1) } else { (second, 1) };
    }

    fn second(&self) -> u64 {
        self.clock.now().as_micros() / 1_000_000
    }

    fn read(&self, provider: &str, tier: &'static str) -> u64 {
        let all = self.minutes.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(provider.to_owned(), tier)).map_or(0, |seconds| self.sum(seconds))
    }

    fn sum(&self, seconds: &Minute) -> u64 {
        let now = self.second();
        let recent = seconds.iter().filter(|(second, _)| second + 60 > now);
        recent.map(|(_, count)| count).sum()
    }
}

impl Collector for Rates {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let all = self.minutes.lock().unwrap_or_else(PoisonError::into_inner);
        for ((provider, tier), seconds) in &*all {
            let sum = i64::try_from(self.sum(seconds)).unwrap_or(i64::MAX);
            self.gauge.with_label_values(&[provider.as_str(), tier]).set(sum);
        }
        self.gauge.collect()
    }
}
