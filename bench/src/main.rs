//! What the engine costs: time and memory of a decision, beside other limiters.
//!
//! Everything that is compared is measured in one run, in turns, and printed as a median with its
//! spread. Figures are reported, never asserted: a slow machine is not an error.

mod allocator;
mod limiter;
mod log;
mod machine;
mod memory;
mod ours;
mod peers;
mod plan;
mod report;
mod road;
mod rounds;
mod scope;
mod stopwatch;
mod traffic;

use clap::{Parser, ValueEnum};
use report::{Goal, Target};
use road::{BASE, Name, Road, THREE_SCOPES};

#[derive(Parser)]
#[command(about = "What a decision costs in time and memory, beside other limiters")]
struct Args {
    /// Fewer and shorter rounds, and no ten million keys
    #[arg(long)]
    quick: bool,
    /// Run one section only
    #[arg(long, value_name = "SECTION")]
    only: Option<Section>,
    /// Instead of everything else, let one thread ask for ten seconds, for a profiler to watch
    #[arg(long, value_name = "SCOPES", value_parser = clap::value_parser!(u8).range(1..=5))]
    profile: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// From the values of a request to a decision, beside peers
    Road,
    /// Planning alone, by the number of rules
    Plan,
    /// An acquire, by the entries of its log
    Log,
    /// Bytes per key and per entry
    Memory,
}

/// How much time to spend.
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
        road::profile(scopes.into());
        return Ok(());
    }
    let effort = Effort { quick: args.quick };
    let wanted = |section| args.only.is_none_or(|only| only == section);

    println!("# engine: {} rounds in turns\n", effort.rounds());
    println!("{}", machine::Machine::now());
    let road = wanted(Section::Road).then(|| Road::measure(effort)).transpose()?;
    if let Some(road) = &road {
        road.print();
    }
    let plan_growth = wanted(Section::Plan).then(|| plan::run(effort));
    let log_growth = wanted(Section::Log).then(|| log::run(effort));
    let key_bytes_max = wanted(Section::Memory).then(|| memory::run(effort));

    println!("\n## GOALS\n");
    let goals = goals(road.as_ref(), plan_growth, log_growth, key_bytes_max);
    print!("{}", report::goals(&goals));
    if let Some(road) = &road {
        let ratio =
            |scenario| road.ns(scenario, Name::Exact) / road.ns(scenario, Name::GovernorBuilt);
        println!(
            "\nFor orientation, against governor that builds its keys as we build ours: one rule \
             {:.2}×, three scopes {:.2}× its three checks.",
            ratio(BASE),
            ratio(THREE_SCOPES)
        );
    }
    Ok(())
}

fn goals(
    road: Option<&Road>,
    plan_growth: Option<f64>,
    log_growth: Option<f64>,
    key_bytes_max: Option<f64>,
) -> [Goal; 6] {
    let ratio = |over: (_, _), under: (_, _)| {
        road.map(|road| road.ns(over.0, over.1) / road.ns(under.0, under.1))
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
