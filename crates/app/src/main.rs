//! The `sluicegate` command.

mod changes;
mod cli;
mod configuration;
mod gateways;
mod queue;
mod store;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
