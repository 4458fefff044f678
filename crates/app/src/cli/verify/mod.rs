//! `sluicegate verify`: reads what was admitted and proves that no limit was exceeded.
//!
//! What a log proves, and when it proves nothing, is in `docs/decisions/018-what-a-log-proves.md`.
//!
//! The lines are those of the decision log; the judge is the checker of `sluicegate-core`, which
//! shares nothing with the limiter. Logs are read as streams, merged by the time of the store, and
//! of each counter only what a later window can reach is kept.

mod count;
mod counter;
mod ledger;
mod line;
mod logs;
mod processes;
mod report;
mod slots;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use sluicegate_checker::Bound;
use sluicegate_core::Span;

use super::say;
use ledger::{Ledger, Promise, Refusal};
use line::Event;
use logs::Logs;
use report::counted;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate verify decisions.log            the log of one node
  sluicegate verify node1.log node2.log      nodes that share a store, or parts of one log
  sluicegate serve | sluicegate verify -     standard input
  sluicegate verify --bound 3/2 *.log        an outage with the policy `local`: at most 3/2 of each limit
  sluicegate verify --losses 1 *.log         the store lost its counters once within a window

Nodes that keep usage in their own memory are verified one by one. What was settled counts as what
it cost, but not beyond what was admitted; what was cancelled counts as nothing; a counter that was
reset begins anew; a slot is held until it is given back or its lease is over.

Only windows between the first line of the log and its end are proven. A process without an end line
was killed or is still running: its log is proven up to its last line.

Exit code: 0 proven, 1 a limit was exceeded, 2 the log does not allow a proof";

#[derive(Args)]
pub(super) struct Verify {
    /// Decision logs; - is standard input
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// How many times each limit may be used in a window in which an outage policy admitted
    /// something, such as 3/2 or 2; what the store admits is always held to the limit [default: 1]
    #[arg(long, value_name = "RATIO", value_parser = bound)]
    bound: Option<Bound>,
    /// How often the store may have lost its counters within a window: each time adds the limit
    /// once more
    #[arg(long, value_name = "N", default_value_t = 0)]
    losses: u16,
    /// Maximum clock difference, such as 20ms, between nodes that admitted on their own and the
    /// store, or between servers of a cluster that a counter moved to
    #[arg(long, value_name = "SPAN", default_value = "0s")]
    spread: Span,
    /// How many of the fullest windows to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
}

impl Verify {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let mut logs = Logs::open(&self.logs)?;
        let store = Bound::new(u32::from(self.losses) + 1, 1).unwrap_or(Bound::WHOLE);
        let all = self.bound.unwrap_or(store);
        let mut ledger = Ledger::new(Promise { store, all, spread: self.spread });
        while let Some((place, entry)) = logs.next()? {
            ledger.begins(logs.processes.begin());
            let recorded = match &entry.event {
                Event::Decided(decision) => ledger.record(place, decision),
                Event::Followed(followed) => ledger.follow(place, followed),
                Event::Unanswered => {
                    ledger.unanswered(entry.at);
                    Ok(())
                }
                Event::End => Ok(()),
            };
            match recorded {
                Ok(()) => {}
                Err(Refusal::Line(error)) => logs.malformed(place, &error),
                Err(Refusal::Lease(error)) => logs.malformed(place, &error),
                Err(Refusal::Shown(error)) => logs.malformed(place, &error),
                Err(Refusal::Proof(malformed)) => return Err(malformed.into()),
            }
        }
        if logs.seen.decisions == 0 {
            bail!("there are no decisions in the log: is log.format json?");
        }
        let outcome = ledger.finish()?;

        if self.top > 0 && !outcome.rows.is_empty() {
            say(&report::fullest(&outcome, self.top));
            say("");
        }
        for line in &logs.seen.shown {
            say(&format!("\x1b[33mwarning:\x1b[0m {line}"));
        }
        if logs.seen.others > 0 {
            let lines = counted(logs.seen.others, "line");
            say(&format!("skipped: {lines} without a decision"));
        }
        for note in report::notes(&outcome, &logs, all) {
            say(&format!("note: {note}"));
        }
        let doubts = report::doubts(&outcome, &logs);
        let exceeded = report::exceeded(&outcome, &logs);
        let extent = report::extent(&outcome);
        if !exceeded.is_empty() {
            for doubt in &doubts {
                say(&format!("\x1b[33mwarning:\x1b[0m {doubt}"));
            }
            for violation in &exceeded {
                say(violation);
            }
            say(&format!("\x1b[31mnot proven:\x1b[0m {extent}, {} exceeded", exceeded.len()));
            return Ok(false);
        }
        if !doubts.is_empty() {
            bail!("not proven: {extent}: {}", doubts.join("; "));
        }
        let proven = report::proven(&logs);
        say(&format!("\x1b[32m{proven}:\x1b[0m {extent}"));
        Ok(true)
    }
}

fn bound(text: &str) -> Result<Bound, String> {
    let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
    let parts = numerator.parse().ok().zip(denominator.parse().ok());
    let bound = parts.and_then(|(numerator, denominator)| Bound::new(numerator, denominator));
    bound.ok_or_else(|| "write a ratio such as 3/2, or a number such as 2".to_owned())
}
