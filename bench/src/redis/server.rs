//! The Redis server of the benchmark.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

/// A private Redis on a free port of loopback, without files.
pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
    connection: redis::Connection,
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
            .stdout(Stdio::null())
            .spawn()
            .context("can't start redis-server: run `cargo xtask services install`")?;
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        for _ in 0..500 {
            if let Ok(connection) = client.get_connection() {
                return Ok(Self { port, child, connection });
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child.kill()?;
        child.wait()?;
        anyhow::bail!("the Redis server does not answer")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Deletes all keys.
    pub(crate) fn empty(&mut self) -> anyhow::Result<()> {
        Ok(redis::cmd("FLUSHALL").exec(&mut self.connection)?)
    }

    pub(crate) fn connection(&mut self) -> &mut redis::Connection {
        &mut self.connection
    }

    /// Returns the processor time that the server has used.
    pub(crate) fn cpu_seconds(&mut self) -> anyhow::Result<f64> {
        let info: String = redis::cmd("INFO").arg("cpu").query(&mut self.connection)?;
        let used = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or(0.0)
        };
        Ok(used("used_cpu_user") + used("used_cpu_sys"))
    }

    /// Returns the number of script calls so far, and their total time in microseconds.
    pub(crate) fn scripts(&mut self) -> anyhow::Result<(f64, f64)> {
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut self.connection)?;
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let value = |name: &str| {
            let fields = line.unwrap_or_default().split(',');
            let found = fields.filter_map(|field| field.split_once('=')).find(|(n, _)| *n == name);
            found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0.0)
        };
        Ok((value("calls"), value("usec")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
