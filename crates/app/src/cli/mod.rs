//! The command line: parses arguments, runs the subcommand and sets the exit code.
//!
//! Results go to standard output, errors to standard error.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | success: the service ran, the request is allowed, the log is proven |
//! | 1 | negative result: the request is denied, a test failed, a limit was exceeded |
//! | 2 | error: invalid input, or the server can't be reached |

mod check;
pub(crate) mod dlq;
mod doctor;
mod gateway_notes;
mod health;
mod init;
mod jobs;
mod overrides;
mod query;
mod queue;
mod reload;
mod remote;
mod reservations;
mod serve;
mod signals;
mod summary;
mod tail;
mod test;
mod top;
mod verify;

use std::convert::Infallible;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory, Parser, Subcommand};

/// Rate limiter: checks a request against every limit that applies to it in one atomic step, and
/// answers whether it may run now, later or never.
#[derive(Parser)]
#[command(
    name = "sluicegate",
    version,
    about,
    arg_required_else_help = true,
    after_help = "Exit code: 0 success, 1 a negative result (denied, failed, exceeded), 2 error"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the service
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::Serve),
    /// Write a commented configuration file to start from
    #[command(after_help = init::EXAMPLES)]
    Init(init::Init),
    /// Check whether this machine can run a configuration: ports, files, Redis, queues
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Doctor),
    /// Validate a configuration file and print the resulting rules
    #[command(after_help = check::EXAMPLES)]
    Check(check::Check),
    /// Check a request against the limits and charge it if it is allowed
    #[command(after_help = query::ALLOW_EXAMPLES)]
    Allow(query::RequestArgs),
    /// Show which rules apply to a request and how it would be decided, without charging it
    #[command(after_help = query::EXPLAIN_EXAMPLES)]
    Explain(query::RequestArgs),
    /// Show the current usage of the limits that apply to a request, without charging it
    Usage(query::RequestArgs),
    /// List the counters that a request is charged to, or reset them to zero
    #[command(after_help = query::RESET_EXAMPLES)]
    Reset(query::ResetArgs),
    /// Replace the limits of a rule for some callers, for a time or until removed, without a restart
    #[command(after_help = overrides::EXAMPLES)]
    Override(overrides::Overrides),
    /// Make a running process reload its configuration
    #[command(after_help = reload::EXAMPLES)]
    Reload(reload::Reload),
    /// List reservations that nobody settled, and settle or cancel them
    #[command(after_help = reservations::EXAMPLES)]
    Reservations(reservations::Reservations),
    /// Run unit tests of a configuration's rules, with simulated time
    #[command(after_help = test::EXAMPLES)]
    Test(test::Test),
    /// Check decision logs and prove that no limit was exceeded
    #[command(after_help = verify::EXAMPLES)]
    Verify(verify::Verify),
    /// Inspect queues, send messages to them and purge them
    #[command(after_help = queue::EXAMPLES)]
    Queue(queue::QueueCommand),
    /// List, replay and delete dead letters
    #[command(after_help = dlq::EXAMPLES)]
    Dlq(dlq::Dlq),
    /// Find a job and show why it has not run yet
    #[command(after_help = jobs::EXAMPLES)]
    Jobs(jobs::Jobs),
    /// Show the overview, limits and queues of a running process in the terminal, live
    #[command(after_help = top::EXAMPLES)]
    Top(top::TopCommand),
    /// Print the decisions of a running process as they are made
    #[command(after_help = tail::EXAMPLES)]
    Tail(tail::TailCommand),
    /// Ask a running process whether it is healthy or ready
    #[command(after_help = health::EXAMPLES)]
    Health(health::Health),
    /// Print the completion script of a shell
    Completions(Completions),
    /// Write the manual pages of all commands into a folder
    Man(Man),
}

#[derive(Args)]
struct Man {
    /// Existing folder
    folder: std::path::PathBuf,
}

#[derive(Args)]
struct Completions {
    /// Shell to print the script for
    shell: clap_complete::Shell,
}

/// Parses the command line, runs the command and returns the exit code.
pub(crate) fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Init(init) => init.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Check(check) => check.run(),
        Command::Allow(args) => args.allow(),
        Command::Explain(args) => args.explain(),
        Command::Usage(args) => args.usage(),
        Command::Reset(reset) => reset.run(),
        Command::Override(overrides) => overrides.run(),
        Command::Reload(reload) => reload.run(),
        Command::Reservations(reservations) => reservations.run(),
        Command::Test(test) => test.run(),
        Command::Verify(verify) => verify.run(),
        Command::Queue(queue) => queue.run(),
        Command::Dlq(dlq) => dlq.run(),
        Command::Jobs(jobs) => jobs.run(),
        Command::Top(top) => top.run(),
        Command::Tail(tail) => tail.run(),
        Command::Health(health) => health.run(),
        Command::Completions(Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sluicegate", &mut script);
            print(String::from_utf8_lossy(&script).trim_end());
            Ok(true)
        }
        Command::Man(Man { folder }) => clap_mangen::generate_to(Cli::command(), &folder)
            .map(|()| true)
            .with_context(|| format!("can't write to {}", folder.display())),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) if error.is::<AlreadyLogged>() => ExitCode::from(2),
        Err(error) => {
            print_error(&format!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Parser of an argument that is not allowed: the configuration file without `--config`, which other
/// commands accept.
fn file_without_option(file: &str) -> Result<Infallible, String> {
    Err(format!("write --config {file}"))
}

/// Marker error: the command failed, and the cause is already in the log.
#[derive(Debug)]
struct AlreadyLogged;

impl std::fmt::Display for AlreadyLogged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("see the log for the cause")
    }
}

impl std::error::Error for AlreadyLogged {}

/// Prints an error to standard error; coloured only on a terminal.
pub(crate) fn print_error(message: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stderr(), "\x1b[1;31merror:\x1b[0m {message}");
}

/// Prints a note to standard error.
fn print_note(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stderr(), "\x1b[36mnote:\x1b[0m {}", remote::escaped(text));
}

/// Prints a line to standard output; coloured only on a terminal. A closed pipe is not an error.
pub(crate) fn print(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stdout(), "{text}");
}
