//! `cargo xtask bench dashboard`: decisions over HTTP with ten open tabs of the dashboard, compared
//! with none.
//!
//! wrk sends requests to one server in alternating rounds (A B A B): without tabs, then with them.
//! A tab sends the requests of the page Overview: it loads the series, follows the event stream,
//! and loads the summary and the overview every second. Tabs are threads of this program,
//! because ten browsers would take processor time from the server.

mod server;
mod wrk;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;

use server::{Server, free_port};
use wrk::Run;

#[derive(Parser)]
#[command(about = "Decisions over HTTP with open tabs of the dashboard, compared with none")]
struct Args {
    /// Run shorter rounds
    #[arg(long)]
    quick: bool,
    /// Number of rounds; at least 5
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(5..))]
    rounds: u8,
    /// Number of open tabs
    #[arg(long, default_value_t = 10)]
    tabs: usize,
    /// Number of connections of wrk
    #[arg(long, default_value_t = 32)]
    connections: u16,
    /// Measure this `sluicegate` binary instead of building one
    #[arg(long)]
    program: Option<PathBuf>,
}

/// Three scopes. All requests are admitted, so every decision writes to its counters.
const RULES: &str = "
limits:
  - name: caller
    effective: true
    rules:
      - name: USER_MODEL
        per: [userId, modelId]
        limit: 1000/min
  - name: tenant
    rules:
      - name: TENANT
        per: [tenantId]
        limit: 100000/min
  - name: model
    rules:
      - name: GLOBAL_MODEL
        per: [modelId]
        limit: 10000000/min windowed
";

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let (http, admin) = (free_port()?, free_port()?);
    let config = folder.path().join("sluicegate.yaml");
    let listen = format!("listen: {{http: '127.0.0.1:{http}', admin: '127.0.0.1:{admin}'}}\n");
    std::fs::write(&config, listen + RULES)?;
    let mut command = Command::new(match &args.program {
        Some(program) => program.clone(),
        None => build()?,
    });
    command.args(["serve", "--config"]).arg(config);
    let question = |n: usize| {
        let (user, model, tenant) = (n % 10_000, n % 7, n % 100);
        format!(
            r#"{{"userId":"user-{user:06}","modelId":"gpt-4o-{model}","tenantId":"tenant-{tenant}"}}"#
        )
    };
    let server = Server::start("sluicegate", command, http, "/rate-limit/allow", question)?;
    let seconds = if args.quick { 2 } else { 10 };
    wrk::run(&server, folder.path(), args.connections, 2)?;
    let measure = |seconds| -> anyhow::Result<Run> {
        let before = server.processor_seconds()?;
        let mut run = wrk::run(&server, folder.path(), args.connections, seconds)?;
        run.processor_us = (server.processor_seconds()? - before) * 1e6 / run.requests;
        Ok(run)
    };
    let (mut without, mut with, mut bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..args.rounds {
        without.push(measure(seconds)?);
        let tabs = Tabs::open(admin, args.tabs)?;
        with.push(measure(seconds)?);
        bytes += tabs.close();
    }
    report(&args, seconds, &without, &with, bytes);
    Ok(())
}

/// Builds the server; returns the path of its program.
fn build() -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let line = "build --profile dist --target-dir target/dist-build --locked --package sluicegate-cli --bin sluicegate";
    let status = Command::new(cargo).args(line.split(' ')).status().context("can't start cargo")?;
    ensure!(status.success(), "`cargo {line}` failed");
    Ok(PathBuf::from("target/dist-build/dist/sluicegate"))
}

/// Open tabs of the dashboard.
struct Tabs {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Tabs {
    /// Opens tabs, and waits until each has got its first event.
    fn open(admin: u16, count: usize) -> anyhow::Result<Self> {
        let (stop, bytes) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let live = Arc::<AtomicU64>::default();
        let mut threads = Vec::new();
        for _ in 0..count {
            let (stop_stream, bytes_stream, live) = (stop.clone(), bytes.clone(), live.clone());
            threads.push(thread::spawn(move || {
                bytes_stream.fetch_add(get(admin, "/v1/dashboard/series")?, Ordering::Relaxed);
                follow(admin, &stop_stream, &bytes_stream, &live)
            }));
            let (stop, bytes) = (stop.clone(), bytes.clone());
            threads.push(thread::spawn(move || {
                let mut turn = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    // The page reads the summary and the overview every second.
                    for path in ["/v1/dashboard/summary", "/v1/dashboard/overview"] {
                        if turn.is_multiple_of(10) {
                            bytes.fetch_add(get(admin, path)?, Ordering::Relaxed);
                        }
                    }
                    turn += 1;
                    thread::sleep(Duration::from_millis(100));
                }
                Ok(())
            }));
        }
        let begun = Instant::now();
        while live.load(Ordering::Relaxed) < count as u64 {
            ensure!(begun.elapsed() < Duration::from_secs(20), "the tabs get no events");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { stop, bytes, threads })
    }

    /// Closes them. Returns the number of bytes that they received.
    fn close(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for tab in self.threads {
            if let Ok(Err(problem)) = tab.join() {
                eprintln!("a tab failed: {problem:#}");
            }
        }
        self.bytes.load(Ordering::Relaxed)
    }
}

fn request(admin: u16, path: &str, connection: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", admin))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: {connection}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    Ok(stream)
}

/// Sends one request; returns the number of bytes of the answer.
fn get(admin: u16, path: &str) -> anyhow::Result<u64> {
    let mut answer = Vec::new();
    request(admin, path, "close")?.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&answer));
    Ok(answer.len() as u64)
}

/// Follows the event stream until the tab is closed.
fn follow(
    admin: u16,
    stop: &AtomicBool,
    bytes: &AtomicU64,
    live: &AtomicU64,
) -> anyhow::Result<()> {
    let mut stream = request(admin, "/v1/dashboard/events", "keep-alive")?;
    let mut part = [0; 65_536];
    let mut is_live = false;
    while !stop.load(Ordering::Relaxed) {
        let count = stream.read(&mut part).context("no event for 5 s")?;
        ensure!(count > 0, "the stream ended");
        bytes.fetch_add(count as u64, Ordering::Relaxed);
        let text = String::from_utf8_lossy(&part[..count]);
        if !is_live && text.contains("event: tick") {
            is_live = true;
            live.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn report(args: &Args, seconds: u64, without: &[Run], with: &[Run], bytes: u64) {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!(
        "{} alternating rounds of {seconds} s, {} connections, {} tabs, load {load} at the end",
        with.len(),
        args.connections,
        args.tabs
    );
    let per_tab = bytes as f64 / (args.tabs.max(1) * with.len()) as f64 / seconds as f64;
    println!("a tab receives {:.1} KB/s\n", per_tab / 1024.0);
    println!("| tabs | decisions/s | min–max | CPU µs/decision | min–max | p99 ms |");
    println!("|--:|--:|--:|--:|--:|--:|");
    for (tabs, runs) in [(0, without), (args.tabs, with)] {
        let rate = Figure::of(runs.iter().map(|run| run.per_second));
        let cost = Figure::of(runs.iter().map(|run| run.processor_us));
        let p99 = Figure::of(runs.iter().map(|run| run.p99_ms));
        println!(
            "| {tabs} | {:.0} | {:.0}–{:.0} | {:.2} | {:.2}–{:.2} | {:.2} |",
            rate.median, rate.min, rate.max, cost.median, cost.min, cost.max, p99.median
        );
    }
    // A ratio per round: a slow round is slow for both.
    let ratio = |of: fn(&Run) -> f64| {
        Figure::of(with.iter().zip(without).map(move |(with, without)| of(with) / of(without)))
    };
    let (rate, cost) = (ratio(|run| run.per_second), ratio(|run| run.processor_us));
    println!("\n| goal | target | measured | min–max | |\n|---|--:|--:|--:|--:|");
    let verdict = if rate.median >= 0.98 { "met" } else { "missed" };
    println!(
        "| decisions/s with tabs, of those without | ≥ 0.98 | {:.3} | {:.3}–{:.3} | {verdict} |",
        rate.median, rate.min, rate.max
    );
    println!(
        "| CPU per decision, × without | | {:.3} | {:.3}–{:.3} | |",
        cost.median, cost.min, cost.max
    );
}

/// Median, smallest and largest value of several rounds.
struct Figure {
    median: f64,
    min: f64,
    max: f64,
}

impl Figure {
    fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self { median: values[values.len() / 2], min: values[0], max: values[values.len() - 1] }
    }
}
