//! Tries a protocol with many seeds, and shows the run of the first that breaks it.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What came of one seed.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// The invariant that was broken and how, beginning with its name.
    pub broken: Option<String>,
    /// What happened, if it was traced.
    pub trace: Vec<String>,
    /// How often something happened.
    pub seen: BTreeMap<&'static str, u64>,
}

/// Whether a run writes down what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// It does.
    On,
    /// It does not: a run is then several times faster.
    Off,
}

/// How many seeds are tried, and how a test is run again with one of them.
#[derive(Clone, Copy, Debug)]
pub struct Exploration<'a> {
    /// The name of the test.
    pub test: &'a str,
    /// How many seeds are tried.
    pub seeds: u64,
    /// Only this one.
    pub only: Option<u64>,
}

impl<'a> Exploration<'a> {
    /// `SLUICEGATE_LONG` tries fifty times as many seeds; `SLUICEGATE_SEED` only that one.
    pub fn from_env(test: &'a str, seeds: u64) -> Self {
        let only = std::env::var("SLUICEGATE_SEED").ok();
        let only = only.map(|seed| seed.parse().expect("SLUICEGATE_SEED is a whole number"));
        Self { test, seeds: if crate::long() { seeds * 50 } else { seeds }, only }
    }

    /// The same for a mistake, which is looked for until it is found and no longer.
    pub fn of_mistake(test: &'a str, seeds: u64) -> Self {
        Self { seeds, ..Self::from_env(test, seeds) }
    }

    /// Every seed keeps every invariant, and all that is named in `must_see` did happen.
    ///
    /// # Panics
    ///
    /// With the command that repeats it and the trace, if a seed breaks an invariant.
    pub fn holds(self, must_see: &[&str], run: impl Fn(u64, Tracing) -> Run) -> String {
        if let Some(seed) = self.only {
            let text = self.traced(seed, &run);
            assert!(run(seed, Tracing::Off).broken.is_none(), "{text}");
            return text;
        }
        let mut seen = BTreeMap::new();
        for seed in 0..self.seeds {
            let outcome = run(seed, Tracing::Off);
            assert!(outcome.broken.is_none(), "{}", self.traced(seed, &run));
            for (what, count) in outcome.seen {
                *seen.entry(what).or_insert(0) += count;
            }
        }
        let missing: Vec<_> = must_see.iter().filter(|what| !seen.contains_key(**what)).collect();
        assert!(missing.is_empty(), "{}: no seed ever saw {missing:?}", self.test);
        let seen: Vec<_> = seen.iter().map(|(what, count)| format!("{what} {count}")).collect();
        format!("{}: {} seeds hold\n  {}", self.test, self.seeds, seen.join(", "))
    }

    /// Some seed breaks the invariant whose name is given.
    ///
    /// # Panics
    ///
    /// If none does.
    pub fn finds(self, invariant: &str, run: impl Fn(u64, Tracing) -> Run) -> String {
        if let Some(seed) = self.only {
            return self.traced(seed, &run);
        }
        let breaks = |seed: &u64| {
            let broken = run(*seed, Tracing::Off).broken;
            broken.is_some_and(|broken| broken.starts_with(invariant))
        };
        let found = (0..self.seeds).find(breaks);
        let Some(seed) = found else {
            panic!("{}: none of {} seeds breaks {invariant}", self.test, self.seeds);
        };
        let broken = run(seed, Tracing::Off).broken.unwrap_or_default();
        format!("{}: seed {seed} finds it: {broken}", self.test)
    }

    /// The story of one seed, and how to see it again.
    fn traced(self, seed: u64, run: impl Fn(u64, Tracing) -> Run) -> String {
        const COMMAND: &str = "cargo test -p sluicegate-testkit --test protocols";
        let outcome = run(seed, Tracing::On);
        let verdict = outcome.broken.as_deref().unwrap_or("every invariant held");
        let mut text = format!("seed {seed}: {verdict}\n");
        let _ = writeln!(text, "SLUICEGATE_SEED={seed} {COMMAND} {} -- --nocapture", self.test);
        for line in outcome.trace {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}
