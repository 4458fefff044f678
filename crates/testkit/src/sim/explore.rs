//! [`Exploration`]: runs a protocol with many seeds, and prints the trace of the first seed that
//! breaks an invariant.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The result of one seed.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// Broken invariant, as a text that starts with its name.
    pub broken: Option<String>,
    /// Trace of the run, if it was requested.
    pub trace: Vec<String>,
    /// Number of occurrences of each kind of event.
    pub seen: BTreeMap<&'static str, u64>,
}

/// A switch for the trace of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// Write a trace.
    On,
    /// Write no trace, which makes a run several times faster.
    Off,
}

/// The number of seeds to try, and the name of the test for the command that repeats one.
#[derive(Clone, Copy, Debug)]
pub struct Exploration<'a> {
    /// Name of the test.
    pub test: &'a str,
    /// Number of seeds to try.
    pub seeds: u64,
    /// Only seed to run, if set.
    pub only: Option<u64>,
}

impl<'a> Exploration<'a> {
    /// Reads the environment: `SLUICEGATE_LONG` tries fifty times as many seeds, `SLUICEGATE_SEED`
    /// only that one.
    pub fn from_env(test: &'a str, seeds: u64) -> Self {
        let only = std::env::var("SLUICEGATE_SEED").ok();
        let only = only.map(|seed| seed.parse().expect("SLUICEGATE_SEED is a whole number"));
        Self { test, seeds: if crate::long() { seeds * 50 } else { seeds }, only }
    }

    /// Creates an exploration for a mistake, which stops at the first seed that finds it and has no
    /// long form.
    pub fn of_mistake(test: &'a str, seeds: u64) -> Self {
        Self { seeds, ..Self::from_env(test, seeds) }
    }

    /// Checks that every seed keeps every invariant, and that every event in `must_see` occurred.
    ///
    /// # Panics
    ///
    /// If a seed breaks an invariant; the message contains the command that repeats it and the
    /// trace.
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

    /// Checks that some seed breaks the given invariant.
    ///
    /// # Panics
    ///
    /// If no seed does.
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

    /// Returns the trace of one seed, and the command that repeats it.
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
