//! What can be typed, and what is answered: text on standard output, complaints on standard error.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | yes: it runs, it is allowed, it is right, it is proven |
//! | 1 | no: it is denied, a test failed, a limit was exceeded |
//! | 2 | the question could not be answered: bad input, an unreachable server |

mod ask;
mod check;
mod dlq;
mod jobs;
mod overrides;
mod queue;
mod remote;
mod serve;
mod summary;
mod test;
mod verify;

use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

/// Decides whether a piece of work may go now, later or never, across every limit that applies
/// to it, in one atomic step.
#[derive(Parser)]
#[command(name = "sluicegate", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the service
    #[command(after_help = serve::EXAMPLES)]
    Serve(serve::Serve),
    /// Read a configuration as the service would, and show what it means
    #[command(after_help = check::EXAMPLES)]
    Check(check::Check),
    /// Ask a running service whether a request may go
    #[command(after_help = ask::ALLOW_EXAMPLES)]
    Allow(ask::Ask),
    /// Ask a running service why a request is decided as it is; consumes nothing
    #[command(after_help = ask::EXPLAIN_EXAMPLES)]
    Explain(ask::Ask),
    /// Show how far the limits of a request are used; consumes nothing
    Usage(ask::Ask),
    /// List the counters that a request is charged on, or forget their usage
    #[command(after_help = ask::RESET_EXAMPLES)]
    Reset(ask::Reset),
    /// Give some other limits than their rule, for a while, without a deploy
    #[command(after_help = overrides::EXAMPLES)]
    Override(overrides::Overrides),
    /// Run unit tests of rules, in virtual time
    #[command(after_help = test::EXAMPLES)]
    Test(test::Test),
    /// Prove from a decision log that no limit was exceeded
    #[command(after_help = verify::EXAMPLES)]
    Verify(verify::Verify),
    /// Look into queues, send to them, empty them
    #[command(after_help = queue::EXAMPLES)]
    Queue(queue::QueueCommand),
    /// Look at dead letters, send them again, throw them away
    #[command(after_help = dlq::EXAMPLES)]
    Dlq(dlq::Dlq),
    /// Say where a job is, and what it waits for
    #[command(after_help = jobs::EXAMPLES)]
    Jobs(jobs::Jobs),
    /// Print the completions of a shell
    Completions(Completions),
}

#[derive(Args)]
struct Completions {
    /// Which shell
    shell: clap_complete::Shell,
}

/// Reads the command line and runs it.
pub(crate) fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Check(check) => check.run(),
        Command::Allow(ask) => ask.allow(),
        Command::Explain(ask) => ask.explain(),
        Command::Usage(ask) => ask.usage(),
        Command::Reset(reset) => reset.run(),
        Command::Override(overrides) => overrides.run(),
        Command::Test(test) => test.run(),
        Command::Verify(verify) => verify.run(),
        Command::Queue(queue) => queue.run(),
        Command::Dlq(dlq) => dlq.run(),
        Command::Jobs(jobs) => jobs.run(),
        Command::Completions(Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sluicegate", &mut script);
            say(String::from_utf8_lossy(&script).trim_end());
            Ok(true)
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) if error.is::<Logged>() => ExitCode::from(2),
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

/// The error that ended a command is in the log already.
#[derive(Debug)]
struct Logged;

impl std::fmt::Display for Logged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the log says what went wrong")
    }
}

impl std::error::Error for Logged {}

/// Says on standard error what went wrong; colours only on a terminal.
pub(crate) fn complain(message: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stderr(), "\x1b[1;31merror:\x1b[0m {message}");
}

/// Writes to standard output; colours only on a terminal. A closed pipe is not an error.
pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stdout(), "{text}");
}
