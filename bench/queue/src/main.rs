//! `cargo xtask bench queue`: compares our queue interface with the raw client of each broker:
//! sending, receiving with acknowledgement, and sending with delay.
//!
//! Both use the same broker with the same durability, and are measured alternately, so that a
//! disturbance of the machine affects both. Client and broker share the machine.
//!
//! With `--priority`: the wait of urgent messages under a flood of others.

#[path = "../../src/machine.rs"]
mod machine;
mod ours;
mod priority;
mod raw;
#[path = "../../src/report.rs"]
#[allow(dead_code, reason = "only the engine benchmark prints nanoseconds and goals")]
mod report;
#[path = "../../src/rounds.rs"]
#[allow(dead_code, reason = "only the engine benchmark measures single calls")]
mod rounds;
#[path = "../../src/stopwatch.rs"]
#[allow(dead_code, reason = "only the engine benchmark measures single calls")]
mod stopwatch;
mod turns;

use std::sync::Arc;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use sluicegate_queue::{Embedded, PubSub, RabbitMq, ServiceBus, Sqs, pubsub, rabbitmq, servicebus};
use sluicegate_testkit::pubsub::PubSubServer;
use sluicegate_testkit::rabbitmq::RabbitServer;
use sluicegate_testkit::servicebus::ServiceBusServer;
use sluicegate_testkit::sqs::SqsServer;

use ours::Ours;
use turns::Case;

#[derive(Parser)]
#[command(about = "Benchmark the queue interface against the raw client of each broker")]
struct Args {
    /// Brokers to measure (default: all)
    #[arg(value_enum)]
    brokers: Vec<Kind>,
    /// Send a tenth of the jobs
    #[arg(long)]
    quick: bool,
    /// Measure the wait of the highest priority under a flood of the lowest, and nothing else
    #[arg(long)]
    priority: bool,
    /// Number of measured rounds; at least 5
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(5..))]
    rounds: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Embedded,
    Rabbitmq,
    Sqs,
    Pubsub,
    Servicebus,
}

/// Bytes of a job that contains its input, and of one that only refers to it.
const WHOLE: usize = 2_000;
const NAMED: usize = 100;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let chosen = if args.brokers.is_empty() { Kind::value_variants() } else { &args.brokers };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match args.priority {
        true => println!("# queue: priorities\n\n{}", machine::Machine::now()),
        false => {
            println!("# queue: {} alternating rounds\n\n{}", args.rounds, machine::Machine::now())
        }
    }
    for kind in chosen {
        match args.priority {
            true => runtime.block_on(measure_priority(*kind, &args))?,
            false => runtime.block_on(measure(*kind, &args))?,
        }
    }
    Ok(())
}

async fn measure_priority(kind: Kind, args: &Args) -> anyhow::Result<()> {
    let urgent = if args.quick { 40 } else { 400 };
    match kind {
        Kind::Embedded => {
            let program = std::env::current_exe()?;
            let folder = tempfile::tempdir_in(program.parent().context("no folder")?)?;
            let broker = Embedded::open(&folder.path().join("flooded.db"))?;
            priority::measure("embedded", Arc::new(broker), urgent).await
        }
        Kind::Rabbitmq => {
            let server = RabbitServer::start();
            let broker = RabbitMq::connect(rabbitmq::Options::new(server.url())).await?;
            priority::measure("RabbitMQ", Arc::new(broker), urgent).await
        }
        Kind::Sqs => {
            let server = SqsServer::moto();
            let broker = Sqs::with_config(&raw::sdk_config(server.port))?;
            priority::measure("SQS on moto", Arc::new(broker), urgent).await
        }
        Kind::Pubsub => {
            let server = PubSubServer::start();
            let options = pubsub::Options {
                project: Some("bench".to_owned()),
                endpoint: Some(server.endpoint()),
                ..Default::default()
            };
            let broker = PubSub::connect(options).await?;
            priority::measure("Pub/Sub on Google's fake", Arc::new(broker), urgent).await
        }
        Kind::Servicebus => {
            let server = ServiceBusServer::start();
            let options = servicebus::Options::from_connection_string(&server.connection_string())?;
            let options = servicebus::Options { admin_url: Some(server.admin_url()), ..options };
            let broker = ServiceBus::connect(options).await?;
            priority::measure("Service Bus on our double", Arc::new(broker), urgent).await
        }
    }
}

async fn measure(kind: Kind, args: &Args) -> anyhow::Result<()> {
    let case = |name, jobs: usize, bytes, batch| Case {
        name,
        rounds: args.rounds,
        jobs: if args.quick { jobs / 10 } else { jobs },
        body: body(bytes),
        batch,
        rate_goal: None,
    };
    match kind {
        Kind::Embedded => {
            // The goal is the rate that other embedded queues publish for durable jobs without
            // work.
            for (bytes, rate_goal) in [(WHOLE, None), (NAMED, Some(30_000.0))] {
                // Not in /tmp, which may be in memory: its writes would not be durable.
                let program = std::env::current_exe()?;
                let folder = tempfile::tempdir_in(program.parent().context("no folder")?)?;
                let case = Case { rate_goal, ..case("embedded", 50_000, bytes, 1_000) };
                let ours = Ours::embedded(&folder.path().join("ours.db"), &case).await?;
                let raw = raw::Sqlite::open(&folder.path().join("raw.db"), &case)?;
                turns::measure(&case, "rusqlite", ours, raw).await?;
            }
            Ok(())
        }
        Kind::Rabbitmq => {
            let server = RabbitServer::start();
            let case = case("RabbitMQ", 20_000, WHOLE, 500);
            let ours = Ours::rabbitmq(server.url(), &case).await?;
            let raw = raw::Lapin::open(&server.url(), &case).await?;
            turns::measure(&case, "lapin", ours, raw).await
        }
        Kind::Sqs => {
            let server = SqsServer::moto();
            let config = raw::sdk_config(server.port);
            // moto scans all messages for each one that it delivers, so more messages take too
            // long.
            let case = case("SQS on moto", 200, WHOLE, 10);
            let ours = Ours::sqs(&config, &case).await?;
            let raw = raw::Sdk::open(&config, &case).await?;
            turns::measure(&case, "aws-sdk-sqs", ours, raw).await
        }
        Kind::Pubsub => {
            let server = PubSubServer::start();
            let case = case("Pub/Sub on Google's fake", 20_000, WHOLE, 500);
            let ours = Ours::pubsub(server.endpoint(), &case).await?;
            let raw = raw::Tonic::open(server.endpoint(), &case).await?;
            turns::measure(&case, "tonic", ours, raw).await
        }
        Kind::Servicebus => {
            let server = ServiceBusServer::start();
            let case = case("Service Bus on our double", 5_000, WHOLE, 100);
            let ours = Ours::servicebus(&server, &case).await?;
            let raw = raw::Fe2o3::open(&server, &case).await?;
            turns::measure(&case, "fe2o3-amqp", ours, raw).await
        }
    }
}

/// Creates a JSON object with this number of bytes.
fn body(bytes: usize) -> String {
    format!(r#"{{"job":"{}"}}"#, "x".repeat(bytes - r#"{"job":""}"#.len()))
}
