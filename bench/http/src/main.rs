//! `cargo xtask bench http`: compares decisions over HTTP with the floor, an axum server that
//! decides nothing, and with throttlecrab-server.
//!
//! All servers run at the same time, and wrk measures them alternately, so that a disturbance of
//! the machine affects all of them. With two or more cores, the servers run on the first and wrk on
//! the last.

mod server;
mod wrk;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Parser;

use server::{Server, free_port};
use wrk::Run;

#[derive(Parser)]
#[command(
    about = "Benchmark decisions over HTTP against a bare axum server and throttlecrab-server"
)]
struct Args {
    /// Run shorter rounds
    #[arg(long)]
    quick: bool,
    /// Number of rounds; at least 5
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(5..))]
    rounds: u8,
    /// Number of connections of wrk
    #[arg(long, default_value_t = 32)]
    connections: u16,
    /// Do not measure throttlecrab-server
    #[arg(long)]
    no_peer: bool,
    /// Also measure the binary of `cargo build --release`, which has no link-time optimisation
    #[arg(long)]
    everyday: bool,
    /// Also measure the service with traces, at a sample ratio of 5 %
    #[arg(long)]
    traces: bool,
}

/// Name of throttlecrab-server in the report.
const PEER: &str = "throttlecrab-server, 1 key";

const THROTTLECRAB: &str = "0.4.40";

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
    let programs = Programs::build(&args)?;
    let folder = tempfile::tempdir()?;
    let mut servers = start(&programs, &args, folder.path())?;
    let seconds = if args.quick { 2 } else { 10 };
    for server in &servers {
        wrk::run(server, folder.path(), args.connections, 1)?;
    }
    let mut runs: Vec<Vec<Run>> = servers.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.rounds {
        for (server, runs) in servers.iter_mut().zip(&mut runs) {
            let before = server.processor_seconds()?;
            let mut run = wrk::run(server, folder.path(), args.connections, seconds)?;
            run.processor_us = (server.processor_seconds()? - before) * 1e6 / run.requests;
            runs.push(run);
        }
    }
    report(&servers, &runs, seconds, args.connections);
    Ok(())
}

/// Paths of the compared programs.
struct Programs {
    ours: PathBuf,
    everyday: Option<PathBuf>,
    floor: PathBuf,
    throttlecrab: Option<PathBuf>,
}

impl Programs {
    fn build(args: &Args) -> anyhow::Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let release = |default: &str| {
            target.clone().unwrap_or_else(|| PathBuf::from(default)).join("release")
        };
        cargo(
            "build --profile dist --target-dir target/dist-build --locked --package sluicegate-cli --bin sluicegate",
        )?;
        if args.everyday {
            cargo("build --release --locked --package sluicegate-cli --bin sluicegate")?;
        }
        cargo(
            "build --release --locked --manifest-path bench/Cargo.toml --package sluicegate-bench-http --bin floor",
        )?;
        let peers = release("bench/target").join("peers");
        let throttlecrab = peers.join("bin/throttlecrab-server");
        if !args.no_peer && !throttlecrab.exists() {
            let root = peers.display();
            cargo(&format!(
                "install throttlecrab-server --version {THROTTLECRAB} --locked --root {root}"
            ))?;
        }
        Ok(Self {
            ours: PathBuf::from("target/dist-build/dist/sluicegate"),
            everyday: args.everyday.then(|| release("target").join("sluicegate")),
            floor: release("bench/target").join("floor"),
            throttlecrab: (!args.no_peer).then_some(throttlecrab),
        })
    }
}

fn cargo(line: &str) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(line.split(' ')).status().context("can't start cargo")?;
    ensure!(status.success(), "`cargo {line}` failed");
    Ok(())
}

fn start(programs: &Programs, args: &Args, folder: &Path) -> anyhow::Result<Vec<Server>> {
    let question = |n: usize| {
        let (user, model, tenant) = (n % 10_000, n % 7, n % 100);
        format!(
            r#"{{"userId":"user-{user:06}","modelId":"gpt-4o-{model}","tenantId":"tenant-{tenant}"}}"#
        )
    };
    let ours = |name: &'static str, program: &Path, options: &str| {
        let (http, grpc, admin) = (free_port()?, free_port()?, free_port()?);
        let config = folder.join(format!("{http}.yaml"));
        let listen = format!(
            "listen: {{http: '127.0.0.1:{http}', grpc: '127.0.0.1:{grpc}', admin: '127.0.0.1:{admin}'}}\n"
        );
        std::fs::write(&config, listen + options + RULES)?;
        let mut ours = Command::new(program);
        ours.args(["serve", "--config"]).arg(config);
        Server::start(name, ours, http, "/rate-limit/allow", question)
    };

    let port = free_port()?;
    let mut floor = Command::new(&programs.floor);
    floor.arg(format!("127.0.0.1:{port}"));
    let floor = Server::start("axum floor", floor, port, "/rate-limit/allow", question)?;
    let mut servers = vec![floor, ours("sluicegate", &programs.ours, "")?];
    if let Some(everyday) = &programs.everyday {
        servers.push(ours("sluicegate, everyday build", everyday, "")?);
    }
    if args.traces {
        // Nothing listens on the port: this measures recording without a collector on the same
        // machine.
        let port = free_port()?;
        let traces =
            format!("traces: {{endpoint: 'http://127.0.0.1:{port}', sample_ratio: 0.05}}\n");
        servers.push(ours("sluicegate, traces", &programs.ours, &traces)?);
    }

    if let Some(program) = &programs.throttlecrab {
        let port = free_port()?;
        let mut throttlecrab = Command::new(program);
        throttlecrab.args(["--http", "--http-host", "127.0.0.1", "--http-port"]);
        throttlecrab.arg(port.to_string());
        // One key and one limit: throttlecrab-server has no scopes.
        let question = |n: usize| {
            let (user, model) = (n % 10_000, n % 7);
            format!(
                r#"{{"key":"user-{user:06}:gpt-4o-{model}","max_burst":1000,"count_per_period":1000,"period":60,"quantity":1}}"#
            )
        };
        servers.push(Server::start(PEER, throttlecrab, port, "/throttle", question)?);
    }
    Ok(servers)
}

fn report(servers: &[Server], runs: &[Vec<Run>], seconds: u64, connections: u16) {
    let rounds = runs[0].len();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!(
        "{rounds} alternating rounds of {seconds} s, {connections} connections, load {load} at the end"
    );
    println!("the decision log is written to /dev/null\n");
    let rate = |run: &Run| run.per_second;
    let cost = |run: &Run| run.processor_us;
    // A ratio per round: a slow round is slow for both.
    let ratio = |one: &[Run], other: &[Run], of: fn(&Run) -> f64| {
        Figure::of(one.iter().zip(other).map(|(one, other)| of(one) / of(other)))
    };
    println!(
        "| server | requests/s | min–max | of the floor | min–max | CPU µs/request | min–max | × the floor | p99 ms |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (server, of) in servers.iter().zip(runs) {
        let (rates, costs) = (Figure::of(of.iter().map(rate)), Figure::of(of.iter().map(cost)));
        let share = ratio(of, &runs[0], rate);
        let dearer = ratio(of, &runs[0], cost);
        let p99 = Figure::of(of.iter().map(|run| run.p99_ms));
        println!(
            "| {} | {:.0} | {:.0}–{:.0} | {:.2} | {:.2}–{:.2} | {:.2} | {:.2}–{:.2} | {:.2} | {:.2} |",
            server.name,
            rates.median,
            rates.min,
            rates.max,
            share.median,
            share.min,
            share.max,
            costs.median,
            costs.min,
            costs.max,
            dearer.median,
            p99.median,
        );
    }
    let verdict = |met: bool| if met { "met" } else { "missed" };
    let floor = ratio(&runs[1], &runs[0], rate).median;
    println!("\n| goal | target | measured | |\n|---|--:|--:|--:|");
    println!("| of the floor | ≥ 0.90 | {floor:.2} | {} |", verdict(floor >= 0.9));
    let named = |name: &str| servers.iter().position(|server| server.name == name);
    if let Some(traces) = named("sluicegate, traces") {
        let (rate, cost) =
            (ratio(&runs[traces], &runs[1], rate), ratio(&runs[traces], &runs[1], cost));
        println!(
            "| traces on, against off: requests/s | | {:.2} ({:.2}–{:.2}) | |",
            rate.median, rate.min, rate.max
        );
        println!(
            "| traces on, against off: CPU | | {:.2} ({:.2}–{:.2}) | |",
            cost.median, cost.min, cost.max
        );
    }
    if let Some(peer) = named(PEER) {
        let peer = ratio(&runs[1], &runs[peer], rate).median;
        println!("| against throttlecrab-server | > 1.00 | {peer:.2} | {} |", verdict(peer > 1.0));
    }
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
