//! `cargo xtask bench grpc`: compares Allow and ShouldRateLimit with the floor, a tonic server that
//! decides nothing.
//!
//! All servers run at the same time, and h2load measures them alternately, so that a disturbance of
//! the machine affects all of them. With two or more cores, the servers run on the first and h2load
//! on the last. h2load repeats one message, so all requests use the same counter of each scope.

mod h2load;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use clap::Parser;
use prost::Message as _;
use sluicegate_bench_grpc::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use sluicegate_bench_grpc::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use sluicegate_bench_grpc::envoy::service::ratelimit::v3::RateLimitRequest;
use sluicegate_bench_grpc::sluicegate::v1::AllowRequest;

use h2load::{Question, Run};
use server::{Server, free_port};

#[derive(Parser)]
#[command(
    about = "Benchmark Allow and ShouldRateLimit against a tonic server that decides nothing"
)]
struct Args {
    /// Run shorter rounds
    #[arg(long)]
    quick: bool,
    /// Number of rounds; at least 5
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(5..))]
    rounds: u8,
}

/// Three scopes and three descriptors. All requests are admitted, so every decision writes to its
/// counters.
const RULES: &str = "
limits:
  - name: caller
    effective: true
    rules:
      - name: USER_MODEL
        per: [userId, modelId]
        limit: 1000000000/min windowed
  - name: tenant
    rules:
      - name: TENANT
        per: [tenantId]
        limit: 1000000000/min windowed
  - name: model
    rules:
      - name: GLOBAL_MODEL
        per: [modelId]
        limit: 1000000000/min windowed
envoy:
  domains:
    - domain: edge
      descriptors:
        - {key: user, rate_limit: {unit: minute, requests_per_unit: 1000000000}}
        - {key: path, rate_limit: {unit: minute, requests_per_unit: 1000000000}}
        - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 1000000000}}
";

/// Turns off the decision log, which the floor does not have either.
const LEAN: &str = "log: {decisions: {allowed: 0}}\n";

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let programs = Programs::build()?;
    let folder = tempfile::tempdir()?;
    let servers = start(&programs, folder.path())?;
    let requests = if args.quick { 40_000 } else { 400_000 };
    for question in questions() {
        for server in &servers {
            h2load::run(server, &question, folder.path(), 10_000)?;
        }
        let mut runs: Vec<Vec<Run>> = servers.iter().map(|_| Vec::new()).collect();
        for _ in 0..args.rounds {
            for (server, runs) in servers.iter().zip(&mut runs) {
                runs.push(h2load::run(server, &question, folder.path(), requests)?);
            }
        }
        report(&question, &servers, &runs, requests);
    }
    Ok(())
}

fn questions() -> [Question; 2] {
    let allow = AllowRequest {
        user_id: "user-004711".to_owned(),
        model_id: "gpt-4o-5".to_owned(),
        tenant_id: Some("tenant-42".to_owned()),
        ..AllowRequest::default()
    };
    let descriptor = |key: &str, value: &str| RateLimitDescriptor {
        entries: vec![Entry { key: key.to_owned(), value: value.to_owned() }],
        ..RateLimitDescriptor::default()
    };
    let rls = RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![
            descriptor("user", "user-004711"),
            descriptor("path", "/v1/chat/completions"),
            descriptor("remote_address", "203.0.113.77"),
        ],
        hits_addend: 0,
    };
    [
        Question {
            name: "Allow",
            path: "/sluicegate.v1.RateLimiterService/Allow",
            message: allow.encode_to_vec(),
        },
        Question {
            name: "ShouldRateLimit",
            path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            message: rls.encode_to_vec(),
        },
    ]
}

/// Paths of the compared programs.
struct Programs {
    ours: PathBuf,
    floor: PathBuf,
}

impl Programs {
    fn build() -> anyhow::Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| PathBuf::from("bench/target"));
        cargo(
            "build --profile dist --target-dir target/dist-build --locked --package sluicegate-cli --bin sluicegate",
        )?;
        cargo(
            "build --release --locked --manifest-path bench/Cargo.toml --package sluicegate-bench-grpc --bin grpc-floor",
        )?;
        Ok(Self {
            ours: PathBuf::from("target/dist-build/dist/sluicegate"),
            floor: target.join("release/grpc-floor"),
        })
    }
}

fn cargo(line: &str) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(line.split(' ')).status().context("can't start cargo")?;
    ensure!(status.success(), "`cargo {line}` failed");
    Ok(())
}

fn start(programs: &Programs, folder: &Path) -> anyhow::Result<Vec<Server>> {
    let port = free_port()?;
    let mut floor = Command::new(&programs.floor);
    floor.arg(format!("127.0.0.1:{port}"));
    let floor = Server::start("tonic floor", floor, port)?;
    let ours = |name: &'static str, more: &str| {
        let (http, grpc, admin) = (free_port()?, free_port()?, free_port()?);
        let config = folder.join(format!("{grpc}.yaml"));
        let listen = format!(
            "listen: {{http: '127.0.0.1:{http}', grpc: '127.0.0.1:{grpc}', admin: '127.0.0.1:{admin}'}}\n"
        );
        std::fs::write(&config, format!("{listen}{more}{RULES}"))?;
        let mut command = Command::new(&programs.ours);
        command.args(["serve", "--config"]).arg(config);
        Server::start(name, command, grpc)
    };
    let lean = ours("sluicegate, no decision log", LEAN)?;
    Ok(vec![floor, ours("sluicegate", "")?, lean])
}

fn report(question: &Question, servers: &[Server], runs: &[Vec<Run>], requests: u32) {
    let rounds = runs[0].len();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!(
        "\n{}: {rounds} alternating rounds of {requests} requests, load {load} at the end\n",
        question.name
    );
    println!(
        "| server | requests/s | min–max | of the floor | min–max | CPU µs/request | × the floor |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let rate = |run: &Run| run.per_second;
    let cost = |run: &Run| run.processor_us;
    // A ratio per round: a slow round is slow for both.
    let ratio = |one: &[Run], of: fn(&Run) -> f64| {
        Figure::of(one.iter().zip(&runs[0]).map(|(one, floor)| of(one) / of(floor)))
    };
    for (server, of) in servers.iter().zip(runs) {
        let (rates, costs) = (Figure::of(of.iter().map(rate)), Figure::of(of.iter().map(cost)));
        let (share, dearer) = (ratio(of, rate), ratio(of, cost));
        println!(
            "| {} | {:.0} | {:.0}–{:.0} | {:.2} | {:.2}–{:.2} | {:.2} | {:.2} |",
            server.name,
            rates.median,
            rates.min,
            rates.max,
            share.median,
            share.min,
            share.max,
            costs.median,
            dearer.median,
        );
    }
    let share = ratio(&runs[1], rate).median;
    let verdict = if share >= 0.9 { "met" } else { "missed" };
    println!("\ngoal: at least 0.90 of the floor; measured {share:.2}: {verdict}");
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
