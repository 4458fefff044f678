//! The `sluicegate` command.

mod certificates;
mod changes;
mod cli;
mod configuration;
mod console;
mod full;
mod gateways;
mod handlers;
mod jobs;
mod queue;
mod restart;
mod store;
mod upstream;
mod wire;

use std::process::ExitCode;

/// Most of what a request allocates is small and freed soon: see bench/RESULTS.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
