//! A benchmarked server process.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// A running server. It is stopped when it is dropped.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) port: u16,
    child: Child,
}

impl Server {
    pub(crate) fn start(name: &'static str, command: Command, port: u16) -> anyhow::Result<Self> {
        let mut command = pinned(command, 0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("can't start {name}"))?;
        let mut server = Self { name, port, child };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{name} ended before it listened: {status}");
            }
            if begun.elapsed() > Duration::from_secs(10) {
                bail!("{name} does not listen on {port}");
            }
            sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Returns the processor time that the server has used.
    pub(crate) fn processor_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(')').context("no such process")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        let ticks: f64 = ticks.sum::<Result<_, _>>()?;
        // Linux reports hundredths of a second to user space.
        Ok(ticks / 100.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Pins a command to a core if the machine has several.
pub(crate) fn pinned(command: Command, core: usize) -> Command {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return command;
    }
    let mut pinned = Command::new("taskset");
    pinned.arg("-c").arg(core.to_string()).arg(command.get_program()).args(command.get_args());
    pinned
}

pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
