//! Lists the current problems of a node, each with its remedy. The thresholds are those of the
//! alerts in `deploy/prometheus`.

use serde::Serialize;

use super::RoutePause;
use crate::recorder::{MetricReading, Recorder};

/// Seconds over which events are counted.
const OVER: usize = 300;
/// Minimum number of decisions for a problem that is about a share of them.
const DECISIONS_MIN: f64 = 15.0;

/// Metrics that a problem is read from.
const METRICS: [&str; 10] = [
    "sluicegate_config_last_load_successful",
    "sluicegate_gateway_queue_depth",
    "sluicegate_queue_depth",
    "sluicegate_queue_oldest_seconds",
    "sluicegate_redis_evicts",
    "sluicegate_redis_memory_bytes",
    "sluicegate_redis_memory_max_bytes",
    "sluicegate_redis_refuses_writes",
    "sluicegate_redis_up",
    "sluicegate_store_overflow_keys",
];

/// A condition that an operator should fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct NodeProblem {
    severity: Severity,
    title: String,
    remedy: String,
    /// Page of the dashboard that shows more.
    page: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Critical,
    Warning,
}
use Severity::{Critical, Warning};

/// Event counts of the last minutes, and the mean of the p95 latency.
#[derive(Clone, Copy, Debug, Default)]
struct RecentEvents {
    allowed: f64,
    denied: f64,
    p95_ms: f64,
    fallbacks: f64,
    redis_calls: f64,
    redis_errors: f64,
    gateway_429: f64,
    gateway_502: f64,
    memory_losses: f64,
    dropped_lines: f64,
}

/// Returns the problems of a node, the most severe first. `pauses` are those of its gateways.
pub(super) fn of(recorder: &Recorder, pauses: &[RoutePause]) -> Vec<NodeProblem> {
    let reading = recorder.read_metrics(|name| METRICS.contains(&name));
    let count =
        |prefix: &str| recorder.totals(prefix, OVER).iter().map(|(_, total)| total).sum::<f64>();
    let answered = |status: &str| -> f64 {
        let end = format!(",\"{status}\"]");
        let totals = recorder.totals(r#"["sluicegate_gateway_requests_total""#, OVER);
        totals.iter().filter(|(name, _)| name.ends_with(&end)).map(|(_, total)| total).sum()
    };
    let events = RecentEvents {
        allowed: count("allowed"),
        denied: count("denied"),
        p95_ms: recorder.means("p95", OVER).iter().map(|(_, mean)| mean).sum(),
        fallbacks: count(r#"["rate_limiter_fallback_total""#),
        redis_calls: count(r#"["rate_limiter_redis_calls_total""#),
        redis_errors: count(r#"["rate_limiter_redis_errors_total""#),
        gateway_429: answered("429"),
        gateway_502: answered("502"),
        memory_losses: count(r#"["sluicegate_redis_memory_losses_total""#),
        dropped_lines: count(r#"["sluicegate_decision_log_dropped_total""#),
    };
    let mut problems = of_metrics(&reading);
    problems.extend(of_events(events));
    problems.extend(of_pauses(pauses));
    problems.sort_by_key(|problem| problem.severity);
    problems
}

fn problem(
    severity: Severity,
    title: impl Into<String>,
    remedy: impl Into<String>,
    page: &'static str,
) -> NodeProblem {
    NodeProblem { severity, title: title.into(), remedy: remedy.into(), page }
}

fn of_metrics(reading: &MetricReading) -> Vec<NodeProblem> {
    let value = |name: &str| reading.sum(name, &[]);
    let mut problems = Vec::new();
    if value("sluicegate_redis_up") == Some(0.0) {
        problems.push(problem(
            Critical,
            "Redis is not reachable",
            "Decisions follow the outage policy of their rules. Check that Redis runs and that \
             store.url is right; nodes reconnect by themselves.",
            "overview",
        ));
    }
    for (labels, value) in reading.each("sluicegate_redis_refuses_writes") {
        if value > 0.0 {
            let reason = labels.first().map_or("unknown", |(_, reason)| *reason);
            problems.push(problem(
                Critical,
                format!("Redis refuses writes: {reason}"),
                "Every decision is refused until Redis takes writes again: look at its log and its \
                 memory.",
                "overview",
            ));
        }
    }
    if value("sluicegate_redis_evicts") == Some(1.0) {
        problems.push(problem(
            Warning,
            "Redis may evict counters",
            "Set maxmemory-policy to noeviction: an evicted counter starts again at zero.",
            "overview",
        ));
    }
    for (labels, used) in reading.each("sluicegate_redis_memory_bytes") {
        let most = reading.sum("sluicegate_redis_memory_max_bytes", &labels).unwrap_or(0.0);
        if most > 0.0 && used > 0.8 * most {
            let server = labels.first().map_or("unknown", |(_, server)| *server);
            problems.push(problem(
                Warning,
                format!("Redis {server} uses {:.0} % of its memory", 100.0 * used / most),
                "Raise maxmemory: a full Redis refuses writes, and every decision with them.",
                "overview",
            ));
        }
    }
    if value("sluicegate_config_last_load_successful") == Some(0.0) {
        problems.push(problem(
            Warning,
            "The last configuration was rejected",
            "The old one stays in force. Correct the file: the log has the message, and so has the page Activity of the dashboard.",
            "activity",
        ));
    }
    if let Some(keys) = value("sluicegate_store_overflow_keys").filter(|&n| n > 0.0) {
        problems.push(problem(
            Critical,
            format!("The store is full: {keys} counters are shared by several keys"),
            "Raise store.keys_max, or use Redis.",
            "limits",
        ));
    }
    for (labels, depth) in reading.each("sluicegate_gateway_queue_depth") {
        if depth > 100.0 {
            let names: Vec<_> = labels.iter().map(|(_, value)| *value).collect();
            problems.push(problem(
                Warning,
                format!("{depth} requests wait at {}", names.join(" / ")),
                "More requests arrive than the limit of the upstream allows.",
                "gateways",
            ));
        }
    }
    for (labels, depth) in reading.each("sluicegate_queue_depth") {
        let label = |wanted: &str| labels.iter().find(|(name, _)| *name == wanted).map(|(_, v)| *v);
        if depth > 0.0 && label("state") == Some("dead") {
            problems.push(problem(
                Warning,
                format!("Dead letters in {}: {depth}", label("queue").unwrap_or_default()),
                "Look at their errors, then replay or delete them.",
                "queues",
            ));
        }
    }
    problems
}

fn of_pauses(pauses: &[RoutePause]) -> impl Iterator<Item = NodeProblem> {
    pauses.iter().map(|RoutePause { gateway, route, until, reason }| {
        let until = until.split_once('.').map_or(until.as_str(), |(seconds, _)| seconds);
        problem(
            Warning,
            format!("{gateway} / {route} is closed until {until}"),
            format!("The upstream asked for a pause: it answered {reason}. Send less, or lower the limit."),
            "gateways",
        )
    })
}

fn of_events(events: RecentEvents) -> Vec<NodeProblem> {
    let percent = |part: f64, whole: f64| 100.0 * part / whole.max(f64::MIN_POSITIVE);
    let mut problems = Vec::new();
    let all = events.allowed + events.denied;
    let denied = percent(events.denied, all);
    if all >= DECISIONS_MIN && denied > 5.0 {
        problems.push(problem(
            Warning,
            format!("{denied:.0} % of the requests were denied in the last 5 minutes"),
            "The page Limits shows who is denied most, and by which rule.",
            "limits",
        ));
    }
    if events.p95_ms > 20.0 {
        problems.push(problem(
            Warning,
            format!("Decisions are slow: p95 is {:.0} ms", events.p95_ms),
            "Look at the latency of Redis, and at the load of this machine.",
            "overview",
        ));
    }
    let errors = percent(events.redis_errors, events.redis_calls + events.redis_errors);
    if events.redis_errors > 0.0 && errors > 0.5 {
        problems.push(problem(
            Critical,
            format!("{errors:.1} % of the calls to Redis failed in the last 5 minutes"),
            "Look at the network to Redis and at its load.",
            "overview",
        ));
    }
    if events.fallbacks > 0.0 {
        problems.push(problem(
            Critical,
            format!(
                "{:.0} decisions by an outage policy in the last 5 minutes",
                events.fallbacks.max(1.0)
            ),
            "The store did not answer in time. Check Redis and the network to it.",
            "overview",
        ));
    }
    if events.memory_losses > 0.0 {
        problems.push(problem(
            Warning,
            format!("Redis lost its data in the last 5 minutes: {:.0} ×", events.memory_losses.max(1.0)),
            "All limits started again. Turn on appendonly in Redis, so that a restart keeps the counters.",
            "overview",
        ));
    }
    if events.dropped_lines > 0.0 {
        problems.push(problem(
            Warning,
            format!(
                "{:.0} lines of the decision log were dropped in the last 5 minutes",
                events.dropped_lines.max(1.0)
            ),
            "Standard output is too slow or closed. Log a smaller share: log.decisions.allowed.",
            "activity",
        ));
    }
    // As in the alerts: more than 10 and 5 per minute.
    for (status, count, max) in [(429, events.gateway_429, 50.0), (502, events.gateway_502, 25.0)] {
        if count > max {
            problems.push(problem(
                Warning,
                format!(
                    "Gateways answered {count:.0} requests with {status} in the last 5 minutes"
                ),
                match status {
                    429 => "More requests arrive than the limit and the waiting time allow.",
                    _ => "The upstream is unreachable or breaks off its answers.",
                },
                "gateways",
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluicegate_core::{Span, Timestamp};
    use sluicegate_testkit::ManualClock;

    use super::*;
    use crate::metrics::{Metrics, Options};
    use crate::recorder::NodeName;

    #[test]
    fn lost_data_and_dropped_lines_are_problems_for_five_minutes() {
        let clock = Arc::new(ManualClock::new(Timestamp::from_secs(1_000_000)));
        let metrics = Metrics::new(&Options::default());
        let losses = metrics.registry().counter("sluicegate_redis_memory_losses_total", "Losses.");
        let dropped = metrics.registry().counter("sluicegate_decision_log_dropped_total", "Lines.");
        let node = NodeName { host: "n".to_owned(), version: "1", started: Timestamp::ZERO };
        let recorder = Recorder::new(metrics, clock.clone(), node, Vec::new(), [0; 32]);
        let titles = |seconds: usize| {
            for _ in 0..seconds {
                clock.advance(Span::from_secs(1));
                recorder.tick();
            }
            of(&recorder, &[]).into_iter().map(|problem| problem.title).collect::<Vec<_>>()
        };
        assert_eq!(titles(2), Vec::<String>::new());
        losses.inc();
        dropped.inc_by(7);
        let both = [
            "Redis lost its data in the last 5 minutes: 1 ×",
            "7 lines of the decision log were dropped in the last 5 minutes",
        ];
        assert_eq!(titles(1), both);
        assert_eq!(titles(299), both);
        assert_eq!(titles(1), Vec::<String>::new());
        losses.inc();
        assert_eq!(titles(1), both[..1]);
    }

    fn titles(events: RecentEvents) -> Vec<String> {
        of_events(events).into_iter().map(|problem| problem.title).collect()
    }

    #[test]
    fn a_healthy_node_has_no_problems() {
        let events =
            RecentEvents { allowed: 100.0, denied: 5.0, p95_ms: 20.0, ..RecentEvents::default() };
        assert_eq!(titles(events), Vec::<String>::new());
        assert_eq!(titles(RecentEvents::default()), Vec::<String>::new());
        assert!(of_metrics(&MetricReading::default()).is_empty());
    }

    #[test]
    fn shares_and_latencies_have_the_thresholds_of_the_alerts() {
        let events =
            RecentEvents { allowed: 90.0, denied: 10.0, p95_ms: 21.0, ..Default::default() };
        assert_eq!(
            titles(events),
            [
                "10 % of the requests were denied in the last 5 minutes",
                "Decisions are slow: p95 is 21 ms"
            ]
        );
        let events = RecentEvents {
            fallbacks: 3.0,
            redis_calls: 99.0,
            redis_errors: 1.0,
            gateway_429: 51.0,
            gateway_502: 25.0,
            ..Default::default()
        };
        assert_eq!(
            titles(events),
            [
                "1.0 % of the calls to Redis failed in the last 5 minutes",
                "3 decisions by an outage policy in the last 5 minutes",
                "Gateways answered 51 requests with 429 in the last 5 minutes"
            ]
        );
    }
}
