//! Section `decision`: time from the values of a request to its decision.

use std::time::Duration;

use crate::Effort;
use crate::limiter::{Pace, Round, Sample};
use crate::ours::{Shape, Sluicegate};
use crate::peers::{governor, limitador::Limitador, throttlecrab::Throttlecrab};
use crate::report::{Table, grouped, ns, spread};
use crate::rounds::{Figure, interleave};
use crate::scope::Mode;
use crate::traffic::{Traffic, USERS};

/// A benchmarked limiter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Exact,
    Bucket,
    GovernorKept,
    GovernorBuilt,
    Throttlecrab,
    Limitador,
}

const NAMES: [Name; 6] = [
    Name::Exact,
    Name::GovernorKept,
    Name::GovernorBuilt,
    Name::Bucket,
    Name::Throttlecrab,
    Name::Limitador,
];

impl Name {
    const fn text(self) -> &'static str {
        match self {
            Self::Exact => "sluicegate, exact log",
            Self::Bucket => "sluicegate, token bucket",
            Self::GovernorKept => "governor, key kept",
            Self::GovernorBuilt => "governor, key built",
            Self::Throttlecrab => "throttlecrab",
            Self::Limitador => "limitador",
        }
    }

    /// Returns true if the limiter charges several scopes atomically: all of them or none.
    const fn atomic(self) -> bool {
        matches!(self, Self::Exact | Self::Bucket)
    }

    fn limiter(self, scopes: usize, mode: Mode) -> anyhow::Result<Box<dyn Round>> {
        Ok(match self {
            Self::Exact => Box::new(Sluicegate::new(scopes, mode, Shape::Exact)),
            Self::Bucket => Box::new(Sluicegate::new(scopes, mode, Shape::Bucket)),
            Self::GovernorKept => Box::new(governor::Kept::new(scopes, mode)),
            Self::GovernorBuilt => Box::new(governor::Built::new(scopes, mode)),
            Self::Throttlecrab => Box::new(Throttlecrab::new(scopes, mode)),
            Self::Limitador => Box::new(Limitador::new(scopes, mode)?),
        })
    }
}

/// Conditions under which every limiter is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) scopes: usize,
    pub(crate) threads: usize,
    pub(crate) mode: Mode,
}

const fn scenario(scopes: usize, threads: usize, mode: Mode) -> Scenario {
    Scenario { scopes, threads, mode }
}

/// The scenario that the ratios of all others refer to.
pub(crate) const BASE: Scenario = scenario(1, 1, Mode::Admit);

pub(crate) const THREE_SCOPES: Scenario = scenario(3, 1, Mode::Admit);

const SCENARIOS: [Scenario; 8] = [
    BASE,
    THREE_SCOPES,
    scenario(5, 1, Mode::Admit),
    scenario(1, 2, Mode::Admit),
    scenario(3, 2, Mode::Admit),
    scenario(5, 2, Mode::Admit),
    scenario(1, 1, Mode::Deny),
    scenario(3, 1, Mode::Deny),
];

/// Results of every limiter in every scenario: time per decision, and share of admitted requests.
pub(crate) struct Measurements(Vec<(Scenario, Name, Figure, f64)>);

struct Subject {
    scenario: Scenario,
    name: Name,
    limiter: Box<dyn Round>,
}

impl Measurements {
    pub(crate) fn measure(effort: Effort) -> anyhow::Result<Self> {
        let traffic = Traffic::new();
        let mut subjects = Vec::new();
        for scenario in SCENARIOS {
            for name in NAMES {
                let limiter = name.limiter(scenario.scopes, scenario.mode)?;
                limiter.fill(&traffic, scenario.mode.requests_to_settle());
                subjects.push(Subject { scenario, name, limiter });
            }
        }
        // The warm-up is longer than the window, so that entries expire as fast as they are added.
        let pace = Pace {
            warm_up: Duration::from_millis(110),
            measured: Duration::from_millis(if effort.quick { 100 } else { 300 }),
        };
        let samples = interleave(effort.rounds(), &mut subjects, |subject| {
            subject.limiter.run(&traffic, subject.scenario.threads, pace)
        });
        let figures = subjects.iter().zip(samples).map(|(subject, samples)| {
            let figure = Figure::of(samples.iter().map(|sample: &Sample| sample.ns));
            let admitted = Figure::of(samples.iter().map(|sample| sample.admitted)).median;
            (subject.scenario, subject.name, figure, admitted)
        });
        Ok(Self(figures.collect()))
    }

    /// Returns the median time of a decision in nanoseconds.
    pub(crate) fn ns(&self, scenario: Scenario, name: Name) -> f64 {
        let found = self.0.iter().find(|row| (row.0, row.1) == (scenario, name));
        let (_, _, figure, _) = found.expect("every limiter is measured in every scenario");
        figure.median
    }

    pub(crate) fn print(&self) {
        println!("\n## decision: time from the values of a request to its decision\n");
        println!(
            "{} users in random order. `ns` is the time of a decision on one thread: processor time \
             if there is one thread,\nwall-clock time if there are two. `decisions/s` counts all \
             threads. `× governor` is the ratio to governor with kept\nkeys, one scope and one \
             thread. A limiter marked `*` does not charge its scopes atomically: governor and\n\
             throttlecrab charge them one after the other; limitador reads all and then writes all, \
             without a lock.",
            grouped(USERS as f64),
        );
        let base = self.ns(BASE, Name::GovernorKept);
        for scenario in SCENARIOS {
            let Scenario { scopes, threads, mode } = scenario;
            let scopes = counted(scopes, "scope");
            println!("\n### {scopes}, {}, {}\n", counted(threads, "thread"), mode.name());
            let head = ["", "ns", "min–max", "decisions/s", "× governor", "admitted"];
            let mut table = Table::new(&head);
            for (_, name, figure, admitted) in self.0.iter().filter(|row| row.0 == scenario) {
                let alone = scenario.scopes == 1 || name.atomic();
                table.row([
                    format!("{}{}", name.text(), if alone { "" } else { " *" }),
                    ns(figure.median),
                    spread(*figure),
                    grouped(threads as f64 * 1e9 / figure.median),
                    format!("{:.2}", figure.median / base),
                    format!("{:.1} %", admitted * 100.0),
                ]);
            }
            print!("{table}");
        }
    }
}

/// Sends requests to our exact logs on one thread for ten seconds.
pub(crate) fn profile(scopes: usize) {
    let traffic = Traffic::new();
    let limiter = Sluicegate::new(scopes, Mode::Admit, Shape::Exact);
    let pace = Pace { warm_up: Duration::from_millis(110), measured: Duration::from_secs(10) };
    let sample = limiter.run(&traffic, 1, pace);
    println!("{} ns for a decision", ns(sample.ns));
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
