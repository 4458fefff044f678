//! Benchmarks decision time and memory against other limiters.
//!
//! All limiters are measured alternately in one run. The report has medians with their spread.
//! The benchmark never fails because of a figure: a slow machine is not an error.

mod allocator;
mod decision;
mod limiter;
mod log;
mod machine;
mod memory;
mod ours;
mod peers;
mod plan;
mod report;
mod rounds;
mod scope;
mod stopwatch;
mod traffic;

use clap::{Parser, ValueEnum};
use decision::{BASE, Measurements, Name, THREE_SCOPES};
use report::{Goal, Target};

#[derive(Parser)]
#[command(about = "Benchmark decision time and memory against other limiters")]
struct Args {
    /// Run fewer and shorter rounds, with at most a million keys
    #[arg(long)]
    quick: bool,
    /// Run one section only
    #[arg(long, value_name = "SECTION")]
    only: Option<Section>,
    /// Only send requests on one thread for ten seconds, for use with a profiler
    #[arg(long, value_name = "SCOPES", value_parser = clap::value_parser!(u8).range(1..=5))]
    profile: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Time from the values of a request to its decision, against other limiters
    Decision,
    /// Time of planning alone, by number of rules
    Plan,
    /// Time of an acquire, by size of its exact log
    Log,
    /// Bytes per key and per log entry
    Memory,
}

/// Number and length of the rounds.
#[derive(Clone, Copy)]
struct Effort {
    quick: bool,
}

impl Effort {
    const fn rounds(self) -> usize {
        if self.quick { 3 } else { 5 }
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(scopes) = args.profile {
        decision::profile(scopes.into());
        return Ok(());
    }
    let effort = Effort { quick: args.quick };
    let wanted = |section| args.only.is_none_or(|only| only == section);

    println!("# engine: {} alternating rounds\n", effort.rounds());
    println!("{}", machine::Machine::now());
    let decision = wanted(Section::Decision).then(|| Measurements::measure(effort)).transpose()?;
    if let Some(decision) = &decision {
        decision.print();
    }
    let plan_growth = wanted(Section::Plan).then(|| plan::run(effort));
    let log_growth = wanted(Section::Log).then(|| log::run(effort));
    let key_bytes_max = wanted(Section::Memory).then(|| memory::run(effort));

    println!("\n## GOALS\n");
    let goals = goals(decision.as_ref(), plan_growth, log_growth, key_bytes_max);
    print!("{}", report::goals(&goals));
    if let Some(decision) = &decision {
        let ratio = |scenario| {
            decision.ns(scenario, Name::Exact) / decision.ns(scenario, Name::GovernorBuilt)
        };
        println!(
            "\nAgainst governor with a key built for each request, as ours are: one rule {:.2}×, \
             three scopes {:.2}× of three governor checks.",
            ratio(BASE),
            ratio(THREE_SCOPES)
        );
    }
    Ok(())
}

fn goals(
    decision: Option<&Measurements>,
    plan_growth: Option<f64>,
    log_growth: Option<f64>,
    key_bytes_max: Option<f64>,
) -> [Goal; 6] {
    let ratio = |over: (_, _), under: (_, _)| {
        decision.map(|decision| decision.ns(over.0, over.1) / decision.ns(under.0, under.1))
    };
    let governor = (BASE, Name::GovernorKept);
    [
        Goal {
            what: "one rule, against governor with kept keys",
            measured: ratio((BASE, Name::Exact), governor),
            unit: "×",
            target: Target::AtMost(2.0),
        },
        Goal {
            what: "three scopes in one atomic Plan, against governor with one",
            measured: ratio((THREE_SCOPES, Name::Exact), governor),
            unit: "×",
            target: Target::AtMost(5.0),
        },
        Goal {
            what: "faster than limitador with three limits",
            measured: ratio((THREE_SCOPES, Name::Limitador), (THREE_SCOPES, Name::Exact)),
            unit: "×",
            target: Target::AtLeast(10.0),
        },
        Goal {
            what: "bytes per key, at the worst number of keys",
            measured: key_bytes_max,
            unit: " B",
            target: Target::AtMost(120.0),
        },
        Goal {
            what: "planning: the same rule among 10,000, against among 10",
            measured: plan_growth,
            unit: "×",
            target: Target::AtMost(1.2),
        },
        Goal {
            what: "acquire: a log of 100,000 entries, against one of 10 (log n: 5×)",
            measured: log_growth,
            unit: "×",
            target: Target::AtMost(5.0),
        },
    ]
}
