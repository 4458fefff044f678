//! Prometheus metrics of dispatchers and workers. Provider labels are names from the configuration,
//! so that producers can't create series.
//!
//! | metric | meaning | also known as |
//! |---|---|---|
//! | `sluicegate_dispatch_checked_total{provider}` | messages checked against the limit of their provider | `dispatcher.ratelimit.checked` |
//! | `sluicegate_dispatch_allowed_total{provider}` | messages sent without a delay | `dispatcher.ratelimit.allowed` |
//! | `sluicegate_dispatch_delayed_total{provider}` | messages sent with a delay | `dispatcher.ratelimit.delayed` |
//! | `sluicegate_dispatch_delay_seconds{provider}` | length of the delay | `dispatcher.ratelimit.delay_ms` |
//! | `sluicegate_dispatch_rejected_total` | messages without a valid provider, dead-lettered | |
//! | `sluicegate_worker_checked_total{provider}` | messages that workers checked against the limit | `worker.ratelimit.checked` |
//! | `sluicegate_worker_allowed_total{provider}` | messages that the limit admitted | `worker.ratelimit.allowed` |
//! | `sluicegate_worker_blocked_total{provider}` | messages that the limit did not admit at once | `worker.ratelimit.blocked` |
//! | `sluicegate_worker_requeued_total{provider}` | messages returned to the queue until the limit admits them | `worker.ratelimit.requeued` |
//! | `sluicegate_worker_done_total{provider}` | jobs done | `worker.processing.success` |
//! | `sluicegate_worker_failed_total{provider}` | failed attempts | `worker.processing.failed` |
//! | `sluicegate_worker_dead_total{provider}` | jobs dead-lettered | |
//! | `sluicegate_worker_pauses_total{provider}` | pauses that a provider asked for | |
//! | `sluicegate_worker_busy{provider}` | jobs running now | |
//! | `sluicegate_queue_paused{queue}` | 1 while a queue can't be used, for instance because it was deleted | |
//! | `sluicegate_provider_rpm{provider,tier}` | admissions in the last minute | `dispatcher.provider.<p>.rpm`, `worker.provider.<p>.rpm` |
//! | `sluicegate_provider_lead_seconds{provider,tier}` | time before its start at which a turn is claimed | |
//! | `sluicegate_provider_slack_seconds{provider,tier}` | time after its start until which a turn may be used | |

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluicegate_core::Span;
use sluicegate_core::query::Pacing;
use sluicegate_core::time::Clock;
use sluicegate_service::metrics::{
    Family, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Registry,
};

use crate::queue_state::QueueStates;
use crate::tier::Tier;

const PROVIDER: [&str; 1] = ["provider"];
/// Histogram buckets in seconds, from a short wait to the booking horizon.
const BUCKETS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3_600.0];

/// Metrics of all dispatchers and workers of a process. Clones share the same values.
#[derive(Clone)]
pub struct Metrics {
    checked: IntCounterVec,
    allowed: IntCounterVec,
    delayed: IntCounterVec,
    delay: HistogramVec,
    rejected: IntCounter,
    worker: [IntCounterVec; 8],
    busy: IntGaugeVec,
    rpm: AdmissionRates,
    pacing: PacingReaders,
    pub(crate) queues: QueueStates,
}

/// A counter of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerCounter {
    /// Limit checks.
    Checked,
    /// Admissions.
    Allowed,
    /// Checks that were not admitted at once.
    Blocked,
    /// Messages returned to the queue.
    Requeued,
    /// Jobs done.
    Done,
    /// Failed attempts.
    Failed,
    /// Dead-lettered jobs.
    Dead,
    /// Pauses that the provider asked for.
    Paused,
}

const COUNTS: [(WorkerCounter, &str, &str); 8] = [
    (
        WorkerCounter::Checked,
        "sluicegate_worker_checked_total",
        "Messages that workers checked against the limit.",
    ),
    (
        WorkerCounter::Allowed,
        "sluicegate_worker_allowed_total",
        "Messages that the limit of workers admitted.",
    ),
    (
        WorkerCounter::Blocked,
        "sluicegate_worker_blocked_total",
        "Messages that the limit of workers did not admit at once.",
    ),
    (
        WorkerCounter::Requeued,
        "sluicegate_worker_requeued_total",
        "Messages returned to the queue until the limit admits them.",
    ),
    (WorkerCounter::Done, "sluicegate_worker_done_total", "Jobs done."),
    (WorkerCounter::Failed, "sluicegate_worker_failed_total", "Failed attempts."),
    (WorkerCounter::Dead, "sluicegate_worker_dead_total", "Jobs dead-lettered."),
    (WorkerCounter::Paused, "sluicegate_worker_pauses_total", "Pauses that a provider asked for."),
];

impl Metrics {
    /// Declares the metrics, with all values at zero.
    pub fn new(registry: &Registry, clock: Arc<dyn Clock>) -> Self {
        let counters = |name: &str, help: &str| registry.counters(name, help, &PROVIDER);
        Self {
            checked: counters(
                "sluicegate_dispatch_checked_total",
                "Messages checked against the limit of their provider.",
            ),
            allowed: counters(
                "sluicegate_dispatch_allowed_total",
                "Messages sent without a delay.",
            ),
            delayed: counters("sluicegate_dispatch_delayed_total", "Messages sent with a delay."),
            delay: registry.histograms(
                "sluicegate_dispatch_delay_seconds",
                "Length of the delay.",
                &PROVIDER,
                &BUCKETS,
            ),
            rejected: registry.counter(
                "sluicegate_dispatch_rejected_total",
                "Messages without a valid provider.",
            ),
            worker: COUNTS.map(|(_, name, help)| counters(name, help)),
            busy: registry.gauges("sluicegate_worker_busy", "Jobs running now.", &PROVIDER),
            rpm: AdmissionRates::new(registry, clock),
            pacing: PacingReaders::new(registry),
            queues: QueueStates::new(registry),
        }
    }

    /// Returns the value of a worker counter.
    pub fn worker(&self, provider: &str, count: WorkerCounter) -> u64 {
        self.counter(count).with_label_values(&[provider]).get()
    }

    /// Returns the number of messages that dispatchers sent to a provider: at once, and with a
    /// delay.
    pub fn dispatched(&self, provider: &str) -> (u64, u64) {
        let read = |counter: &IntCounterVec| counter.with_label_values(&[provider]).get();
        (read(&self.allowed), read(&self.delayed))
    }

    /// Returns true if messages wait because a queue can't be used.
    pub fn is_paused(&self) -> bool {
        self.queues.any()
    }

    /// Returns the number of admissions in the last minute.
    pub fn per_minute(&self, provider: &str, tier: Tier) -> u64 {
        self.rpm.read(provider, tier.name())
    }

    /// Shows the counters of a dispatcher's provider as 0 before the first event: an alert on a
    /// missing series never fires.
    pub(crate) fn show_dispatched(&self, provider: &str) {
        for counter in [&self.checked, &self.allowed, &self.delayed] {
            counter.with_label_values(&[provider]);
        }
    }

    /// Does the same for the provider of a worker.
    pub(crate) fn show_worked(&self, provider: &str) {
        for counter in &self.worker {
            counter.with_label_values(&[provider]);
        }
        self.busy.with_label_values(&[provider]);
    }

    /// Shows the lead and the slack of a provider's turns until `read` returns `None`.
    pub(crate) fn show_pacing(
        &self,
        provider: &str,
        tier: Tier,
        read: impl Fn() -> Option<Option<Pacing>> + Send + Sync + 'static,
    ) {
        self.pacing.lock().push((provider.to_owned(), tier.name(), Box::new(read)));
    }

    pub(crate) fn checked(&self, provider: &str) {
        self.checked.with_label_values(&[provider]).inc();
    }

    pub(crate) fn sent(&self, provider: &str, later: Option<Span>) {
        match later {
            None => {
                self.allowed.with_label_values(&[provider]).inc();
                self.rpm.count(provider, Tier::Dispatch.name());
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

    pub(crate) fn count(&self, provider: &str, count: WorkerCounter) {
        self.counter(count).with_label_values(&[provider]).inc();
        if count == WorkerCounter::Allowed {
            self.rpm.count(provider, Tier::Worker.name());
        }
    }

    pub(crate) fn busy(&self, provider: &str, change: i64) {
        self.busy.with_label_values(&[provider]).add(change);
    }

    fn counter(&self, count: WorkerCounter) -> &IntCounterVec {
        &self.worker[count as usize]
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

static PACING: [Family; 2] = [
    Family::gauge(
        "sluicegate_provider_lead_seconds",
        "Time before its start at which a turn is claimed.",
        &["provider", "tier"],
    ),
    Family::gauge(
        "sluicegate_provider_slack_seconds",
        "Time after its start until which a turn may be used.",
        &["provider", "tier"],
    ),
];

/// The lead and the slack of all providers and tiers, read at each scrape.
#[derive(Clone, Default)]
struct PacingReaders(Arc<Mutex<Vec<PacingReader>>>);

/// Provider, tier, and a function that returns their lead and slack: `Some(None)` if no limit
/// applies, `None` if the dispatcher or worker is gone.
type PacingReader = (String, &'static str, Box<dyn Fn() -> Option<Option<Pacing>> + Send + Sync>);

impl PacingReaders {
    fn new(registry: &Registry) -> Self {
        let readers = Self::default();
        let shown = readers.clone();
        registry.on_scrape(&PACING, move |[leads, slacks]| {
            // Several workers of a provider have one series: that of the farthest store.
            let mut longest: BTreeMap<(String, &str), Pacing> = BTreeMap::new();
            shown.lock().retain(|(provider, tier, read)| {
                let Some(pacing) = read() else { return false };
                if let Some(Pacing { lead, slack, .. }) = pacing {
                    let one = longest.entry((provider.clone(), *tier));
                    let one = one.or_insert(Pacing { lead, slack, owner: None });
                    one.lead = one.lead.max(lead);
                    one.slack = one.slack.max(slack);
                }
                true
            });
            for ((provider, tier), Pacing { lead, slack, .. }) in longest {
                leads.add(&[&provider, tier], lead.as_micros() as f64 / 1e6);
                slacks.add(&[&provider, tier], slack.as_micros() as f64 / 1e6);
            }
        });
        readers
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PacingReader>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static RATES: [Family; 1] = [Family::gauge(
    "sluicegate_provider_rpm",
    "Admissions in the last minute.",
    &["provider", "tier"],
)];

/// The number of admissions in the last minute, counted per second.
#[derive(Clone)]
struct AdmissionRates {
    clock: Arc<dyn Clock>,
    minutes: Arc<Mutex<HashMap<(String, &'static str), Minute>>>,
}

/// Second and number of admissions, for each of the last 60 seconds.
type Minute = [(u64, u64); 60];

impl AdmissionRates {
    fn new(registry: &Registry, clock: Arc<dyn Clock>) -> Self {
        let rates = Self { clock, minutes: Arc::default() };
        let shown = rates.clone();
        registry.on_scrape(&RATES, move |[gauge]| {
            for ((provider, tier), seconds) in &*shown.minutes() {
                gauge.add(&[provider, tier], shown.sum(seconds) as f64);
            }
        });
        rates
    }

    fn count(&self, provider: &str, tier: &'static str) {
        let second = self.second();
        let mut all = self.minutes();
        let seconds = all.entry((provider.to_owned(), tier)).or_insert([(0, 0); 60]);
        let slot = &mut seconds[(second % 60) as usize];
        *slot = if slot.0 == second { (second, slot.1 + 1) } else { (second, 1) };
    }

    fn read(&self, provider: &str, tier: &'static str) -> u64 {
        self.minutes().get(&(provider.to_owned(), tier)).map_or(0, |seconds| self.sum(seconds))
    }

    fn sum(&self, seconds: &Minute) -> u64 {
        let now = self.second();
        let recent = seconds.iter().filter(|(second, _)| second + 60 > now);
        recent.map(|(_, count)| count).sum()
    }

    fn second(&self) -> u64 {
        self.clock.now().as_micros() / 1_000_000
    }

    fn minutes(&self) -> MutexGuard<'_, HashMap<(String, &'static str), Minute>> {
        self.minutes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
