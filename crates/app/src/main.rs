//! The `sluicegate` command.

mod changes;
mod cli;
mod configuration;
mod gateways;
#[expect(dead_code, reason = "made for the workers of a file")]
mod handlers;
mod queue;
mod store;
mod upstream;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
