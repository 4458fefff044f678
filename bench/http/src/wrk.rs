//! Runs wrk, which sends the next request on a connection as soon as it has an answer.

use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, ensure};

use crate::server::{Server, pinned};

/// Results of one round.
pub(crate) struct Run {
    pub(crate) requests: f64,
    pub(crate) per_second: f64,
    pub(crate) p99_ms: f64,
    pub(crate) processor_us: f64,
}

/// Formats all requests before the measurement, so that wrk's own work per request is small.
const SCRIPT: &str = r#"
local requests, next = {}, 0
function init(args)
  for body in io.lines(args[1]) do
    requests[#requests + 1] = wrk.format("POST", nil, {["content-type"] = "application/json"}, body)
  end
end
function request()
  next = next % #requests + 1
  return requests[next]
end
"#;

pub(crate) fn run(
    server: &Server,
    folder: &Path,
    connections: u16,
    seconds: u64,
) -> anyhow::Result<Run> {
    let (script, bodies) = (folder.join("ask.lua"), folder.join(format!("{}.txt", server.port)));
    if !bodies.exists() {
        std::fs::write(&script, SCRIPT)?;
        std::fs::write(&bodies, server.bodies.join("\n"))?;
    }
    let mut command = Command::new("wrk");
    command.args(["--threads", "1", "--latency", "--connections", &connections.to_string()]);
    command.args(["--duration", &format!("{seconds}s"), "--script"]).arg(script);
    command.arg(format!("http://127.0.0.1:{}{}", server.port, server.path)).arg("--").arg(bodies);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let output = pinned(command, cores - 1).output().context("can't start wrk")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "wrk failed: {text}");
    ensure!(!text.contains("Non-2xx"), "{} refuses: {text}", server.name);
    ensure!(!text.contains("Socket errors"), "{} closed connections: {text}", server.name);
    let after = |word: &str| text.lines().find_map(|line| line.trim().strip_prefix(word));
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse::<f64>().ok());
    let requests = text.lines().find_map(|line| line.trim().split_once(" requests in "));
    Ok(Run {
        requests: number(requests.map(|(count, _)| count)).context("no count of requests")?,
        per_second: number(after("Requests/sec:")).context("no rate")?,
        p99_ms: after("99%").and_then(milliseconds).context("no latency")?,
        processor_us: 0.0,
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
