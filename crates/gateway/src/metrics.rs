//! Prometheus metrics of gateways. Route labels are names from the configuration, so that clients
//! can't create series.
//!
//! | metric | counts |
//! |---|---|
//! | `sluicegate_gateway_requests_total{gateway,route,status}` | requests, by the status sent to the caller |
//! | `sluicegate_gateway_duration_seconds{gateway,route}` | time from the arrival of a request to the end of its response |
//! | `sluicegate_gateway_queue_depth{gateway,route}` | waiting requests |
//! | `sluicegate_gateway_queue_oldest_seconds{gateway,route}` | age of the oldest waiting request |
//! | `sluicegate_gateway_lead_seconds{gateway,route}` | time before its start at which a turn is claimed |
//! | `sluicegate_gateway_slack_seconds{gateway,route}` | time after its start until which a turn may be used |
//! | `sluicegate_gateway_wait_seconds{gateway,route}` | time that a request waited for its turn; about 0 if it went at once |
//! | `sluicegate_gateway_upstream_answers_total{gateway,route,status}` | responses of the upstream |
//! | `sluicegate_gateway_upstream_seconds{gateway,route}` | time from sending a request to the head of its response |
//! | `sluicegate_gateway_upstream_errors_total{gateway,route,code}` | requests that the upstream failed, by error code: unreachable, too slow, or broken before or in the middle of its response |
//! | `sluicegate_gateway_pauses_total{gateway,route}` | pauses that the upstream asked for |

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sluicegate_core::Span;
use sluicegate_core::query::Pacing;
use sluicegate_service::metrics::{
    Family, Histogram, HistogramVec, IntCounter, IntCounterVec, Registry,
};

use crate::refusal::Refusal;

const ROUTE: [&str; 2] = ["gateway", "route"];
const CODE: [&str; 3] = ["gateway", "route", "code"];
const STATUS: [&str; 3] = ["gateway", "route", "status"];
/// Statuses that alerts count.
const ALERTED: [u16; 2] = [429, 502];
/// Histogram buckets in seconds, from a fast response to a wait of one minute.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 20.0, 60.0];

/// Metrics of all gateways of a process. Clones share the same values.
#[derive(Clone)]
pub struct Metrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    wait: HistogramVec,
    answers: IntCounterVec,
    upstream: HistogramVec,
    errors: IntCounterVec,
    pauses: IntCounterVec,
    queues: Arc<Mutex<Vec<QueueReader>>>,
}

/// The state of a queue at a scrape.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueReading {
    /// Number of waiting requests.
    pub(crate) depth: usize,
    /// Age of the oldest waiting request.
    pub(crate) oldest: Span,
    /// Lead and slack of the turns, if the route has a limit.
    pub(crate) pacing: Option<Pacing>,
}

/// A queue to read: gateway, route, and a function that returns its state.
type QueueReader = (String, String, Box<dyn Fn() -> Option<QueueReading> + Send + Sync>);

/// Gauges of all queues, read at each scrape.
static QUEUES: [Family; 4] = [
    Family::gauge("sluicegate_gateway_queue_depth", "Waiting requests.", &ROUTE),
    Family::gauge(
        "sluicegate_gateway_queue_oldest_seconds",
        "Age of the oldest waiting request.",
        &ROUTE,
    ),
    Family::gauge(
        "sluicegate_gateway_lead_seconds",
        "Time before its start at which a turn is claimed.",
        &ROUTE,
    ),
    Family::gauge(
        "sluicegate_gateway_slack_seconds",
        "Time after its start until which a turn may be used.",
        &ROUTE,
    ),
];

impl Metrics {
    /// Declares the metrics, with all values at zero.
    pub fn new(registry: &Registry) -> Self {
        let counter =
            |name: &str, help: &str, labels: &[&str]| registry.counters(name, help, labels);
        let histogram = |name: &str, help: &str| registry.histograms(name, help, &ROUTE, &BUCKETS);
        let queues: Arc<Mutex<Vec<QueueReader>>> = Arc::default();
        let watched = queues.clone();
        registry.on_scrape(&QUEUES, move |[depths, ages, leads, slacks]| {
            let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
            // A route that is removed and added again has two queues until the old one is empty.
            let mut routes: BTreeMap<[String; 2], QueueReading> = BTreeMap::new();
            watched.retain(|(gateway, route, read)| {
                let Some(reading) = read() else { return false };
                let total = routes.entry([gateway.clone(), route.clone()]).or_default();
                total.depth += reading.depth;
                total.oldest = reading.oldest.max(total.oldest);
                total.pacing = reading.pacing.or(total.pacing);
                true
            });
            for ([gateway, route], QueueReading { depth, oldest, pacing }) in routes {
                depths.add(&[&gateway, &route], depth as f64);
                ages.add(&[&gateway, &route], seconds(oldest));
                if let Some(Pacing { lead, slack, .. }) = pacing {
                    leads.add(&[&gateway, &route], seconds(lead));
                    slacks.add(&[&gateway, &route], seconds(slack));
                }
            }
        });
        Self {
            requests: counter(
                "sluicegate_gateway_requests_total",
                "Requests, by response status.",
                &STATUS,
            ),
            duration: histogram(
                "sluicegate_gateway_duration_seconds",
                "Time from arrival to the end of the response.",
            ),
            wait: histogram(
                "sluicegate_gateway_wait_seconds",
                "Time that requests waited for a turn under the limit of their route, including those \
                 that went at once.",
            ),
            answers: counter(
                "sluicegate_gateway_upstream_answers_total",
                "Responses of the upstream.",
                &STATUS,
            ),
            upstream: histogram(
                "sluicegate_gateway_upstream_seconds",
                "Time from sending to the head of the response.",
            ),
            errors: counter(
                "sluicegate_gateway_upstream_errors_total",
                "Requests that the upstream failed.",
                &CODE,
            ),
            pauses: counter(
                "sluicegate_gateway_pauses_total",
                "Pauses that the upstream asked for.",
                &ROUTE,
            ),
            queues,
        }
    }

    /// Returns the metrics of one route.
    pub(crate) fn route(&self, gateway: &str, route: &str) -> RouteMetrics {
        let labels = [gateway.to_owned(), route.to_owned()];
        RouteMetrics(Arc::new(LazySeries {
            metrics: self.clone(),
            labels,
            series: OnceLock::new(),
        }))
    }

    /// Shows a queue until `read` returns `None`.
    pub(crate) fn watch(
        &self,
        gateway: &str,
        route: &str,
        read: impl Fn() -> Option<QueueReading> + Send + Sync + 'static,
    ) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.push((gateway.to_owned(), route.to_owned(), Box::new(read)));
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Metrics of one route. Clones share the same values.
#[derive(Clone)]
pub(crate) struct RouteMetrics(Arc<LazySeries>);

/// Metrics that create their series at the first use: a route may be part of a configuration that
/// is never applied.
struct LazySeries {
    metrics: Metrics,
    labels: [String; 2],
    series: OnceLock<Series>,
}

/// Series of one route, looked up once.
struct Series {
    requests: StatusCounters,
    duration: Histogram,
    wait: Histogram,
    answers: StatusCounters,
    upstream: Histogram,
    pauses: IntCounter,
}

/// Counters by HTTP status, each created at its first use.
struct StatusCounters {
    family: IntCounterVec,
    labels: [String; 2],
    /// Counter of each status, from 100 on.
    by_status: Box<[OnceLock<IntCounter>]>,
}

impl StatusCounters {
    fn new(family: &IntCounterVec, [gateway, route]: [&str; 2]) -> Self {
        let by_status = std::iter::repeat_with(OnceLock::new).take(500).collect();
        let labels = [gateway.to_owned(), route.to_owned()];
        Self { family: family.clone(), labels, by_status }
    }

    /// Returns the counter of a status.
    fn of(&self, status: u16) -> Cow<'_, IntCounter> {
        let series = || {
            let [gateway, route] = &self.labels;
            self.family.with_label_values(&[gateway, route, &status.to_string()])
        };
        match usize::from(status).checked_sub(100).and_then(|index| self.by_status.get(index)) {
            Some(counter) => Cow::Borrowed(counter.get_or_init(series)),
            None => Cow::Owned(series()),
        }
    }

    fn count(&self, status: u16) {
        self.of(status).inc();
    }
}

impl RouteMetrics {
    /// Returns the name of the route.
    pub(crate) fn name(&self) -> &str {
        &self.0.labels[1]
    }

    fn series(&self) -> &Series {
        let LazySeries { metrics, labels, series } = &*self.0;
        series.get_or_init(|| {
            let labels = labels.each_ref().map(String::as_str);
            let requests = StatusCounters::new(&metrics.requests, labels);
            // Start at 0, so that an alert on the rate sees the first ones.
            ALERTED.into_iter().for_each(|status| drop(requests.of(status)));
            Series {
                requests,
                duration: metrics.duration.with_label_values(&labels),
                wait: metrics.wait.with_label_values(&labels),
                answers: StatusCounters::new(&metrics.answers, labels),
                upstream: metrics.upstream.with_label_values(&labels),
                pauses: metrics.pauses.with_label_values(&labels),
            }
        })
    }

    /// Counts a request that ended.
    pub(crate) fn ended(&self, status: u16, took: Span) {
        self.series().requests.count(status);
        self.series().duration.observe(seconds(took));
    }

    /// Records the time that a request waited for its turn. Requests that go at once are included, so
    /// that quantiles are of the same requests as those of the duration and of the upstream.
    pub(crate) fn waited(&self, took: Span) {
        self.series().wait.observe(seconds(took));
    }

    /// Counts a response of the upstream.
    pub(crate) fn answered(&self, status: u16, took: Span) {
        self.series().answers.count(status);
        self.series().upstream.observe(seconds(took));
    }

    /// Counts a request that the upstream failed; other rejections are not counted.
    pub(crate) fn failed(&self, refusal: &Refusal) {
        if refusal.is_upstream_error() {
            let LazySeries { metrics, labels: [gateway, route], .. } = &*self.0;
            metrics.errors.with_label_values(&[gateway.as_str(), route, refusal.code().1]).inc();
        }
    }

    /// Counts a pause that the upstream asked for.
    pub(crate) fn paused(&self) {
        self.series().pauses.inc();
    }
}

fn seconds(span: Span) -> f64 {
    std::time::Duration::from(span).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: &str = "sluicegate_gateway_queue_depth{gateway=\"g\",route=\"r\"}";

    #[test]
    fn the_gauges_of_a_queue_disappear_with_its_route() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        let queues = [Arc::new(2), Arc::new(3)];
        for queue in &queues {
            let queue = Arc::downgrade(queue);
            metrics.watch("g", "r", move || {
                Some(QueueReading { depth: *queue.upgrade()?, ..QueueReading::default() })
            });
        }
        let shown = || registry.render().lines().filter(|line| line.starts_with(DEPTH)).count();
        assert!(registry.render().contains(&format!("{DEPTH} 5")), "the sum of both queues");
        assert_eq!(shown(), 1, "a label set may be rendered only once");
        drop(queues);
        assert_eq!(shown(), 0);
    }
}
