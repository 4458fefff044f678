//! Benchmarks decisions on Redis against a plain sliding-log script and against limitador.
//!
//! All are measured alternately in one run on one server; the report has medians with their spread.
//! Client and server share the machine.

#[path = "../machine.rs"]
mod machine;
#[path = "../report.rs"]
#[allow(dead_code, reason = "only the engine benchmark prints nanoseconds")]
mod report;
#[path = "../rounds.rs"]
#[allow(dead_code, reason = "only the engine benchmark measures single calls")]
mod rounds;
mod server;
#[path = "../stopwatch.rs"]
#[allow(dead_code, reason = "only the engine benchmark measures single calls")]
mod stopwatch;
mod subjects;

use std::time::Duration;

use clap::Parser;
use report::{Goal, Table, Target, grouped};
use rounds::Figure;
use server::Server;
use subjects::{Limitador, Ours, plain};

#[derive(Parser)]
#[command(about = "Benchmark decisions on Redis against a plain script and limitador")]
struct Args {
    /// Run fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Only measure the processor time of a decision in client and server
    #[arg(long, value_name = "SCOPES")]
    cost: Option<usize>,
}

/// A benchmarked program with its number of concurrent callers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Ours(usize),
    /// With windows of a second, so that entries expire and are removed while it runs.
    OursLeaving(usize),
    Plain,
    Limitador(usize),
}

const SUBJECTS: [Subject; 6] = [
    Subject::Plain,
    Subject::Ours(64),
    Subject::Ours(256),
    Subject::OursLeaving(256),
    Subject::Limitador(64),
    Subject::Limitador(256),
];

impl Subject {
    fn name(self) -> String {
        match self {
            Self::Ours(callers) => format!("sluicegate, {callers} callers"),
            Self::OursLeaving(callers) => format!("sluicegate, {callers} callers, 1 s windows"),
            Self::Plain => "plain script, redis-benchmark ×16".to_owned(),
            Self::Limitador(callers) => format!("limitador, {callers} callers"),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (rounds, length) = match args.quick {
        true => (3, Duration::from_millis(800)),
        false => (5, Duration::from_secs(2)),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut server = Server::start()?;
    if let Some(scopes) = args.cost {
        return runtime.block_on(cost(&mut server, scopes));
    }
    println!("# redis: {rounds} alternating rounds\n\n{}\n", machine::Machine::now());
    let mut ratios = Vec::new();
    for scopes in [1, 3] {
        let figures = rates(&runtime, &mut server, scopes, rounds, length)?;
        ratios.push(print_rates(scopes, &figures));
    }
    let trips = runtime.block_on(trips(&mut server))?;
    let growth = runtime.block_on(growth(&mut server))?;
    println!("\n## GOALS\n");
    print!("{}", report::goals(&goals(&ratios, trips, growth)));
    Ok(())
}

/// Measures the decisions per second of every subject in alternating rounds.
fn rates(
    runtime: &tokio::runtime::Runtime,
    server: &mut Server,
    scopes: usize,
    rounds: usize,
    length: Duration,
) -> anyhow::Result<Vec<Figure>> {
    let mut rates: Vec<Vec<f64>> = SUBJECTS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (subject, rates) in SUBJECTS.iter().zip(&mut rates) {
            server.empty()?;
            rates.push(match *subject {
                Subject::Plain => {
                    let calls = 60_000.0 * length.as_secs_f64() / scopes as f64;
                    plain(server, scopes, calls as u64)?
                }
                Subject::Ours(callers) => runtime.block_on(async {
                    let ours = Ours::new(server, scopes, "h").await?;
                    anyhow::Ok(ours.rate(callers, length).await)
                })?,
                Subject::OursLeaving(callers) => runtime.block_on(async {
                    let ours = Ours::new(server, scopes, "s").await?;
                    anyhow::Ok(ours.rate(callers, length).await)
                })?,
                Subject::Limitador(callers) => runtime.block_on(async {
                    let limitador = Limitador::new(server, scopes).await?;
                    anyhow::Ok(limitador.rate(callers, length).await)
                })?,
            });
        }
    }
    Ok(rates.into_iter().map(Figure::of).collect())
}

/// Prints rates. Returns the ratios of ours to the plain script and to limitador.
fn print_rates(scopes: usize, figures: &[Figure]) -> [f64; 2] {
    println!("## {scopes} scope{}\n", if scopes == 1 { "" } else { "s" });
    let of = |wanted: Subject| {
        let place = SUBJECTS.iter().position(|subject| *subject == wanted);
        figures[place.expect("every subject is measured")].median
    };
    let mut table = Table::new(&["", "decisions/s", "min–max", "× plain"]);
    for (subject, figure) in SUBJECTS.iter().zip(figures) {
        table.row([
            subject.name(),
            grouped(figure.median),
            format!("{}–{}", grouped(figure.min), grouped(figure.max)),
            format!("{:.2}", figure.median / of(Subject::Plain)),
        ]);
    }
    println!("{table}");
    let ours = of(Subject::Ours(256));
    [ours / of(Subject::Plain), ours / of(Subject::Limitador(256))]
}

/// Prints the processor time of a decision in client and server. Other programs on the machine
/// disturb it less than a rate.
async fn cost(server: &mut Server, scopes: usize) -> anyhow::Result<()> {
    const LENGTH: Duration = Duration::from_secs(2);
    let mut table = Table::new(&["", "client µs", "server µs", "together"]);
    for callers in [64, 256] {
        server.empty()?;
        let ours = Ours::new(server, scopes, "h").await?;
        let spent = Spent::since(server)?;
        ours.rate(callers, LENGTH).await;
        let decisions = ours.traffic().calls;
        table.row(spent.row(format!("sluicegate, {callers} callers"), server, decisions)?);
    }
    for callers in [64, 256] {
        server.empty()?;
        let limitador = Limitador::new(server, scopes).await?;
        let spent = Spent::since(server)?;
        // The warm-up, a fifth of the measured time, is not counted but uses processor time.
        let counted = limitador.rate(callers, LENGTH).await * LENGTH.as_secs_f64();
        let decisions = (counted * 1.2) as u64;
        table.row(spent.row(format!("limitador, {callers} callers"), server, decisions)?);
    }
    server.empty()?;
    let spent = Spent::since(server)?;
    plain(server, scopes, 50_000)?;
    table.row(spent.row("plain script (client not counted)".to_owned(), server, 50_000)?);
    println!("## {scopes} scopes: processor time of a decision\n\n{table}");
    Ok(())
}

/// The processor time that client and server have used so far.
struct Spent {
    client_us: f64,
    server_us: f64,
}

impl Spent {
    fn since(server: &mut Server) -> anyhow::Result<Self> {
        let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let client_us = own.tv_sec as f64 * 1e6 + own.tv_nsec as f64 / 1e3;
        Ok(Self { client_us, server_us: server.cpu_seconds()? * 1e6 })
    }

    fn row(
        &self,
        name: String,
        server: &mut Server,
        decisions: u64,
    ) -> anyhow::Result<[String; 4]> {
        let now = Self::since(server)?;
        let client = (now.client_us - self.client_us) / decisions as f64;
        let server = (now.server_us - self.server_us) / decisions as f64;
        let us = |us: f64| format!("{us:.1}");
        Ok([name, us(client), us(server), us(client + server)])
    }
}

/// Measures the calls to Redis per decision. Retries would make it more than one.
async fn trips(server: &mut Server) -> anyhow::Result<f64> {
    server.empty()?;
    let ours = Ours::new(server, 3, "h").await?;
    let before = server.scripts()?.0;
    let decisions = 500_u32;
    for id in 0..decisions {
        ours.ask(id.into(), "user-0", "tenant-0", "model-0").await;
    }
    let scripts = server.scripts()?.0 - before;
    let traffic = ours.traffic();
    println!(
        "\n## round trips\n\n{decisions} decisions of 3 scopes, one after the other: {} calls, {} script \
         calls seen by the server.",
        traffic.calls, scripts
    );
    let rate = ours.rate(256, Duration::from_secs(1)).await;
    let busy = ours.traffic();
    println!(
        "256 callers at once: {:.1} decisions share a script call ({} decisions/s).",
        (busy.calls - traffic.calls) as f64 / (busy.round_trips - traffic.round_trips) as f64,
        grouped(rate)
    );
    Ok(scripts / f64::from(decisions))
}

/// Prints the server time of a decision for logs of different sizes. Returns the time for the
/// largest log, divided by that for the smallest.
async fn growth(server: &mut Server) -> anyhow::Result<f64> {
    println!("\n## log: server time of a decision, by the size of its exact log\n");
    let mut table = Table::new(&["entries", "µs"]);
    let mut costs = Vec::new();
    for entries in [10_u32, 1_000, 100_000] {
        server.empty()?;
        let now: (u64, u64) = redis::cmd("TIME").query(server.connection())?;
        let now = now.0 * 1_000_000 + now.1;
        for first in (0..entries).step_by(1_000) {
            let mut add = redis::cmd("ZADD");
            add.arg(Ours::first_log());
            for entry in first..entries.min(first + 1_000) {
                add.arg(now - u64::from(entries - entry)).arg(format!("before-{entry}"));
            }
            add.exec(server.connection())?;
        }
        let ours = Ours::new(server, 1, "h").await?;
        let mut rounds = Vec::new();
        for round in 0..5_u128 {
            let before = server.scripts()?;
            // Few decisions, so that a log of ten entries stays small.
            for id in 0..20 {
                ours.ask(round * 20 + id, "user-0", "tenant-0", "model-0").await;
            }
            let after = server.scripts()?;
            rounds.push((after.1 - before.1) / (after.0 - before.0));
        }
        let cost = Figure::of(rounds).median;
        table.row([grouped(entries.into()), format!("{cost:.1}")]);
        costs.push(cost);
    }
    print!("{table}");
    Ok(costs[2] / costs[0])
}

fn goals(ratios: &[[f64; 2]], trips: f64, growth: f64) -> [Goal; 6] {
    let goal = |what, measured, unit, target| Goal { what, measured: Some(measured), unit, target };
    [
        goal("one scope, against the plain script", ratios[0][0], "×", Target::AtLeast(0.9)),
        goal("three scopes, against the plain script", ratios[1][0], "×", Target::AtLeast(1.25)),
        goal("one scope, against limitador", ratios[0][1], "×", Target::AtLeast(2.0)),
        goal("three scopes, against limitador", ratios[1][1], "×", Target::AtLeast(2.0)),
        goal("round trips for each decision", trips, "", Target::AtMost(1.0)),
        goal(
            "a log of 100,000 entries, against one of 10 (log n: 5×)",
            growth,
            "×",
            Target::AtMost(5.0),
        ),
    ]
}
