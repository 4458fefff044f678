//! `cargo xtask bench dispatch`: three ways to delay a backlog that takes two windows, with the
//! calls that provider and store get; the dispatcher without limits against a bare loop on lapin;
//! and jobs per second from end to end on the embedded queue.

#[path = "../../src/machine.rs"]
mod machine;
mod provider;
#[path = "../../src/report.rs"]
#[allow(dead_code, reason = "only the engine benchmark prints nanoseconds")]
mod report;
#[path = "../../src/rounds.rs"]
#[allow(dead_code, reason = "only the engine benchmark measures single calls")]
mod rounds;
mod setting;
mod speed;
#[path = "../../src/stopwatch.rs"]
#[allow(dead_code, reason = "only the engine benchmark measures single calls")]
mod stopwatch;
mod waiting;
mod whole;

use clap::{Parser, ValueEnum};
use sluicegate_testkit::rabbitmq::RabbitServer;

#[derive(Parser)]
#[command(
    about = "Benchmark three ways to delay a backlog, and the dispatcher against a bare loop"
)]
struct Args {
    /// Parts to run (default: all)
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Use windows of 6 s instead of a minute, and a tenth of the messages
    #[arg(long)]
    quick: bool,
    /// Number of rounds of the parts `speed` and `whole`; at least 5
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(5..))]
    rounds: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Three ways to delay a backlog that takes two windows, on RabbitMQ and Redis
    Waiting,
    /// Messages per second of the dispatcher on RabbitMQ, against a bare loop
    Speed,
    /// Jobs per second from end to end on the embedded queue
    Whole,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("# dispatch\n\n{}", machine::Machine::now());
    let wants = |part| args.parts.is_empty() || args.parts.contains(&part);
    let on_rabbitmq = wants(Part::Waiting) || wants(Part::Speed);
    let broker = on_rabbitmq.then(RabbitServer::start);
    runtime.block_on(async {
        if let Some(broker) = &broker {
            if wants(Part::Waiting) {
                waiting::measure(broker, args.quick).await?;
            }
            if wants(Part::Speed) {
                speed::measure(broker, args.quick, args.rounds).await?;
            }
        }
        if wants(Part::Whole) {
            whole::measure(args.quick, args.rounds).await?;
        }
        Ok(())
    })
}
