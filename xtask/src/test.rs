//! `cargo xtask test`: builds the test programs once, runs the test suites, and prints the time of
//! each. It runs plain test programs, so a fresh machine needs no test runner.
//!
//! Suites run in two lanes. One lane takes suites from the start of the list, which keep a core
//! busy; the other takes them from the end, which mostly wait for windows, timeouts and restarts.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::programs::{self, Program};
use crate::python::{self, Tool};
use crate::services::{self, Service};
use crate::sh::{self, Output};

/// A group of tests that is run, timed and reported together.
#[derive(Debug)]
struct Suite {
    name: &'static str,
    /// The property that these tests check, in one line for `--list`.
    proves: &'static str,
    tests: Tests,
    /// Servers that must be installed before it runs.
    needs: &'static [&'static Service],
    /// Python program that it runs.
    python: Option<&'static Tool>,
}

/// The tests of a suite.
#[derive(Debug)]
enum Tests {
    /// Test programs of the shared build, each as folder/target with its arguments, separated by
    /// spaces.
    Programs(&'static [&'static str]),
    /// Every test program that no other suite names, and the documentation tests.
    Rest,
    /// Commands, with arguments separated by spaces.
    Commands(&'static [&'static str]),
}
use Tests::{Commands, Programs, Rest};

/// All suites. Those that keep a core busy come first, those that mostly wait come last.
const SUITES: &[Suite] = &[
    Suite {
        name: "workspace",
        proves: "unit, integration and documentation tests of every crate",
        tests: Rest,
        needs: &[],
        python: None,
    },
    Suite {
        name: "shuttle",
        proves: "the memory store holds its limits under every explored thread interleaving",
        // Its locks differ from those of the shared build: this compiles the store once more, and
        // takes every other crate from the shared build.
        tests: Commands(&["cargo suite --features shuttle --test shuttle"]),
        needs: &[],
        python: None,
    },
    Suite {
        name: "alone",
        proves: "each queue, the store without Redis, and the library with each feature compile without the others",
        tests: Commands(&[
            "cargo check --package sluicegate-store --locked",
            "cargo check --package sluicegate --locked",
            "cargo check --package sluicegate --features redis --locked",
            "cargo check --package sluicegate --features remote --locked",
            "cargo check --package sluicegate --features tower --locked",
            "cargo check --package sluicegate-queue --no-default-features --locked",
            "cargo check --package sluicegate-queue --no-default-features --features embedded --locked",
            "cargo check --package sluicegate-queue --no-default-features --features rabbitmq --locked",
            "cargo check --package sluicegate-queue --no-default-features --features servicebus --locked",
            "cargo check --package sluicegate-queue --no-default-features --features sqs --locked",
            "cargo check --package sluicegate-queue --no-default-features --features pubsub --locked",
        ]),
        needs: &[],
        python: None,
    },
    Suite {
        name: "cluster",
        proves: "the same on a Redis Cluster and behind Sentinel; across slots no limit is exceeded",
        tests: Programs(&["store/redis_cluster"]),
        needs: &[&services::REDIS, &services::REDIS_6_2],
        python: None,
    },
    Suite {
        name: "redis",
        proves: "the Redis store keeps every promise of the port, on Redis 7.0 and 6.2, and survives faults",
        tests: Programs(&["store/redis"]),
        needs: &[&services::REDIS, &services::REDIS_6_2],
        python: None,
    },
    Suite {
        name: "python",
        proves: "the Python package works with real services, web frameworks and a type checker",
        tests: Programs(&["app/clients python_package"]),
        needs: &[&services::PYTHON, &services::REDIS],
        python: Some(&python::CLIENT),
    },
    Suite {
        name: "node",
        proves: "the Node package works with real services, web frameworks and a type checker",
        tests: Programs(&["app/clients node_package"]),
        needs: &[&services::NPM, &services::NODE_CLIENT, &services::REDIS],
        python: None,
    },
    Suite {
        name: "schemathesis",
        proves: "the running service accepts and answers what its OpenAPI document says",
        tests: Programs(&["app/schemathesis"]),
        needs: &[&services::PYTHON],
        python: Some(&python::SCHEMATHESIS),
    },
    Suite {
        name: "alerts",
        proves: "each alert of deploy/prometheus fires when it should, and not otherwise",
        tests: Commands(&["promtool test rules deploy/prometheus/alerts.test.yaml"]),
        needs: &[&services::PROMTOOL],
        python: None,
    },
    Suite {
        name: "deploy",
        proves: "the files of deploy/ work with Prometheus, Alertmanager, NGINX, HAProxy and logrotate, the services of Compose files answer, and manifests are valid",
        tests: Programs(&["app/deploy"]),
        needs: &[
            &services::REDIS,
            &services::RABBITMQ,
            &services::CURL,
            &services::IPROUTE,
            &services::LOGROTATE,
            &services::PROMTOOL,
            &services::REDIS_EXPORTER,
            &services::AMTOOL,
            &services::NGINX,
            &services::HAPROXY,
            &services::SYSTEMD,
            &services::PYTHON,
        ],
        python: Some(&python::KUBERNETES_VALIDATE),
    },
    Suite {
        name: "dist",
        proves: "each package of `cargo xtask dist` and the container image install into an empty place and run the first screen of README",
        tests: Programs(&["app/dist"]),
        needs: &[
            &services::MMDEBSTRAP,
            &services::BUILDAH,
            &services::PYTHON,
            &services::NPM,
            &services::CURL,
            &services::IPROUTE,
        ],
        python: None,
    },
    Suite {
        name: "documents",
        proves: "the commands of every document work, in a private network, and the pages build into a site",
        tests: Programs(&["app/documents"]),
        needs: &[
            &services::REDIS,
            &services::SQLITE,
            &services::PROMTOOL,
            &services::NGINX,
            &services::HAPROXY,
            &services::PYTHON,
            &services::CURL,
            &services::MDBOOK,
            &services::IPROUTE,
        ],
        python: None,
    },
    Suite {
        name: "envoy",
        proves: "a real Envoy is limited exactly, with the configurations of deploy/envoy; a foreign gRPC client works, and the commands of docs/grpc.md",
        tests: Programs(&["app/envoy"]),
        needs: &[&services::PYTHON, &services::REDIS],
        python: Some(&python::ENVOY),
    },
    Suite {
        name: "budget",
        proves: "200 callers on two nodes never exceed a budget; leases of killed holders expire",
        tests: Programs(&["app/budget", "app/leases"]),
        needs: &[&services::REDIS],
        python: None,
    },
    Suite {
        name: "sqs",
        proves: "SQS keeps every promise of a queue, with the mocks moto and fauxqs, and runs the scenarios of dispatchers and crawlers",
        tests: Programs(&["queue/sqs --test-threads=8", "app/clouds sqs::"]),
        needs: &[&services::PYTHON, &services::NPM, &services::FAUXQS, &services::REDIS],
        python: Some(&python::MOTO),
    },
    Suite {
        name: "pubsub",
        proves: "Pub/Sub keeps every promise of a queue, with Google's fake, TLS and access tokens, and runs the scenarios of dispatchers and crawlers",
        tests: Programs(&["queue/pubsub --test-threads=8", "app/clouds pubsub::"]),
        needs: &[&services::GO, &services::GOOGLE_CLOUD, &services::PUBSUB, &services::REDIS],
        python: None,
    },
    Suite {
        name: "servicebus",
        proves: "Service Bus keeps every promise of a queue, on a double that Microsoft's SDKs check, and runs the scenarios of dispatchers and crawlers",
        tests: Programs(&["queue/servicebus --test-threads=8", "app/clouds servicebus::"]),
        needs: &[&services::PYTHON, &services::NPM, &services::SERVICE_BUS_SDK, &services::REDIS],
        python: Some(&python::SERVICEBUS),
    },
    Suite {
        name: "redis-serve",
        proves: "several `sluicegate serve` share one Redis and survive its failures; TLS, users and passwords; `sluicegate doctor` finds their problems",
        tests: Programs(&["app/redis", "app/secured", "app/mutations", "app/doctor"]),
        needs: &[&services::REDIS, &services::RABBITMQ],
        python: None,
    },
    Suite {
        name: "rabbitmq",
        proves: "RabbitMQ keeps every promise of a queue, classic and quorum, and loses nothing",
        tests: Programs(&["queue/rabbitmq --test-threads=8", "queue/backlog_rabbitmq"]),
        needs: &[&services::RABBITMQ],
        python: None,
    },
    Suite {
        name: "gateway",
        proves: "gateways keep a vendor's contract, measured at the vendor, through every failure that docs/gateway.md lists",
        tests: Programs(&["app/gateway"]),
        needs: &[&services::REDIS],
        python: None,
    },
    Suite {
        name: "dashboard",
        proves: "every page and action of the dashboard works in a real browser, also by keyboard and on a phone; nodes on one Redis show each other's data, reservations and pauses",
        tests: Programs(&["app/dashboard"]),
        needs: &[
            &services::REDIS,
            &services::PYTHON,
            &services::NPM,
            &services::CHROMIUM,
            &services::AXE,
        ],
        python: Some(&python::PLAYWRIGHT),
    },
    Suite {
        name: "traces",
        proves: "spans reach a collector over OTLP, HTTP and gRPC; a trace passes gateways, queues and handlers; a dead collector costs no request",
        tests: Programs(&["app/traces"]),
        needs: &[&services::PYTHON, &services::REDIS, &services::RABBITMQ],
        python: Some(&python::OTLP),
    },
    Suite {
        name: "terminal",
        proves: "`sluicegate top` and `tail` work in a real terminal and with real services; `cargo xtask demo` starts everything and leaves no process behind",
        tests: Programs(&["app/terminal", "xtask/demo"]),
        needs: &[&services::TMUX, &services::REDIS],
        python: None,
    },
    Suite {
        name: "rust",
        proves: "the Rust library works with Redis and with real services that are killed and far away; its packages and the programs of its README work outside of the workspace",
        tests: Programs(&["client/redis", "app/library", "app/packages"]),
        needs: &[&services::REDIS],
        python: None,
    },
    Suite {
        name: "examples",
        proves: "the scripts and commands of the examples do what their READMEs say, on the servers of their users",
        tests: Programs(&["app/examples"]),
        needs: &[
            &services::REDIS,
            &services::RABBITMQ,
            &services::PYTHON,
            &services::CURL,
            &services::IPROUTE,
        ],
        python: None,
    },
    Suite {
        name: "dispatch",
        proves: "dispatchers and workers keep providers' limits and lose no job, in real time windows and when processes are killed",
        tests: Programs(&["app/dispatch --test-threads=5 --skip grid::"]),
        needs: &[&services::REDIS, &services::RABBITMQ],
        python: None,
    },
    Suite {
        name: "booked",
        proves: "booked work uses the limits of providers and never exceeds them, also with a distant Redis",
        tests: Programs(&["app/dispatch --test-threads=3 grid::"]),
        needs: &[&services::REDIS, &services::RABBITMQ],
        python: None,
    },
];

/// Suites that measure how much of a limit is used. They run after the others, one at a time.
const UNDISTURBED: &[&str] = &["gateway", "booked"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Suites to run, in this order (default: all)
    #[arg(value_name = "SUITE")]
    suites: Vec<String>,
    /// Run more seeds and rounds (sets SLUICEGATE_LONG=1)
    #[arg(long)]
    long: bool,
    /// Start no further suite after one that failed
    #[arg(long)]
    fail_fast: bool,
    /// Run this many suites at the same time: with more than one, the output of a suite is printed
    /// when it ends
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    lanes: u8,
    /// List the suites
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    let chosen = choose(SUITES, &args.suites)?;
    if args.list {
        for suite in chosen {
            println!("{:<12} {}", suite.name, suite.proves);
        }
        return Ok(true);
    }
    // The build runs during the downloads, which mostly wait for the network.
    let (installed, (programs, building)) = thread::scope(|scope| {
        let installing = scope.spawn(|| install(&chosen));
        let built = sh::timed(|| build(&chosen));
        (installing.join().expect("installing does not panic"), built)
    });
    installed?;
    let programs = programs?;

    let lanes = usize::from(args.lanes).min(chosen.len());
    let long = args.long.then_some(("SLUICEGATE_LONG", "1"));
    let run_one = |suite: &Suite| {
        let log = (lanes > 1).then(|| suite.log());
        if log.is_some() {
            println!("== {}: started", suite.name);
        }
        let output = log.as_ref().map_or(Ok(Output::Inherit), create)?;
        output.line(&format!("\n== {}: {}", suite.name, suite.proves))?;
        let tool = suite.python.map(Tool::install).transpose()?;
        let tool = suite.python.zip(tool.as_deref()).map(|(tool, path)| (tool.variable, path));
        let env: Vec<_> = long.into_iter().chain(tool).collect();
        let passed = run_suite(suite, programs.as_deref(), &env, &output);
        log.map_or(Ok(()), print)?;
        passed
    };
    let (last, first): (Vec<_>, Vec<_>) =
        chosen.iter().partition(|suite| UNDISTURBED.contains(&suite.name));
    let (outcomes, testing) = sh::timed(|| {
        let mut outcomes = run_all(&first, lanes, args.fail_fast, run_one)?;
        if !args.fail_fast || outcomes.iter().all(|outcome| outcome.passed) {
            outcomes.extend(run_all(&last, 1, args.fail_fast, run_one)?);
        }
        anyhow::Ok(outcomes)
    });
    let outcomes = outcomes?;
    println!("\n{}", report(building, testing, &outcomes));
    Ok(outcomes.iter().all(|outcome| outcome.passed))
}

/// Creates the file that the output of a suite is written to.
fn create(path: &PathBuf) -> anyhow::Result<Output> {
    let created =
        path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| File::create(path));
    created.map(Output::File).with_context(|| format!("can't create {}", path.display()))
}

/// Prints the output of a suite that has ended.
fn print(path: PathBuf) -> anyhow::Result<()> {
    let mut log = File::open(path)?;
    let mut stdout = io::stdout().lock();
    io::copy(&mut log, &mut stdout)?;
    Ok(stdout.flush()?)
}

/// Installs the services and Python programs of `suites` that are missing.
fn install(suites: &[&Suite]) -> anyhow::Result<()> {
    let needs: Vec<&Service> = suites.iter().flat_map(|suite| suite.needs).copied().collect();
    services::install(&needs)?;
    suites.iter().filter_map(|suite| suite.python).try_for_each(|tool| tool.install().map(drop))
}

/// Builds the test programs of `suites`. Returns `None` if that fails; the compiler has printed
/// why.
fn build(suites: &[&Suite]) -> anyhow::Result<Option<Vec<Program>>> {
    if suites.iter().any(|suite| matches!(suite.tests, Rest)) {
        return programs::build(&[]);
    }
    let targets: Vec<_> = suites.iter().flat_map(|suite| suite.targets()).collect();
    if targets.is_empty() {
        return Ok(Some(Vec::new()));
    }
    programs::build(&targets)
}

/// Runs all tests of a suite, also after a failure. Returns true if all passed.
fn run_suite(
    suite: &Suite,
    programs: Option<&[Program]>,
    env: &[(&str, &str)],
    output: &Output,
) -> anyhow::Result<bool> {
    let run_command =
        |line: &str| sh::run_in(Path::new("."), &line.split(' ').collect::<Vec<_>>(), env, output);
    let mut passed = true;
    match (&suite.tests, programs) {
        (Commands(lines), _) => {
            for line in *lines {
                passed &= run_command(line)?;
            }
        }
        (Programs(_) | Rest, None) => {
            output.line("the test programs of this suite could not be built")?;
            passed = false;
        }
        (Programs(lines), Some(programs)) => {
            for line in *lines {
                let (program, arguments) = find(programs, line)?;
                passed &= program.run(&arguments, env, output)?;
            }
        }
        (Rest, Some(programs)) => {
            for program in rest(SUITES, programs) {
                passed &= program.run(&[], env, output)?;
            }
            passed &= run_command(programs::DOCUMENTATION)?;
        }
    }
    Ok(passed)
}

impl Suite {
    /// Returns the test programs that the suite names, as folder/target.
    fn named(&self) -> impl Iterator<Item = &'static str> {
        let lines = match self.tests {
            Programs(lines) => lines,
            Rest | Commands(_) => &[],
        };
        lines.iter().map(|line| line.split_once(' ').map_or(*line, |(name, _)| name))
    }

    /// Returns the file for the output of the suite while others run.
    fn log(&self) -> PathBuf {
        Path::new("target/suites").join(self.name).with_extension("log")
    }

    /// Returns the cargo targets of these programs.
    fn targets(&self) -> impl Iterator<Item = &'static str> {
        self.named().filter_map(|name| name.split_once('/')).map(|(_, target)| target)
    }
}

/// Returns the test program at the start of a suite's line, and the arguments after it.
fn find<'a>(
    programs: &'a [Program],
    line: &'static str,
) -> anyhow::Result<(&'a Program, Vec<&'static str>)> {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let program = programs
        .iter()
        .find(|program| program.name == name)
        .with_context(|| format!("unknown test program {name:?}: correct its name in SUITES"))?;
    Ok((program, words.collect()))
}

/// Returns the test programs that none of `suites` names.
fn rest<'a>(suites: &[Suite], programs: &'a [Program]) -> Vec<&'a Program> {
    let named: Vec<_> = suites.iter().flat_map(Suite::named).collect();
    programs.iter().filter(|program| !named.contains(&program.name.as_str())).collect()
}

/// Returns the suites with these names, in that order, or all suites if no name is given.
fn choose(suites: &'static [Suite], names: &[String]) -> anyhow::Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(suites.iter().collect());
    }
    let mut chosen = Vec::new();
    for name in names {
        let Some(suite) = suites.iter().find(|suite| suite.name == name) else {
            let known: Vec<_> = suites.iter().map(|suite| suite.name).collect();
            bail!("unknown suite {name:?} (known: {})", known.join(", "));
        };
        chosen.push(suite);
    }
    Ok(chosen)
}

/// Result of one suite.
#[derive(Debug)]
struct SuiteOutcome {
    suite: &'static str,
    passed: bool,
    took: Duration,
}

/// Runs the suites, `lanes` at a time. Lanes take suites in turn from the start and from the end of
/// the list. Returns the outcomes in the order of the list.
fn run_all(
    suites: &[&Suite],
    lanes: usize,
    fail_fast: bool,
    run: impl Fn(&Suite) -> anyhow::Result<bool> + Sync,
) -> anyhow::Result<Vec<SuiteOutcome>> {
    let waiting: Mutex<VecDeque<_>> = Mutex::new(suites.iter().enumerate().collect());
    let waiting = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let run_lane = |lane: usize| {
        let mut outcomes = Vec::new();
        loop {
            let from_start = lane.is_multiple_of(2);
            let next = if from_start { waiting().pop_front() } else { waiting().pop_back() };
            let Some((place, suite)) = next else { return Ok(outcomes) };
            let (passed, took) = sh::timed(|| run(suite));
            // An error ends the other lanes as well, after the suites that they run.
            if !matches!(passed, Ok(true)) && (fail_fast || passed.is_err()) {
                waiting().clear();
            }
            let outcome = SuiteOutcome { suite: suite.name, passed: passed?, took };
            outcomes.push((place, outcome));
        }
    };
    let results: Vec<anyhow::Result<_>> = thread::scope(|scope| {
        let running: Vec<_> = (0..lanes).map(|lane| scope.spawn(move || run_lane(lane))).collect();
        running.into_iter().map(|lane| lane.join().expect("a lane does not panic")).collect()
    });
    let mut outcomes = Vec::new();
    for lane in results {
        outcomes.extend(lane?);
    }
    outcomes.sort_by_key(|(place, _)| *place);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Formats the outcomes as a table. Programs parse its last line: keep its form.
fn report(building: Duration, testing: Duration, outcomes: &[SuiteOutcome]) -> String {
    let mut text = format!("{:<12} {:>16.1} s\n", "building", building.as_secs_f64());
    for SuiteOutcome { suite, passed, took } in outcomes {
        let verdict = if *passed { "passed" } else { "FAILED" };
        text += &format!("{suite:<12} {verdict}  {:>8.1} s\n", took.as_secs_f64());
    }
    text += &format!("{:<12} {:>16.1} s\n", "all suites", testing.as_secs_f64());
    let passed = outcomes.iter().filter(|outcome| outcome.passed).count();
    text += &format!("{passed} passed, {} failed", outcomes.len() - passed);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Suite = Suite {
        name: "first",
        proves: "",
        tests: Programs(&["app/first --test-threads=5", "queue/first"]),
        needs: &[],
        python: None,
    };
    const SECOND: Suite = Suite { name: "second", tests: Rest, ..FIRST };
    const BOTH: &[Suite] = &[FIRST, SECOND];

    fn names(suites: &[&Suite]) -> Vec<&'static str> {
        suites.iter().map(|suite| suite.name).collect()
    }

    /// Returns the suites that run although the first one fails.
    fn ran_after_failure(fail_fast: bool) -> Vec<&'static str> {
        let fails_first = |suite: &Suite| Ok(suite.name != "first");
        let outcomes = run_all(&[&FIRST, &SECOND], 1, fail_fast, fails_first).unwrap();
        outcomes.iter().map(|outcome| outcome.suite).collect()
    }

    #[test]
    fn a_failing_suite_does_not_keep_the_others_from_running() {
        assert_eq!(ran_after_failure(false), ["first", "second"]);
    }

    #[test]
    fn fail_fast_stops_at_the_first_failure() {
        assert_eq!(ran_after_failure(true), ["first"]);
    }

    /// Each suite waits until the other one has started.
    #[test]
    fn two_lanes_run_two_suites_at_the_same_time() {
        let both = std::sync::Barrier::new(2);
        let meet = |_: &Suite| {
            both.wait();
            Ok(true)
        };
        let outcomes = run_all(&[&FIRST, &SECOND], 2, false, meet).unwrap();
        let names: Vec<_> = outcomes.iter().map(|outcome| outcome.suite).collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn a_suite_that_can_not_run_is_an_error() {
        let fails = |_: &Suite| bail!("no server");
        let error = run_all(&[&FIRST, &SECOND], 2, false, fails).unwrap_err();
        assert_eq!(error.to_string(), "no server");
    }

    #[test]
    fn no_name_chooses_every_suite() {
        assert_eq!(names(&choose(BOTH, &[]).unwrap()), ["first", "second"]);
    }

    #[test]
    fn named_suites_run_in_the_order_given() {
        let chosen = choose(BOTH, &["second".to_owned(), "first".to_owned()]).unwrap();
        assert_eq!(names(&chosen), ["second", "first"]);
    }

    #[test]
    fn an_unknown_suite_names_the_known_ones() {
        let error = choose(BOTH, &["frist".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "unknown suite \"frist\" (known: first, second)");
    }

    #[test]
    fn the_rest_is_every_program_that_no_suite_names() {
        let built = ["app/first", "app/serve", "queue/first"].map(Program::named);
        let left: Vec<_> = rest(BOTH, &built).into_iter().map(|it| it.name.as_str()).collect();
        assert_eq!(left, ["app/serve"]);
    }

    #[test]
    fn a_program_is_found_with_its_arguments() {
        let built = ["app/first", "queue/first"].map(Program::named);
        let (program, arguments) = find(&built, "app/first --test-threads=5").unwrap();
        assert_eq!((program, arguments), (&built[0], vec!["--test-threads=5"]));
    }

    /// A suite whose program is missing fails; it is not skipped.
    #[test]
    fn a_program_that_was_not_built_is_an_error() {
        let error = find(&[], "app/frist").unwrap_err();
        let expected = "unknown test program \"app/frist\": correct its name in SUITES";
        assert_eq!(error.to_string(), expected);
        assert!(!run_suite(&FIRST, None, &[], &Output::Inherit).unwrap());
    }

    #[test]
    fn report_ends_with_the_counts_alone_on_a_line() {
        let outcome =
            |suite, passed, ms| SuiteOutcome { suite, passed, took: Duration::from_millis(ms) };
        let outcomes = [outcome("workspace", true, 61_250), outcome("shuttle", false, 900)];
        let testing = Duration::from_millis(61_300);
        let table = report(Duration::from_millis(123_400), testing, &outcomes);
        let expected = "\
building                123.4 s
workspace    passed      61.2 s
shuttle      FAILED       0.9 s
all suites               61.3 s
1 passed, 1 failed";
        assert_eq!(table, expected);
    }
}
