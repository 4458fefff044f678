//! `cargo xtask demo`: starts everything that the dashboard shows, with traffic, and stops it again.
//!
//! One Redis, three nodes, three simulated upstreams, a gateway, a dispatcher with workers, and
//! callers of which one tenant is noisy. All of it listens on loopback, on free ports.

mod http;
mod process;
mod traffic;

use std::cell::Cell;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{services, sh};
use process::DemoProcess;
use traffic::{Targets, Traffic};

/// Port of the dashboard, if it is free: the default of `sluicegate top`.
const DASHBOARD_PORT: u16 = 9090;
const NODES: usize = 3;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Stop after this time, such as 20s or 5min [default: at Ctrl-C]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasts: Option<Duration>,
    /// Use an optimised build
    #[arg(long)]
    release: bool,
    /// Folder for the logs and the queue
    #[arg(long, value_name = "FOLDER", default_value = "target/demo")]
    folder: PathBuf,
}

/// The programs that the demo starts, each with its first arguments.
struct Programs {
    sluicegate: Vec<String>,
    simulators: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    // Installed first, so that a signal during the start stops everything as well.
    let (stop_tx, stop_rx) = sync_channel(1);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("can't handle signals")?;
    thread::spawn(move || {
        for _ in signals.forever() {
            // A stop that is already requested is enough.
            let _ = stop_tx.try_send(());
        }
    });
    services::install(&[&services::REDIS])?;
    let programs = Programs::build(args.release)?;
    let folder = args.folder.as_path();
    let _lock = prepare(folder)?;
    let is_stopped = Cell::new(false);
    let demo = Demo::start(&programs, folder, || {
        is_stopped.set(is_stopped.get() || stop_rx.try_recv().is_ok());
        is_stopped.get()
    })?;
    if let Some(demo) = demo {
        demo.announce(&programs, folder, args.lasts.is_none());
        // Without a limit, the wait ends by a signal.
        let lasts = args.lasts.unwrap_or(Duration::MAX);
        let ended = stop_rx.recv_timeout(lasts);
        ensure!(ended != Err(RecvTimeoutError::Disconnected), "signals are not handled any more");
        println!("stopping");
        demo.stop()?;
    }
    println!("stopped: no process is left");
    Ok(true)
}

/// Everything that runs.
struct Demo {
    /// In the order of the start. They are stopped in the other order.
    processes: Vec<DemoProcess>,
    traffic: Traffic,
    dashboards: Vec<String>,
    gateway: String,
}

impl Demo {
    /// Starts everything. Returns `None` if `is_stopped` returns true meanwhile.
    fn start(
        programs: &Programs,
        folder: &Path,
        is_stopped: impl Fn() -> bool,
    ) -> anyhow::Result<Option<Self>> {
        let [redis, provider, vendor, github] = free_ports()?;
        println!("starting Redis, simulators and {NODES} nodes");
        let mut processes = Vec::new();
        let redis_line =
            ["redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"];
        let mut line: Vec<_> = redis_line.map(str::to_owned).to_vec();
        line.extend([redis.to_string(), "--dir".to_owned(), folder.display().to_string()]);
        processes.push(DemoProcess::start("redis", &line, &[], folder)?);
        processes[0].wait_for("Ready to accept connections", &is_stopped)?;
        for (name, port, arguments) in [
            ("provider", provider, "provider --limit 500 --window 60 --failures 3"),
            ("vendor", vendor, "provider --limit 25 --window 1"),
            ("github", github, "github --repositories 120 --limit 400 --window 15"),
        ] {
            let mut line = programs.simulators.clone();
            line.extend(["--port".to_owned(), port.to_string()]);
            line.extend(arguments.split(' ').map(str::to_owned));
            let process = DemoProcess::start(name, &line, &[], folder)?;
            process.wait_for("listening on", &is_stopped)?;
            processes.push(process);
        }
        fs::write(folder.join("sluicegate.yaml"), include_str!("sluicegate.yaml"))?;
        let queue = folder.join("queue.db").display().to_string();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let environment = [
            ("REDIS_URL", format!("redis://127.0.0.1:{redis}")),
            ("PROVIDER_URL", url(provider)),
            ("VENDOR_URL", url(vendor)),
            ("GITHUB_URL", url(github)),
            ("QUEUE_FILE", queue),
        ];
        let (mut dashboards, mut callers, mut gateway) = (Vec::new(), Vec::new(), String::new());
        for number in 1..=NODES {
            let mut environment = environment.to_vec();
            let mut line = programs.sluicegate.clone();
            let config = folder.join("sluicegate.yaml").display().to_string();
            line.extend(["serve", "--progress", "never", "--config"].map(str::to_owned));
            line.push(config);
            match number {
                1 => {
                    line.push("--create".to_owned());
                    environment.push(("ADMIN_PORT", dashboard_port().to_string()));
                }
                _ => line.extend(["--only", "limiter"].map(str::to_owned)),
            }
            let name = format!("node-{number}");
            let process = DemoProcess::start(&name, &line, &environment, folder)?;
            dashboards.push(process.listener("admin", &is_stopped)?);
            callers.push(process.listener("http", &is_stopped)?);
            if number == 1 {
                gateway = process.listener("gateways.vendor", &is_stopped)?;
            }
            processes.push(process);
            if is_stopped() {
                // Dropping the processes stops them.
                return Ok(None);
            }
        }
        let traffic = Traffic::start(&Targets { nodes: callers, gateway: gateway.clone() });
        Ok(Some(Self { processes, traffic, dashboards, gateway }))
    }

    fn announce(&self, programs: &Programs, folder: &Path, until_interrupted: bool) {
        let sluicegate = programs.sluicegate.join(" ");
        let dashboard = &self.dashboards[0];
        println!("\ndashboard: http://{dashboard}/");
        for (other, number) in self.dashboards[1..].iter().zip(2..) {
            println!("  node {number}:  http://{other}/");
        }
        println!("gateway:   http://{}/v1/analyze", self.gateway);
        println!("terminal:  {sluicegate} top --admin http://{dashboard}");
        println!("           {sluicegate} tail --denied --admin http://{dashboard}");
        println!("logs:      {}/*.log", folder.display());
        if until_interrupted {
            println!("\nCtrl-C stops everything");
        }
    }

    /// Stops everything and waits for the end of every process.
    fn stop(mut self) -> anyhow::Result<()> {
        self.traffic.stop();
        while let Some(process) = self.processes.pop() {
            process.stop()?;
        }
        Ok(())
    }
}

impl Programs {
    /// Builds the programs, unless `SLUICEGATE` and `SIMULATORS` name existing ones.
    fn build(release: bool) -> anyhow::Result<Self> {
        let words = |name: &str| {
            let value = std::env::var(name).ok()?;
            Some(value.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        if let (Some(sluicegate), Some(simulators)) = (words("SLUICEGATE"), words("SIMULATORS")) {
            return Ok(Self { sluicegate, simulators });
        }
        let mut line = vec![
            "cargo",
            "build",
            "--locked",
            "--package",
            "sluicegate-cli",
            "--package",
            "simulators",
        ];
        line.extend(release.then_some("--release"));
        if !sh::run(&line, &[])? {
            bail!("the build failed: see above");
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        let folder = target.join(if release { "release" } else { "debug" });
        let [sluicegate, simulators] =
            ["sluicegate", "simulators"].map(|name| vec![folder.join(name).display().to_string()]);
        Ok(Self { sluicegate, simulators })
    }
}

/// Creates an empty folder for the logs and the queue. The returned file is locked, so that two
/// demos do not use one folder.
fn prepare(folder: &Path) -> anyhow::Result<File> {
    let name = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("can't create {name}"))?;
    let lock = File::create(folder.join("lock"))?;
    lock.try_lock().with_context(|| {
        format!("another demo uses {name}: stop it, or name another folder with --folder")
    })?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_ours = path.extension().is_some_and(|end| end == "log" || end == "yaml")
            || path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"queue.db"));
        if is_ours {
            fs::remove_file(&path).with_context(|| format!("can't delete {}", path.display()))?;
        }
    }
    Ok(lock)
}

/// Returns free ports. All are bound until the last one is found, so that they differ.
fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let socket = TcpListener::bind("127.0.0.1:0").context("no free port")?;
        *port = socket.local_addr()?.port();
        held.push(socket);
    }
    Ok(ports)
}

/// Returns the usual port of the dashboard, or 0 for any if it is in use.
fn dashboard_port() -> u16 {
    TcpListener::bind(("127.0.0.1", DASHBOARD_PORT)).map_or(0, |_| DASHBOARD_PORT)
}

/// Parses a duration such as `20s` or `5min`.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [("min", 60), ("s", 1), ("h", 3_600)];
    let parsed = units.into_iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs)
    });
    parsed.ok_or_else(|| "write a duration such as 20s, 5min or 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("20s"), Ok(Duration::from_secs(20)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3_600)));
        for bad in ["20", "s", "0s", "-1s", "1day"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn free_ports_differ() {
        let [one, other] = free_ports().unwrap();
        assert_ne!(one, other);
    }
}
