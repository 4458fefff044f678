//! `cargo xtask bench gateway`: compares a request through the gateway with a direct request, and
//! with nginx and Envoy with their own rate limits.
//!
//! The upstream is an nginx that answers at once. All proxies run at the same time, and wrk
//! measures them alternately, so that a disturbance of the machine affects all of them. With two or
//! more cores, the servers run on the first and wrk on the last. The limits are never reached, so
//! only their check is measured.

mod server;
mod setups;
mod wrk;

use clap::Parser;

use server::Server;
use wrk::Run;

#[derive(Parser)]
#[command(about = "Benchmark the gateway against direct requests, nginx and Envoy")]
struct Args {
    /// Run shorter rounds
    #[arg(long)]
    quick: bool,
    /// Number of rounds; at least 5
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(5..))]
    rounds: u8,
    /// Number of connections for the rate; they saturate the server
    #[arg(long, default_value_t = 64)]
    connections: u16,
    /// Number of connections for the added latency; they do not saturate the server
    #[arg(long, default_value_t = 1)]
    few: u16,
}

/// Results of one server.
#[derive(Default)]
struct Runs {
    full: Vec<Run>,
    calm: Vec<Run>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let servers = setups::start(folder.path())?;
    let seconds = if args.quick { 1 } else { 5 };
    for server in &servers {
        wrk::run(server, args.connections, 1)?;
    }
    let mut runs: Vec<Runs> = servers.iter().map(|_| Runs::default()).collect();
    for _ in 0..args.rounds {
        for (server, runs) in servers.iter().zip(&mut runs) {
            runs.full.push(wrk::run(server, args.connections, seconds)?);
            runs.calm.push(wrk::run(server, args.few, seconds)?);
        }
    }
    report(&servers, &runs, &args, seconds);
    Ok(())
}

fn report(servers: &[Server], runs: &[Runs], args: &Args, seconds: u64) {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!(
        "{} alternating rounds of {seconds} s, {} connections for the rate, {} for the latency, load {load} at the end\n",
        args.rounds, args.connections, args.few
    );
    println!("| way | requests/s | min–max | of direct | added p50 ms | added p99 ms |");
    println!("|---|--:|--:|--:|--:|--:|");
    let rate = |run: &Run| run.per_second;
    let direct = &runs[0];
    for (server, of) in servers.iter().zip(runs) {
        let rates = Figure::of(of.full.iter().map(rate));
        let share = ratio(&of.full, &direct.full);
        let added = |of_run: fn(&Run) -> f64| {
            let pairs = of.calm.iter().zip(&direct.calm);
            Figure::of(pairs.map(|(one, other)| of_run(one) - of_run(other))).median
        };
        println!(
            "| {} | {:.0} | {:.0}–{:.0} | {share:.2} | {:.2} | {:.2} |",
            server.name,
            rates.median,
            rates.min,
            rates.max,
            added(|run| run.p50_ms),
            added(|run| run.p99_ms),
        );
    }
    let verdict = |met: bool| if met { "met" } else { "missed" };
    let of = |name: &str| servers.iter().position(|server| server.name == name).map(|at| &runs[at]);
    let (Some(ours), Some(nginx), Some(envoy)) = (of("sluicegate"), of("nginx"), of("envoy"))
    else {
        return;
    };
    println!("\n| goal | target | measured | |\n|---|--:|--:|--:|");
    let to_nginx = ratio(&ours.full, &nginx.full);
    println!("| of nginx | ≥ 0.70 | {to_nginx:.2} | {} |", verdict(to_nginx >= 0.7));
    let to_envoy = ratio(&ours.full, &envoy.full);
    println!("| of Envoy | ≥ 1.00 | {to_envoy:.2} | {} |", verdict(to_envoy >= 1.0));
    let pairs = ours.calm.iter().zip(&direct.calm);
    let added = Figure::of(pairs.map(|(one, other)| one.p99_ms - other.p99_ms)).median;
    println!("| added p99 below saturation | ≤ 1 ms | {added:.2} ms | {} |", verdict(added <= 1.0));
}

/// Returns the median of the ratios per round, because a slow round is slow for both.
fn ratio(one: &[Run], other: &[Run]) -> f64 {
    Figure::of(one.iter().zip(other).map(|(one, other)| one.per_second / other.per_second)).median
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
