//! Runs h2load, which sends the next request on a stream as soon as it has an answer.

use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, ensure};

use crate::server::{Server, pinned};

/// The request that h2load repeats.
pub(crate) struct Question {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    /// The message without its gRPC frame.
    pub(crate) message: Vec<u8>,
}

/// Results of one round.
pub(crate) struct Run {
    pub(crate) per_second: f64,
    pub(crate) processor_us: f64,
}

/// Eight connections with sixteen concurrent streams each.
const LOAD: [&str; 4] = ["--clients", "8", "--max-concurrent-streams", "16"];

pub(crate) fn run(
    server: &Server,
    question: &Question,
    folder: &Path,
    requests: u32,
) -> anyhow::Result<Run> {
    let body = folder.join(question.name);
    let length = u32::try_from(question.message.len())?.to_be_bytes();
    std::fs::write(&body, [&[0], &length[..], &question.message].concat())?;
    let before = server.processor_seconds()?;
    let mut command = Command::new("h2load");
    command.args(LOAD).args(["--requests", &requests.to_string(), "--data"]).arg(body);
    command.args(["--header", "content-type: application/grpc", "--header", "te: trailers"]);
    command.arg(format!("http://127.0.0.1:{}{}", server.port, question.path));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let output = pinned(command, cores - 1).output().context("can't start h2load")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "h2load failed: {text}");
    let all = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
    ensure!(text.contains(&all), "{} refuses: {text}", server.name);
    let line = text.lines().find(|line| line.starts_with("finished in")).context("no rate")?;
    let rate = line.split(", ").find_map(|part| part.strip_suffix(" req/s")).context("no rate")?;
    let processor = server.processor_seconds()? - before;
    Ok(Run {
        per_second: rate.trim().parse()?,
        processor_us: processor * 1e6 / f64::from(requests),
    })
}
