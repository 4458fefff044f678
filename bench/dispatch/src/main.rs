//! `cargo xtask bench dispatch`: a backlog of two windows in three ways to wait, as its provider and
//! its store see it; the dispatcher without limits beside a bare loop that does the same; and jobs a
//! second from end to end on the embedded queue.

#[path = "../../src/machine.rs"]
mod machine;
mod provider;
#[path = "../../src/report.rs"]
#[allow(dead_code, reason = "the engine prints nanoseconds, too")]
mod report;
#[path = "../../src/rounds.rs"]
#[allow(dead_code, reason = "the engine measures single calls, too")]
mod rounds;
mod setting;
mod speed;
#[path = "../../src/stopwatch.rs"]
#[allow(dead_code, reason = "rounds measure single calls, too")]
mod stopwatch;
mod waiting;
mod whole;

use clap::{Parser, ValueEnum};
use sluicegate_testkit::rabbitmq::RabbitServer;

#[derive(Parser)]
#[command(about = "A backlog in three ways to wait, and the dispatcher beside a bare loop")]
struct Args {
    /// Parts to run (default: all)
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Windows of 6 s instead of a minute, and a tenth of the messages
    #[arg(long)]
    quick: bool,
    /// How often the speed is measured; at least 5
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(5..))]
    rounds: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A backlog of two windows in three ways to wait, on RabbitMQ and Redis
    Waiting,
    /// The dispatcher on RabbitMQ beside a bare loop
    Speed,
    /// Jobs a second from end to end on the embedded queue
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
