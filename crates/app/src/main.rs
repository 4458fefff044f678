//! The `sluicegate` command.

mod changes;
mod cli;
mod configuration;
mod gateways;
mod handlers;
mod jobs;
mod queue;
mod store;
mod upstream;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
