//! The project's own commands, run as `cargo xtask <command>`. Each command has its own file.
//!
//! They are plain Rust, so that a fresh machine needs only the toolchain to run every test, every
//! benchmark and every repository check.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool: printing is its job"
)]

mod bench;
mod demo;
mod dist;
mod docs;
mod programs;
mod python;
mod services;
mod sh;
mod test;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "Run the tests, benchmarks and checks of this repository"
)]
enum Command {
    /// Run the test suites and print the time of each
    Test(test::Args),
    /// Run a benchmark of the bench/ workspace
    Bench(bench::Args),
    /// Start three nodes with Redis, simulators and traffic, and print the address of the dashboard
    Demo(demo::Args),
    /// Build the files that users install: archive, Debian package, wheel, npm package, SBOM
    Dist(dist::Args),
    /// Build the documentation into a static, searchable site (installs mdBook the first time)
    Docs(docs::Args),
    /// Check the rules of this repository that the compiler can't check
    Tidy,
    /// List or install the external servers that tests need
    Services(services::Args),
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        // The command has printed what is wrong.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `command` in the root of the repository. Returns true if it succeeded.
fn run(command: Command) -> anyhow::Result<bool> {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = xtask.parent().expect("xtask is a folder of the repository");
    // All paths below are relative to the repository, whatever the current directory is.
    std::env::set_current_dir(root).with_context(|| {
        let root = root.display();
        format!("can't enter {root}: was the repository moved? run `cargo clean -p xtask`")
    })?;
    match command {
        Command::Test(args) => test::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Dist(args) => dist::run(&args),
        Command::Docs(args) => docs::run(&args),
        Command::Tidy => tidy::run(),
        Command::Services(args) => services::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_well_formed() {
        Command::command().debug_assert();
    }
}
