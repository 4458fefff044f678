//! The same metrics, pushed to StatsD.
//!
//! | metric | is sent as |
//! |---|---|
//! | counter | `name:3\|c`: what was added since the last push, if anything |
//! | gauge | `name:0.5\|g` |
//! | histogram | `name_count` and `name_sum`, as counters |
//!
//! Labels are tags, `\|#scope:USER,model_id:gpt4`, as DogStatsD writes them and Telegraf, Vector and
//! the StatsD exporter of Prometheus read them. Crates for StatsD are clients that count; we have
//! counted already, so this is the few lines that format and send.
//!
//! **A receiver that is dead or slow harms nothing**: datagrams are sent and forgotten. What was
//! counted while its name could not be resolved is sent once it can.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use prometheus::proto::{Metric, MetricFamily, MetricType};
use tokio::net::UdpSocket;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Metrics;

/// How often metrics are pushed: the interval by which StatsD flushes.
pub const EVERY: Duration = Duration::from_secs(10);
/// What fits into one packet of an ordinary network.
pub const DATAGRAM_BYTES_MAX: usize = 1_432;
/// How long a push may take: the last one must not hold up the end of the process.
const PUSH_TIME_MAX: Duration = Duration::from_secs(2);
/// Longer values of labels are cut, so that every line fits into a datagram.
const TAG_CHARS_MAX: usize = 64;

/// Pushes metrics to one receiver.
pub struct Statsd {
    metrics: Metrics,
    host: String,
    port: u16,
    /// What every counter showed when it was pushed last.
    pushed: HashMap<String, f64>,
}

impl Statsd {
    /// Pushes `metrics` to a host, whose name is resolved anew every time.
    pub fn new(metrics: Metrics, host: impl Into<String>, port: u16) -> Self {
        Self { metrics, host: host.into(), port, pushed: HashMap::new() }
    }

    /// Pushes once in a while, and a last time at the end.
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
                Err(_) => Some("it takes too long".to_owned()),
            };
            // Once, and not every ten seconds.
            let was_failing = std::mem::replace(&mut failing, problem.is_some());
            match problem {
                Some(problem) if !was_failing => {
                    warn!(host = self.host, %problem, "metrics could not be pushed to StatsD");
                }
                None if was_failing => {
                    info!(host = self.host, "metrics are pushed to StatsD again")
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
        let to = found.ok_or_else(|| io::Error::other("the name has no address"))?;
        let from: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // Not connected: a receiver that is down would make the next datagram fail.
        let socket = UdpSocket::bind(from).await?;
        for datagram in self.datagrams() {
            socket.send_to(datagram.as_bytes(), to).await?;
        }
        Ok(())
    }

    /// Everything that is to be said, in texts that fit into a datagram.
    fn datagrams(&mut self) -> Vec<String> {
        let mut datagrams = Datagrams::default();
        for family in self.metrics.0.registry.gather() {
            for metric in family.get_metric() {
                self.tell(&family, metric, &mut datagrams);
            }
        }
        datagrams.0
    }

    fn tell(&mut self, family: &MetricFamily, metric: &Metric, out: &mut Datagrams) {
        let (name, tags) = (family.name(), tags(metric));
        match family.get_field_type() {
            MetricType::COUNTER => self.count(name, &tags, metric.get_counter().get_value(), out),
            MetricType::GAUGE => {
                let level = metric.get_gauge().get_value();
                // A sign would mean a change.
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

    /// What a counter has grown by.
    fn count(&mut self, name: &str, tags: &str, value: f64, out: &mut Datagrams) {
        let series = format!("{name}{tags}");
        let before = self.pushed.get(&series).copied().unwrap_or_default();
        // Sums of seconds are whole microseconds, which a difference of floats is not.
        let added = ((value - before) * 1e6).round() / 1e6;
        if added > 0.0 {
            out.line(&format!("{name}:{added}|c{tags}"));
            self.pushed.insert(series, value);
        }
    }
}

/// The labels that have a value; clients choose some, so nothing in them may end a tag or a line.
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
