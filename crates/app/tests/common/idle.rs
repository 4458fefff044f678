//! Measures the processor time of an idle service.

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_store::MonotonicClock;

use super::RunningService;

/// Duration of the measurement: one percent of it is ten times the resolution of the system.
const WATCHED: Duration = Duration::from_secs(10);
/// Length of a tick in `/proc`, on every Linux.
const TICK: Span = Span::from_millis(10);

/// Configuration with every feature enabled, except the store.
pub(crate) fn everything(folder: &Path) -> String {
    let queue = folder.join("queue.db");
    format!(
        "limits: [{{name: g, rules: [{{name: USER, per: [userId], limit: 100/h}}]}}]
envoy: {{domains: [{{domain: edge, descriptors: [{{key: user, rate_limit: {{unit: minute, requests_per_unit: 5}}}}]}}]}}
metrics: {{statsd: '127.0.0.1:9'}}
gateways:
- {{name: vendor, listen: '127.0.0.1:0', routes: [{{path: /, upstream: 'http://127.0.0.1:9', limit: 5/s, wait: {{max: 10s}}}}]}}
queue: {{kind: embedded, path: '{queue}'}}
dispatch:
  source: raw
  delay: booked
  strategy: HEADROOM
  providers:
    gemini: {{queue: gemini, limit: 500/min}}
    openai: {{queue: openai, limit: 500/min}}
workers:
- {{provider: gemini, limit: 500/min, concurrency: 100, results: results, handler: {{http: {{url: 'http://127.0.0.1:9'}}}}}}
- {{provider: openai, limit: 500/min, concurrency: 100, results: results, handler: {{http: {{url: 'http://127.0.0.1:9'}}}}}}
",
        queue = queue.display()
    )
}

/// Asserts that the service uses less than one percent of a core. Other work on the machine can only
/// make a measurement larger, so one of up to five has to be below.
pub(crate) fn assert_idle(service: &RunningService) {
    let is_idle = |(used, watched): &(Span, Span)| used.as_micros() * 100 < watched.as_micros();
    let mut measurements = Vec::new();
    while !measurements.last().is_some_and(is_idle) {
        assert!(measurements.len() < 5, "used, of the time watched: {measurements:?}");
        measurements.push(measure(service));
    }
}

/// Returns the processor time that the service has used, and the time for which it was watched.
fn measure(service: &RunningService) -> (Span, Span) {
    let clock = MonotonicClock::new();
    let (began, before) = (clock.now(), cpu_time(service));
    // The channel has no sender, so this waits for the timeout.
    let (_nobody, over) = sync_channel::<()>(1);
    let _ = over.recv_timeout(WATCHED);
    let used = Span::from_micros(cpu_time(service).as_micros() - before.as_micros());
    (used, clock.now().since(began))
}

/// Returns the processor time of all its threads, including ended ones.
fn cpu_time(service: &RunningService) -> Span {
    let path = format!("/proc/{}/stat", service.pid());
    let stat = std::fs::read_to_string(path).expect("it runs");
    // The name of the program, in brackets, may contain any character.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<u64>().expect("a number");
    Span::from_micros((ticks(11) + ticks(12)) * TICK.as_micros())
}
