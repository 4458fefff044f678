//! [`Statsd`]: pushes the metrics to a StatsD server.
//!
//! | metric | sent as |
//! |---|---|
//! | counter | `name:3\|c`: the increase since the last push, if any |
//! | gauge | `name:0.5\|g` |
//! | histogram | `name_count` and `name_sum`, as counters |
//!
//! Labels are tags, `\|#scope:USER,model_id:gpt4`, in the format of DogStatsD, which Telegraf,
//! Vector and the StatsD exporter of Prometheus read. StatsD crates are clients that count; these
//! metrics are already counted, so only formatting and sending is needed.
//!
//! **A dead or slow server does no harm**: datagrams are sent without waiting for an answer. Counts
//! from a time in which the host name could not be resolved are sent later.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use sluicegate_service::metrics::proto::{Metric, MetricFamily, MetricType};
use tokio::net::UdpSocket;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Metrics;

/// Push interval: the flush interval of StatsD.
pub const EVERY: Duration = Duration::from_secs(10);
/// Maximum size of a datagram that fits into one packet of an ordinary network.
pub const DATAGRAM_BYTES_MAX: usize = 1_432;
/// Maximum duration of a push: the last one must not delay the end of the process.
const PUSH_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum length of a label value; longer ones are cut, so that every line fits into a datagram.
const TAG_CHARS_MAX: usize = 64;

/// Pushes metrics to one StatsD server.
pub struct Statsd {
    metrics: Metrics,
    host: String,
    port: u16,
    /// Value of every counter at the last push.
    pushed: HashMap<String, f64>,
}

impl Statsd {
    /// Creates a pusher to a host, whose name is resolved at each push.
    pub fn new(metrics: Metrics, host: impl Into<String>, port: u16) -> Self {
        Self { metrics, host: host.into(), port, pushed: HashMap::new() }
    }

    /// Pushes at the interval, and a last time at shutdown.
    pub async fn run(mut self, every: Duration, shutdown: CancellationToken) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let mut failing = false;
        loop {
            let last = tokio::select! {
                _ = ticks.tick() => false,
                () = shutdown.cancelled() => true,
            };
            let pushed = timeout(PUSH_TIME_MAX, self.push()).await;
            let problem = match pushed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("timed out".to_owned()),
            };
            // Logs once, not every ten seconds.
            let was_failing = std::mem::replace(&mut failing, problem.is_some());
            match problem {
                Some(problem) if !was_failing => {
                    warn!(host = self.host, %problem, "cannot push metrics to StatsD");
                }
                None if was_failing => {
                    info!(host = self.host, "pushing metrics to StatsD again")
                }
                _ => {}
            }
            if last {
                return;
            }
        }
    }

    /// Pushes now.
    pub async fn push(&mut self) -> io::Result<()> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await?.next();
        let to = found.ok_or_else(|| io::Error::other("the host name has no address"))?;
        let from: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // Not connected: with a connected socket, a server that is down makes the next send fail.
        let socket = UdpSocket::bind(from).await?;
        for datagram in self.datagrams() {
            socket.send_to(datagram.as_bytes(), to).await?;
        }
        Ok(())
    }

    /// Returns all changes, split into texts that fit into a datagram.
    fn datagrams(&mut self) -> Vec<String> {
        let mut datagrams = Datagrams::default();
        for family in self.metrics.0.registry.gather() {
            for metric in family.get_metric() {
                self.push_metric(&family, metric, &mut datagrams);
            }
        }
        datagrams.0
    }

    fn push_metric(&mut self, family: &MetricFamily, metric: &Metric, out: &mut Datagrams) {
        let (name, tags) = (family.name(), tags(metric));
        match family.get_field_type() {
            MetricType::COUNTER => self.count(name, &tags, metric.get_counter().get_value(), out),
            MetricType::GAUGE => {
                let level = metric.get_gauge().get_value();
                // A sign would mean a relative change.
                if level.is_finite() && level >= 0.0 {
                    out.line(&format!("{name}:{level}|g{tags}"));
                }
            }
            MetricType::HISTOGRAM => {
                let histogram = metric.get_histogram();
                let count = histogram.get_sample_count() as f64;
                self.count(&format!("{name}_count"), &tags, count, out);
                self.count(&format!("{name}_sum"), &tags, histogram.get_sample_sum(), out);
            }
            MetricType::SUMMARY | MetricType::UNTYPED => {}
        }
    }

    /// Writes the increase of a counter.
    fn count(&mut self, name: &str, tags: &str, value: f64, out: &mut Datagrams) {
        let series = format!("{name}{tags}");
        let before = self.pushed.get(&series).copied().unwrap_or_default();
        // Rounded to microseconds, because a difference of floats is inexact.
        let added = ((value - before) * 1e6).round() / 1e6;
        if added > 0.0 {
            out.line(&format!("{name}:{added}|c{tags}"));
            self.pushed.insert(series, value);
        }
    }
}

/// Formats the labels that have a value. Clients choose some, so nothing in them may end a tag or a
/// line.
fn tags(metric: &Metric) -> String {
    let plain = |c: char| {
        let harmless = !c.is_control() && !c.is_whitespace() && !"|,#:@".contains(c);
        if harmless { c } else { '_' }
    };
    let mut text = String::new();
    for label in metric.get_label().iter().filter(|label| !label.value().is_empty()) {
        text.push_str(if text.is_empty() { "|#" } else { "," });
        let _ = write!(text, "{}:", label.name());
        text.extend(label.value().chars().take(TAG_CHARS_MAX).map(plain));
    }
    text
}

#[derive(Default)]
struct Datagrams(Vec<String>);

impl Datagrams {
    fn line(&mut self, line: &str) {
        match self.0.last_mut() {
            Some(last) if last.len() + 1 + line.len() <= DATAGRAM_BYTES_MAX => {
                last.push('\n');
                last.push_str(line);
            }
            _ => self.0.push(line.to_owned()),
        }
    }
}
