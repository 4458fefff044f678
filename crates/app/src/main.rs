//! Entry point of the `sluicegate` command: sets the allocator and runs the command line.

mod certificates;
mod changes;
mod cli;
mod configuration;
mod console;
mod gateways;
mod handlers;
mod jobs;
mod log_line;
mod metrics;
mod node_summaries;
mod queue;
mod restart;
mod store;
mod store_full;
mod trace_log;
mod wire;
mod writable;

use std::process::ExitCode;

/// mimalloc, because a request makes many small, short-lived allocations: see bench/RESULTS.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
