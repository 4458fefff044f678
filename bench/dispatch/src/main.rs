//! `cargo xtask bench dispatch`: a backlog of two windows in three ways to wait, as its provider and
//! its store see it; and the dispatcher without limits beside a bare loop that does the same.

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

use clap::Parser;
use sluicegate_testkit::rabbitmq::RabbitServer;

#[derive(Parser)]
#[command(about = "A backlog in three ways to wait, and the dispatcher beside a bare loop")]
struct Args {
    /// Windows of 6 s instead of a minute, and a tenth of the messages
    #[arg(long)]
    quick: bool,
    /// How often the speed is measured; at least 5
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(5..))]
    rounds: u8,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("# dispatch\n\n{}", machine::Machine::now());
    let broker = RabbitServer::start();
    runtime.block_on(async {
        waiting::measure(&broker, args.quick).await?;
        speed::measure(&broker, args.quick, args.rounds).await
    })
}
