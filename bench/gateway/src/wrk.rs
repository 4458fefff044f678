//! Runs wrk, which sends the next request on a connection as soon as it has an answer.

use std::process::Command;
use std::thread;

use anyhow::{Context, ensure};

use crate::server::{Server, pinned};

/// Results of one round.
pub(crate) struct Run {
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

pub(crate) fn run(server: &Server, connections: u16, seconds: u64) -> anyhow::Result<Run> {
    let mut command = Command::new("wrk");
    command.args(["--threads", "1", "--latency", "--connections", &connections.to_string()]);
    command.args(["--duration", &format!("{seconds}s")]);
    command.arg(format!("http://127.0.0.1:{}/", server.port));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let output = pinned(command, cores - 1).output().context("can't start wrk")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "wrk failed: {text}");
    ensure!(!text.contains("Non-2xx"), "{} refuses: {text}", server.name);
    ensure!(!text.contains("Socket errors"), "{} closed connections: {text}", server.name);
    let after = |word: &str| text.lines().find_map(|line| line.trim().strip_prefix(word));
    let rate = after("Requests/sec:").and_then(|text| text.trim().parse().ok());
    Ok(Run {
        per_second: rate.context("no rate")?,
        p50_ms: after("50%").and_then(milliseconds).context("no latency")?,
        p99_ms: after("99%").and_then(milliseconds).context("no latency")?,
    })
}

/// Parses a duration such as `812.00us`, `1.23ms` or `1.20s` into milliseconds.
fn milliseconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [("us", 0.001), ("ms", 1.0), ("s", 1_000.0)];
    let (number, unit) =
        units.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)))?;
    Some(number.parse::<f64>().ok()? * unit)
}
