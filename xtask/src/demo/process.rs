//! [`DemoProcess`]: a process that ends with us, however we end.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

/// Starts a command, and ends it with SIGTERM when its own standard input ends. That happens also if
/// we are killed.
const GUARD: &str = "\"$@\" </dev/null & child=$!; cat >/dev/null; kill \"$child\" 2>/dev/null; \
    wait \"$child\"";

/// Pause between two looks at a log or a process.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of looks at a log until a start has failed: a minute.
const START_LOOKS_MAX: usize = 1_200;
/// Number of looks at a process until it is killed: 15 seconds.
const STOP_LOOKS_MAX: usize = 300;

/// A running process. Dropping it stops it.
pub(super) struct DemoProcess {
    name: String,
    log: PathBuf,
    /// The guard, which leads a process group of its own, so that Ctrl-C reaches only us.
    guard: Child,
}

impl DemoProcess {
    /// Starts a command whose log is a file in `folder`.
    pub(super) fn start(
        name: &str,
        line: &[String],
        environment: &[(&str, String)],
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let log = folder.join(name).with_extension("log");
        let file = File::create(&log).with_context(|| format!("can't create {}", log.display()))?;
        // Redis and the simulators log to standard output. Nodes log decisions there, which are too
        // many to be kept.
        let output = match name.starts_with("node") {
            true => Stdio::null(),
            false => file.try_clone()?.into(),
        };
        let guard = Command::new("sh")
            .args(["-c", GUARD, "sh"])
            .args(line)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("can't start {name}"))?;
        Ok(Self { name: name.to_owned(), log, guard })
    }

    /// Waits until the log contains a text, or until `is_stopped`.
    pub(super) fn wait_for(&self, text: &str, is_stopped: impl Fn() -> bool) -> anyhow::Result<()> {
        self.find(is_stopped, |log| log.contains(text).then_some(())).map(drop)
    }

    /// Returns the address of a listener, from the log; empty if `is_stopped` returned true first.
    pub(super) fn listener(
        &self,
        listener: &str,
        is_stopped: impl Fn() -> bool,
    ) -> anyhow::Result<String> {
        let address = |line: &str| {
            let event: Value = serde_json::from_str(line).ok()?;
            let is_asked = event["message"] == "listening" && event["listener"] == listener;
            is_asked.then(|| event["address"].as_str().map(str::to_owned)).flatten()
        };
        let found = self.find(is_stopped, |log| log.lines().find_map(address))?;
        Ok(found.unwrap_or_default())
    }

    fn find<T>(
        &self,
        is_stopped: impl Fn() -> bool,
        find: impl Fn(&str) -> Option<T>,
    ) -> anyhow::Result<Option<T>> {
        for _ in 0..START_LOOKS_MAX {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(found) = find(&log) {
                return Ok(Some(found));
            }
            if is_stopped() {
                return Ok(None);
            }
            if log.contains("\"message\":\"stopped\"") {
                break;
            }
            thread::sleep(PAUSE);
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(5)..].join("\n");
        bail!("{} did not start: see {}:\n{last}", self.name, self.log.display());
    }

    /// Stops the process and waits for its end.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.end().with_context(|| format!("can't stop {}", self.name))
    }

    fn end(&mut self) -> anyhow::Result<()> {
        drop(self.guard.stdin.take());
        for _ in 0..STOP_LOOKS_MAX {
            if self.guard.try_wait()?.is_some() {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        println!("{} does not end: killing it", self.name);
        let group = format!("-{}", self.guard.id());
        let _ = Command::new("kill").args(["-9", "--", &group]).status();
        self.guard.wait()?;
        Ok(())
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
