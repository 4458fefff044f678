//! Runs one of the simulated servers until it is interrupted.

use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    simulators::Cli::parse().run().await
}
