//! `cargo xtask test`: runs the test suites one after the other and shows the time each
//! took. It is plain `cargo test` underneath, so a fresh machine needs no test runner.

use std::time::Duration;

use anyhow::bail;

use crate::python::{self, Tool};
use crate::services::{self, Service};
use crate::sh;

/// A group of tests that is run, timed and reported as one.
#[derive(Debug)]
struct Suite {
    name: &'static str,
    /// What it proves, in one line.
    proves: &'static str,
    /// Split at spaces.
    command: &'static str,
    /// The servers that must be installed before it runs.
    needs: &'static [&'static Service],
    /// The Python program that it runs.
    python: Option<&'static Tool>,
}

const SUITES: &[Suite] = &[
    Suite {
        name: "workspace",
        proves: "every crate keeps its promises: unit, integration and documentation tests",
        command: "cargo test --workspace --locked --no-fail-fast",
        needs: &[],
        python: None,
    },
    Suite {
        name: "shuttle",
        proves: "the memory store holds its limits under every explored thread interleaving",
        command: "cargo test --package sluicegate-store --features shuttle --test shuttle --locked",
        needs: &[],
        python: None,
    },
    Suite {
        name: "schemathesis",
        proves: "the running service accepts and answers what its OpenAPI document says",
        command: "cargo test --package sluicegate --features schemathesis --test schemathesis --locked",
        needs: &[&services::PYTHON],
        python: Some(&python::SCHEMATHESIS),
    },
    Suite {
        name: "envoy",
        proves: "a real Envoy is limited exactly, with the configurations of deploy/envoy",
        command: "cargo test --package sluicegate --features envoy --test envoy --locked",
        needs: &[&services::PYTHON, &services::REDIS],
        python: Some(&python::ENVOY),
    },
    Suite {
        name: "redis",
        proves: "the Redis store keeps every promise of the port, on 7.0 and on 6.2, and survives faults",
        command: "cargo test --package sluicegate-store --features test-clock --test redis --locked",
        needs: &[&services::REDIS, &services::REDIS_6_2],
        python: None,
    },
    Suite {
        name: "cluster",
        proves: "the same on a Redis Cluster and behind Sentinel; across slots no limit is exceeded",
        command: "cargo test --package sluicegate-store --features test-clock --test redis_cluster --locked",
        needs: &[&services::REDIS, &services::REDIS_6_2],
        python: None,
    },
    Suite {
        name: "budget",
        proves: "200 callers on two nodes never overrun a budget; slots of killed holders come back",
        command: "cargo test --package sluicegate --features redis-tests --test budget --test leases --locked",
        needs: &[&services::REDIS],
        python: None,
    },
    Suite {
        name: "alerts",
        proves: "each alert of deploy/prometheus fires when it should, and not otherwise",
        command: "promtool test rules deploy/prometheus/alerts.test.yaml",
        needs: &[&services::PROMTOOL],
        python: None,
    },
    Suite {
        name: "rabbitmq",
        proves: "RabbitMQ, built alone, keeps every promise of a queue, classic and quorum, and loses nothing",
        command: "cargo test --package sluicegate-queue --no-default-features --features rabbitmq-tests --test rabbitmq --locked -- --test-threads 8",
        needs: &[&services::RABBITMQ],
        python: None,
    },
    Suite {
        name: "sqs",
        proves: "SQS, built alone, keeps every promise of a queue, as moto and fauxqs play it",
        command: "cargo test --package sluicegate-queue --no-default-features --features sqs-tests --test sqs --locked -- --test-threads 8",
        needs: &[&services::PYTHON, &services::NPM, &services::FAUXQS],
        python: Some(&python::MOTO),
    },
    Suite {
        name: "redis-serve",
        proves: "several `sluicegate serve` share one Redis, and survive it; TLS, users and passwords",
        command: "cargo test --package sluicegate --features redis-tests --test redis --test secured --locked",
        needs: &[&services::REDIS],
        python: None,
    },
    Suite {
        name: "dispatch",
        proves: "dispatchers and workers keep providers' limits and lose no job, in their real windows and through kills",
        command: "cargo test --package sluicegate --features redis-tests --test dispatch --locked -- --test-threads=5",
        needs: &[&services::REDIS, &services::RABBITMQ],
        python: None,
    },
    Suite {
        name: "gateway",
        proves: "gateways keep a vendor's contract, judged at the vendor, through every failure of their table",
        command: "cargo test --package sluicegate --features redis-tests --test gateway --locked",
        needs: &[&services::REDIS],
        python: None,
    },
    Suite {
        name: "examples",
        proves: "the scripts that show the examples at work do what their READMEs say",
        command: "cargo test --package sluicegate --features redis-tests --test examples --locked",
        needs: &[&services::REDIS, &services::PYTHON, &services::CURL],
        python: None,
    },
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The suites to run, in this order (default: all)
    #[arg(value_name = "SUITE")]
    suites: Vec<String>,
    /// Run more seeds and rounds (sets SLUICEGATE_LONG=1 for the tests)
    #[arg(long)]
    long: bool,
    /// Stop at the first suite that fails
    #[arg(long)]
    fail_fast: bool,
    /// List the suites and what each proves
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
    let needs: Vec<&Service> = chosen.iter().flat_map(|suite| suite.needs).copied().collect();
    services::install(&needs)?;

    let outcomes = run_all(&chosen, args.fail_fast, |suite| {
        println!("\n== {}: {}", suite.name, suite.proves);
        let tool = suite.python.map(Tool::install).transpose()?;
        let tool = suite.python.zip(tool.as_deref()).map(|(tool, path)| (tool.variable, path));
        let long = args.long.then_some(("SLUICEGATE_LONG", "1"));
        let env: Vec<_> = long.into_iter().chain(tool).collect();
        let line: Vec<_> = suite.command.split(' ').collect();
        sh::run(&line, &env)
    })?;
    println!("\n{}", report(&outcomes));
    Ok(outcomes.iter().all(|outcome| outcome.passed))
}

/// Those of `suites` that are called `names`, in that order; all of them if no name is given.
fn choose(suites: &'static [Suite], names: &[String]) -> anyhow::Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(suites.iter().collect());
    }
    let mut chosen = Vec::new();
    for name in names {
        let Some(suite) = suites.iter().find(|suite| suite.name == name) else {
            let known: Vec<_> = suites.iter().map(|suite| suite.name).collect();
            bail!("no suite is called {name}: choose from {}", known.join(", "));
        };
        chosen.push(suite);
    }
    Ok(chosen)
}

#[derive(Debug)]
struct Outcome {
    suite: &'static str,
    passed: bool,
    took: Duration,
}

fn run_all(
    suites: &[&Suite],
    fail_fast: bool,
    mut run: impl FnMut(&Suite) -> anyhow::Result<bool>,
) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for suite in suites {
        let (passed, took) = sh::timed(|| run(suite));
        let passed = passed?;
        outcomes.push(Outcome { suite: suite.name, passed, took });
        if fail_fast && !passed {
            break;
        }
    }
    Ok(outcomes)
}

/// A table of the outcomes. Its last line is read by machines: keep its form.
fn report(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for Outcome { suite, passed, took } in outcomes {
        let verdict = if *passed { "passed" } else { "FAILED" };
        text += &format!("{suite:<12} {verdict}  {:>8.1} s\n", took.as_secs_f64());
    }
    let passed = outcomes.iter().filter(|outcome| outcome.passed).count();
    text += &format!("{passed} passed, {} failed", outcomes.len() - passed);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Suite = Suite { name: "first", proves: "", command: "", needs: &[], python: None };
    const SECOND: Suite = Suite { name: "second", ..FIRST };
    const BOTH: &[Suite] = &[FIRST, SECOND];

    fn names(suites: &[&Suite]) -> Vec<&'static str> {
        suites.iter().map(|suite| suite.name).collect()
    }

    /// The suites that ran when the first one fails.
    fn ran_after_failure(fail_fast: bool) -> Vec<&'static str> {
        let fails_first = |suite: &Suite| Ok(suite.name != "first");
        let outcomes = run_all(&[&FIRST, &SECOND], fail_fast, fails_first).unwrap();
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
        assert_eq!(error.to_string(), "no suite is called frist: choose from first, second");
    }

    #[test]
    fn report_ends_with_the_counts_alone_on_a_line() {
        let outcome =
            |suite, passed, ms| Outcome { suite, passed, took: Duration::from_millis(ms) };
        let table = report(&[outcome("workspace", true, 61_250), outcome("shuttle", false, 900)]);
        let expected = "\
workspace    passed      61.2 s
shuttle      FAILED       0.9 s
1 passed, 1 failed";
        assert_eq!(table, expected);
    }
}
